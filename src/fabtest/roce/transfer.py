"""So many packets from here to there, and what arrived."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from typing import Any

from fabtest.errors import TrafficError, UsageError
from fabtest.roce.arena import Arena
from fabtest.roce.frames import Flow, icrc_is_right, parse
from fabtest.roce.opcodes import Op
from fabtest.roce.open_loop import OpenLoop
from fabtest.roce.receiver import Receiver
from fabtest.roce.ring import WHOLE, Received
from fabtest.roce.send import NicAddress, resolve
from fabtest.roce.transmit import transmitter
from fabtest.runtime.base import Lab

FIRST_SRC_PORT, MOST_FLOWS = 0xC000, 0x4000
SETTLE_S = 0.3
FIRST_QPN = 0x11
#: Whole frames, in 32 MB.
SLOTS = 3600


@dataclass(frozen=True, slots=True)
class Transfer:
    """The outcome. ``seconds`` is the time of sending."""

    src: str
    dst: str
    flows: int
    sent: int
    received: int
    lost: int
    bad_icrc: int
    out_of_order: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "pps": round(self.sent / self.seconds) if self.seconds else 0}

    def sentence(self) -> str:
        """For people."""
        extra = f", {self.bad_icrc} with a wrong ICRC" if self.bad_icrc else ""
        extra += f", {self.out_of_order} out of order" if self.out_of_order else ""
        return (
            f"{self.src} -> {self.dst}: {self.sent} packets of {self.flows} flows sent in {self.seconds:.2f} s, "
            f"{self.received} received, {self.lost} lost{extra}"
        )


def transfer(
    lab: Lab, src: NicAddress, dst: NicAddress, *, count: int, flows: int, pps: int, payload: int = 64, dscp: int = 26
) -> Transfer:
    """Send ``count`` packets over ``flows`` flows and wait for them.

    Raises UsageError for numbers that mean nothing, and TrafficError if they cannot be sent or counted.
    """
    room = src.port.mtu - (20 if src.address.version == 4 else 40) - 8 - 12 - 4
    if not 0 <= payload <= room - room % 4:
        raise UsageError(f"a payload of {payload} bytes", hint=f"0 to {room - room % 4} at an MTU of {src.port.mtu}")
    if not 1 <= flows <= MOST_FLOWS or count < flows:
        raise UsageError(f"{flows} flows with {count} packets", hint=f"1 to {MOST_FLOWS} flows, a packet for each")
    if pps < 0 or not 0 <= dscp <= 63:
        raise UsageError("packets per second must not be negative, and a DSCP is 0 to 63")
    flow_list = [Flow(src.address, dst.address, FIRST_SRC_PORT + n, FIRST_QPN + n, dscp) for n in range(flows)]
    far = lab.node(dst.server)
    interfaces = [far.interface(p.name) for p in lab.fabric.server[dst.server].ports]
    near = lab.node(src.server)
    gateway = bytes.fromhex(resolve(near, near.interface(src.port.name), src.gateway).replace(":", ""))
    own = bytes.fromhex(src.port.mac.replace(":", ""))
    arena = Arena(flow_list, own, gateway, payload, opcode=Op.SEND_ONLY)
    with Receiver(far.netns, interfaces, slots=SLOTS, keep=WHOLE, sample=0) as receiver:
        arrivals = _Arrivals(
            int.from_bytes(src.address.packed[-4:], "big"), int.from_bytes(dst.address.packed[-4:], "big")
        )
        done = threading.Event()
        thread = threading.Thread(target=arrivals.follow, args=(receiver, count, done), daemon=True)
        thread.start()
        try:
            out = transmitter(near.netns, near.interface(src.port.name), arena)
            try:
                sent = OpenLoop(arena, out).run(pps=pps, count=count)
            finally:
                out.close()
        finally:
            done.set()
            thread.join()
        overrun = receiver.ring.dropped()
    if overrun and arrivals.arrived + arrivals.bad < count:
        raise TrafficError(
            f"this machine lost {overrun} captured frames: nothing can be said", hint="send slower: --pps"
        )
    return Transfer(
        str(src), str(dst), flows, count, arrivals.arrived, count - arrivals.arrived - arrivals.bad, arrivals.bad,
        arrivals.disorder, sent.seconds,
    )  # fmt: skip


class _Arrivals:
    """Packets of a transfer as they come in: each PSN of a flow once, its ICRC checked."""

    def __init__(self, src: int, dst: int) -> None:
        self._src, self._dst = src, dst
        self._seen: set[int] = set()
        self._highest: dict[int, int] = {}
        self.arrived = self.bad = self.disorder = 0

    def follow(self, receiver: Receiver, count: int, done: threading.Event) -> None:
        """Until all are there, or nothing has come for a while after the last was sent."""
        quiet_since = time.monotonic()
        while self.arrived + self.bad < count:
            batch = receiver.take(256)
            if batch is not None:
                self._add(batch, receiver.ring.frames())
                receiver.ring.release()
                quiet_since = time.monotonic()
                continue
            if done.is_set() and time.monotonic() - quiet_since > SETTLE_S:
                return
            receiver.ring.wait(0.01)

    def _add(self, batch: Received, frames: list[bytes]) -> None:
        mine = ((batch.src == self._src) & (batch.dst == self._dst)).tolist()
        for ours, port, psn, frame in zip(mine, batch.src_port.tolist(), batch.psn.tolist(), frames, strict=True):
            if not ours:
                continue
            if not icrc_is_right(frame):
                self.bad += 1
                continue
            key = port << 24 | psn
            if key not in self._seen:
                self._seen.add(key)
                self.arrived += 1
            if psn < self._highest.get(port, -1):
                self.disorder += 1
            self._highest[port] = max(psn, self._highest.get(port, -1))


@dataclass
class Tally:
    """Packets received, flow by flow."""

    packets: int = 0
    flows: dict[tuple[bytes, bytes, int, str], list[int]] = field(default_factory=dict)

    def add(self, frame: bytes, port: str) -> None:
        """Count a frame that came in by a port."""
        header = parse(frame)
        if header is None:
            return
        self.packets += 1
        counts = self.flows.setdefault((*header.key, port), [header.dscp, 0, 0, 0])
        counts[1] += 1
        counts[2] += header.ecn == 3
        counts[3] += not icrc_is_right(frame)

    def rows(self) -> list[dict[str, Any]]:
        """A row per flow."""
        return [
            {
                "src": str(ip_address(src)), "dst": str(ip_address(dst)), "src_port": src_port, "port": port,
                "dscp": counts[0], "packets": counts[1], "ce": counts[2], "bad_icrc": counts[3],
            }
            for (src, dst, src_port, port), counts in self.flows.items()
        ]  # fmt: skip
