"""Which way flows take: every switch records the port a flow's packet came in by, so the path is seen, not inferred."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fabtest.model import Endpoint
from fabtest.roce.capture import Capture, close_all
from fabtest.roce.compose import Composer, Port
from fabtest.roce.frames import Flow, RoceHeader, header, parse
from fabtest.roce.opcodes import EXTENSION_BYTES, Op, Transport
from fabtest.roce.receiver import Receiver, receiver_at
from fabtest.roce.send import NicAddress, Sender
from fabtest.runtime.base import Lab
from fabtest.runtime.namespaces import inside

#: Packets that are sent between two looks at what was recorded.
BATCH, QP_BATCH = 200, 50
SETTLE_S = 0.15
#: Opcode of queue-pair probes: nothing answers unreliable service, and no flow of a test uses it.
PROBE = int(Transport.UC | Op.SEND_ONLY_WITH_IMMEDIATE)
Key = tuple[bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class Probe:
    """Packets of many flows from one NIC to another: one flow per UDP source port, ``repeat`` packets each."""

    src: NicAddress
    dst: NicAddress
    src_ports: Sequence[int]
    repeat: int = 1
    dscp: int = 26


@dataclass
class Paths:
    """What was seen. ``ingress``: flow -> switch -> ports its packets came in by. ``delivered``: packets per flow."""

    sent: int = 0
    ingress: dict[Key, dict[str, list[str]]] = field(default_factory=dict)
    delivered: dict[Key, int] = field(default_factory=dict)
    overrun: int = 0

    def hops(self, key: Key) -> int:
        """Switches a flow crossed."""
        return len(self.ingress.get(key, {}))


def flow_key(probe: Probe, src_port: int) -> Key:
    """The key of one flow of a probe."""
    return probe.src.address.packed, probe.dst.address.packed, src_port


class _Recorders:
    """Captures on switches and receivers at servers, read while packets are on their way.

    ``passed`` is called for each packet with the switch, the port it came in by, and its header; ``arrived`` for each
    that came to a server.
    """

    def __init__(
        self, lab: Lab, switches: Iterable[str], servers: Iterable[str], passed: Callable[[str, str, RoceHeader], None],
        arrived: Callable[[RoceHeader], None],
    ) -> None:  # fmt: skip
        self._passed, self._arrived = passed, arrived
        self._captures: dict[str, Capture] = {}
        self._receivers: list[Receiver] = []
        try:
            for name in switches:
                self._captures[name] = Capture(lab.node(name).netns)
            for name in servers:
                self._receivers.append(receiver_at(lab, name, sample=0))
        except BaseException:
            self.close()
            raise

    def drain(self) -> bool:
        """Read what waits; whether there was something."""
        got = False
        for name, capture in self._captures.items():
            for frame, port in capture.frames():
                # A frame for an SVI is seen twice: on the port it came in by, and on the VLAN.
                found = parse(frame) if port.startswith("Eth") else None
                if found is not None:
                    got = True
                    self._passed(name, port, found)
        for receiver in self._receivers:
            while receiver.take() is not None:
                for found in map(parse, receiver.ring.frames()):
                    if found is not None:
                        got = True
                        self._arrived(found)
                receiver.ring.release()
        return got

    def settle(self) -> None:
        """Read until nothing has come for a while."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            if self.drain():
                end = time.monotonic() + SETTLE_S
            time.sleep(0.005)

    def overrun(self) -> int:
        """Packets this machine was too slow to record."""
        return sum(c.dropped() for c in self._captures.values()) + sum(r.ring.dropped() for r in self._receivers)

    def close(self) -> None:
        """Close all."""
        close_all(self._captures.values())
        for receiver in self._receivers:
            receiver.close()

    def __enter__(self) -> _Recorders:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def trace(lab: Lab, probes: Iterable[Probe], switches: Iterable[str] | None = None) -> Paths:
    """Send the probes and return their paths. Only the switches named record (default: all)."""
    probes = list(probes)
    names = list(switches) if switches is not None else [s.name for s in lab.fabric.switches]
    paths = Paths()

    def passed(switch: str, port: str, found: RoceHeader) -> None:
        paths.ingress.setdefault(found.key, {}).setdefault(switch, []).append(port)

    def arrived(found: RoceHeader) -> None:
        paths.delivered[found.key] = paths.delivered.get(found.key, 0) + 1

    servers = dict.fromkeys(p.dst.server for p in probes)
    family = probes[0].src.address.version if probes else 4
    with Sender(lab, family) as sender, _Recorders(lab, names, servers, passed, arrived) as recorders:
        for probe in probes:
            flows = [
                sender.flow(probe.src, Flow(probe.src.address, probe.dst.address, port, dscp=probe.dscp))
                for port in probe.src_ports
            ]
            for psn in range(probe.repeat):
                for start in range(0, len(flows), BATCH):
                    some = flows[start : start + BATCH]
                    sender.send(some, [psn] * len(some))
                    paths.sent += len(some)
                    recorders.drain()
        recorders.settle()
        paths.overrun = recorders.overrun()
    return paths


