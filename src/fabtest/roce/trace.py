"""Which way flows take: every switch records the port a flow's packet came in by, so the path is seen, not inferred."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fabtest.model import Endpoint
from fabtest.roce.capture import Capture, close_all, listen
from fabtest.roce.frames import Flow, Template, parse
from fabtest.roce.send import NicAddress, Sender
from fabtest.runtime.base import Lab

BATCH = 200
SETTLE_S = 0.15
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
