"""So many packets from here to there, and what arrived."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from typing import Any

from fabtest.errors import TrafficError, UsageError
from fabtest.roce.capture import Capture, listen
from fabtest.roce.frames import Flow, icrc_is_right, parse
from fabtest.roce.send import NicAddress, Sender
from fabtest.runtime.base import Lab

FIRST_SRC_PORT, MOST_FLOWS = 0xC000, 0x4000
SETTLE_S = 0.3


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
    ports = [FIRST_SRC_PORT + n for n in range(flows)]
    received: dict[bytes, set[tuple[int, int]]] = {}
    highest: dict[int, int] = {}
    bad = disorder = arrived = overrun = 0
    listener = listen(lab.node(dst.server).netns, dst.address.version)

    def drain(capture: Capture) -> bool:
        nonlocal bad, disorder, arrived
        got = False
        for frame, _ in capture.frames():
            header = parse(frame)
            if header is None or header.src != src.address.packed or header.dst != dst.address.packed:
                continue
            got = True
            if not icrc_is_right(frame):
                bad += 1
                continue
            seen = received.setdefault(header.src, set())
            if (header.src_port, header.psn) not in seen:
                seen.add((header.src_port, header.psn))
                arrived += 1
            if header.psn < highest.get(header.src_port, -1):
                disorder += 1
            highest[header.src_port] = max(header.psn, highest.get(header.src_port, -1))
        return got

    try:
        with Capture(lab.node(dst.server).netns, whole=True) as capture, Sender(lab, src) as sender:
            template = sender.template(Flow(src.address, dst.address, ports[0], dscp=dscp), payload)
            start = time.monotonic()
            for n in range(count):
                if n % 200 == 0:
                    drain(capture)
                if pps and start + n / pps > time.monotonic():
                    drain(capture)
                    time.sleep(max(0.0, start + n / pps - time.monotonic()))
                sender.send(template.frame(n // flows, ports[n % flows]))
            seconds = time.monotonic() - start
            last = time.monotonic()
            while arrived + bad < count and time.monotonic() - last < SETTLE_S:
                if drain(capture):
                    last = time.monotonic()
                time.sleep(0.005)
            overrun = capture.dropped()
    finally:
        listener.close()
    if overrun and arrived + bad < count:
        raise TrafficError(
            f"this machine lost {overrun} captured frames: nothing can be said", hint="send slower: --pps"
        )
    return Transfer(str(src), str(dst), flows, count, arrived, count - arrived - bad, bad, disorder, seconds)


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
