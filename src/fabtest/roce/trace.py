"""Which way flows take: every switch records the port a flow's packet came in by, so the path is seen, not inferred."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fabtest.model import Endpoint
from fabtest.roce.capture import Capture, close_all, listen
from fabtest.roce.compose import Composer, Port
from fabtest.roce.frames import Flow, Template, parse
from fabtest.roce.frames import header as frame_header
from fabtest.roce.opcodes import Op, Transport
from fabtest.roce.send import NicAddress, Sender
from fabtest.runtime.base import Lab
from fabtest.runtime.namespaces import inside

BATCH = 200
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


def trace(lab: Lab, probes: Iterable[Probe], switches: Iterable[str] | None = None) -> Paths:
    """Send the probes and return their paths. Only the switches named record (default: all)."""
    probes = list(probes)
    names = list(switches) if switches is not None else [s.name for s in lab.fabric.switches]
    paths = Paths()
    recorders = {name: Capture(lab.node(name).netns) for name in names}
    servers = {p.dst.server for p in probes}
    receivers = {name: Capture(lab.node(name).netns) for name in servers}
    family = probes[0].src.address.version if probes else 4
    listeners = [listen(lab.node(name).netns, family) for name in servers]
    try:
        for probe in probes:
            with Sender(lab, probe.src) as sender:
                template = sender.template(
                    Flow(probe.src.address, probe.dst.address, probe.src_ports[0], dscp=probe.dscp)
                )
                _send(template, sender, probe, paths, recorders, receivers)
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            if _drain(paths, recorders, receivers):
                end = time.monotonic() + SETTLE_S
            time.sleep(0.01)
        paths.overrun = sum(c.dropped() for c in (*recorders.values(), *receivers.values()))
    finally:
        close_all([*recorders.values(), *receivers.values()])
        for listener in listeners:
            listener.close()
    return paths


def _send(
    template: Template, sender: Sender, probe: Probe, paths: Paths, recorders: dict[str, Capture],
    receivers: dict[str, Capture],
) -> None:  # fmt: skip
    for psn in range(probe.repeat):
        for src_port in probe.src_ports:
            sender.send(template.frame(psn, src_port))
            paths.sent += 1
            if paths.sent % BATCH == 0:
                _drain(paths, recorders, receivers)


def _drain(paths: Paths, recorders: dict[str, Capture], receivers: dict[str, Capture]) -> int:
    count = 0
    for name, capture in recorders.items():
        for frame, port in capture.frames():
            # A frame for an SVI is seen twice: on the port it came in by, and on the VLAN.
            header = parse(frame) if port.startswith("Eth") else None
            if header is not None:
                count += 1
                paths.ingress.setdefault(header.key, {}).setdefault(name, []).append(port)
    for capture in receivers.values():
        for frame, _ in capture.frames():
            header = parse(frame)
            if header is not None:
                count += 1
                paths.delivered[header.key] = paths.delivered.get(header.key, 0) + 1
    return count


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
    names = [s.name for s in lab.fabric.switches]
    recorders = {name: Capture(lab.node(name).netns) for name in names}
    receivers = {name: Capture(lab.node(name).netns) for name in {p.receiver for p in probes}}
    family = probes[0].flow.src.version if probes else 4
    listeners = [listen(lab.node(name).netns, family) for name in receivers]
    ports = {name: Port(lab.node(name).netns) for name in {p.server for p in probes}}
    composer = Composer(family)
    number = {name: composer.add_port(port) for name, port in ports.items()}
    index: dict[tuple[str, str], int] = {}
    ingress: dict[int, dict[str, list[str]]] = {}
    arrived: set[int] = set()

    def drain() -> bool:
        got = False
        for name, capture in recorders.items():
            for frame, port in capture.frames():
                header = parse(frame) if port.startswith("Eth") else None
                if header is not None and header.opcode == PROBE:
                    got = True
                    ingress.setdefault(header.psn, {}).setdefault(name, []).append(port)
        for capture in receivers.values():
            for frame, _ in capture.frames():
                header = parse(frame)
                if header is not None and header.opcode == PROBE:
                    got = True
                    arrived.add(header.psn)
        return got

    try:
        for n, probe in enumerate(probes):
            at = (probe.server, probe.interface)
            if at not in index:
                with inside(lab.node(probe.server).netns):
                    index[at] = socket.if_nametoindex(probe.interface)
            src_mac, dst_mac = (bytes.fromhex(m.replace(":", "")) for m in (probe.src_mac, probe.dst_mac))
            head = frame_header(probe.flow, src_mac, dst_mac, PROBE, 16, extended=bytes(4))
            composer.send([composer.template(head, 16, number[probe.server], index[at])], [n], [0])
            if n % 50 == 49:
                drain()
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            if drain():
                end = time.monotonic() + SETTLE_S
            time.sleep(0.005)
        overrun = sum(c.dropped() for c in (*recorders.values(), *receivers.values()))
    finally:
        close_all([*recorders.values(), *receivers.values()])
        for listener in listeners:
            listener.close()
        for port in ports.values():
            port.close()
    return ingress, len(arrived), overrun