def uplink_taken(lab: Lab, paths: Paths, key: Key, switch: str) -> list[Endpoint]:
    """The ports by which a flow's packets left a switch, from where its neighbours saw them come in."""
    found = []
    for link in lab.fabric.links_of[switch]:
        far = link.other(switch)
        ports = paths.ingress.get(key, {}).get(far.node, [])
        found += [link.end(switch)] * ports.count(far.port)
    return found


@dataclass(frozen=True, slots=True)
class QpProbe:
    """One packet of a queue pair: its own addresses, UDP source port and destination QP."""

    server: str
    interface: str
    src_mac: str
    dst_mac: str
    flow: Flow
    receiver: str


def trace_qps(lab: Lab, probes: Sequence[QpProbe]) -> tuple[dict[int, dict[str, list[str]]], int, int]:
    """Which way each queue pair's packets take: probe number -> switch -> ports it came in by; how many of the probes
    arrived at their receiver; and frames this machine lost. The PSN is the probe's number."""
    ingress: dict[int, dict[str, list[str]]] = {}
    arrivals: set[int] = set()

    def passed(switch: str, port: str, found: RoceHeader) -> None:
        if found.opcode == PROBE:
            ingress.setdefault(found.psn, {}).setdefault(switch, []).append(port)

    def arrived(found: RoceHeader) -> None:
        if found.opcode == PROBE:
            arrivals.add(found.psn)

    composer = Composer(probes[0].flow.src.version if probes else 4)
    ports = {name: Port(lab.node(name).netns) for name in {p.server for p in probes}}
    number = {name: composer.add_port(port) for name, port in ports.items()}
    index: dict[tuple[str, str], int] = {}
    servers = dict.fromkeys(p.receiver for p in probes)
    try:
        with _Recorders(lab, [s.name for s in lab.fabric.switches], servers, passed, arrived) as recorders:
            for n, probe in enumerate(probes):
                at = (probe.server, probe.interface)
                if at not in index:
                    with inside(lab.node(probe.server).netns):
                        index[at] = socket.if_nametoindex(probe.interface)
                src_mac, dst_mac = (bytes.fromhex(m.replace(":", "")) for m in (probe.src_mac, probe.dst_mac))
                extended = bytes(EXTENSION_BYTES[PROBE])
                head = header(probe.flow, src_mac, dst_mac, PROBE, 16, extended=extended)
                composer.send([composer.template(head, 16, number[probe.server], index[at])], [n], [0])
                if n % QP_BATCH == QP_BATCH - 1:
                    recorders.drain()
            recorders.settle()
            overrun = recorders.overrun()
    finally:
        for port in ports.values():
            port.close()
    return ingress, len(arrivals), overrun
