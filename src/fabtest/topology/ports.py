"""Plugging cables into ports: SONiC's ``Ethernet<n>`` numbering, lanes, aliases and break-out.

A front-panel port i (from 0) with L lanes is ``Ethernet<i*L>`` and has lanes first+i*L ... ; broken out N ways its
children are ``Ethernet<i*L + k*L/N>`` with L/N lanes each, alias ``etp<i+1>a`` and on, and subport k+1 (SONiC
platform.json). Downlinks fill ports from the front, uplinks take the last ports, so neither moves when servers or
units are added.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fabtest.errors import Problem
from fabtest.model import Port, SwitchKind
from fabtest.topology.source import Source
from fabtest.topology.units import format_speed
from fabtest.topology.wiring import Cable, SwitchDecl, Wiring

_ETHERNET = re.compile(r"Ethernet(\d{1,4})\Z")
_ETH = re.compile(r"eth([1-9]\d{0,2})\Z")


def front_panel(kind: SwitchKind, index: int, breakout: tuple[int, int] | None) -> tuple[Port, ...]:
    """The ports of front-panel port ``index`` (from 0): itself, or its break-out children."""
    lanes = kind.lanes_per_port
    first = kind.first_lane + index * lanes
    ways, speed = breakout or (1, kind.port_speed)
    each = lanes // ways
    return tuple(
        Port(
            name=f"Ethernet{index * lanes + k * each}",
            alias=f"etp{index + 1}" + (chr(ord("a") + k) if ways > 1 else ""),
            index=index + 1,
            lanes=tuple(range(first + k * each, first + (k + 1) * each)),
            speed=speed,
            subport=k + 1 if ways > 1 else 0,
            breakout=f"{ways}x{format_speed(speed)}",
            parent=f"Ethernet{index * lanes}",
            fec=kind.fec,
        )
        for k in range(ways)
    )


@dataclass(slots=True)
class Plugged:
    """Ports of every switch, and for every cable (by position) the two port names, its speed."""

    ports: dict[str, tuple[Port, ...]] = field(default_factory=dict)
    ends: list[tuple[str, str, int]] = field(default_factory=list)


def plug(wiring: Wiring, source: Source) -> tuple[Plugged, list[Problem]]:
    """Give every cable its two ports. Faults (radix, break-out, two cables in one port, speeds) are returned."""
    problems: list[Problem] = []
    down: dict[str, list[int]] = {s.name: [] for s in wiring.switches}
    up: dict[str, list[int]] = {s.name: [] for s in wiring.switches}
    named = {s.name: s for s in wiring.switches}
    for cable in wiring.cables:
        if cable.a in named:
            up[cable.a].append(cable.uplink)
        if cable.b in named:
            down[cable.b].append(cable.slot)
    plugged = Plugged()
    panels: dict[str, _Panel] = {}
    reported: set[tuple[object, ...]] = set()
    for decl in wiring.switches:
        panel = _Panel(decl, max(up[decl.name], default=-1) + 1)
        panels[decl.name] = panel
        for fault in panel.faults(max(down[decl.name], default=-1) + 1, is_custom(source)):
            if (decl.at, fault) not in reported:
                reported.add((decl.at, fault))
                problems.append(source.problem(decl.at, f"{decl.name}: {fault[0]}", fault[1]))
    if problems:
        return plugged, problems
    plugged.ports = {name: panel.all_ports() for name, panel in panels.items()}
    used: dict[tuple[str, str], Cable] = {}
    for cable in wiring.cables:
        a_port, a_speed = _port_of(cable.a, cable.a_port, cable, panels, used, problems, source, uplink=True)
        b_port, b_speed = _port_of(cable.b, cable.b_port, cable, panels, used, problems, source, uplink=False)
        speeds = {s for s in (a_speed, b_speed, cable.speed) if s}
        if len(speeds) > 1:
            said = " and ".join(
                f"{node}:{port} has {format_speed(s)}"
                for node, port, s in ((cable.a, a_port, a_speed), (cable.b, b_port, b_speed))
                if s
            )
            what = f"speeds do not match: {said}" + (f", the link {format_speed(cable.speed)}" if cable.speed else "")
            mismatch = (cable.at, what if is_custom(source) else cable.tier.name)
            if mismatch not in reported:
                reported.add(mismatch)
                remedy = "set a break-out or port_speed so that both ends have the same"
                problems.append(source.problem(cable.at, what, remedy))
        plugged.ends.append((a_port, b_port, min(speeds, default=0)))
    return plugged, problems


def is_custom(source: Source) -> bool:
    """Whether the file lists its nodes one by one."""
    return isinstance(source.data, dict) and source.data.get("kind") == "custom"


class _Panel:
    """The front panel of one switch while cables are plugged."""

    def __init__(self, decl: SwitchDecl, uplinks: int) -> None:
        self.decl = decl
        self.uplinks = uplinks
        self.down_ways = decl.down_breakout[0] if decl.down_breakout else 1
        self.up_ways = decl.up_breakout[0] if decl.up_breakout else 1
        self.up_panels = -(-uplinks // self.up_ways)
        self.first_up = decl.kind.ports - self.up_panels
        self._by_name: dict[str, Port] | None = None

    def faults(self, downlinks: int, custom: bool) -> list[tuple[str, str]]:
        found = []
        kind = self.decl.kind
        for breakout in {self.decl.down_breakout, self.decl.up_breakout} - {None}:
            assert breakout is not None
            ways, speed = breakout
            if kind.lanes_per_port % ways:
                found.append((f"{ways} ways do not divide {kind.lanes_per_port} lanes", "set lanes_per_port"))
            if ways * speed > kind.port_speed:
                mode = f"{ways}x{format_speed(speed)}"
                found.append((f"break-out {mode} is faster than a {format_speed(kind.port_speed)} port", ""))
        if custom:
            have = kind.ports * self.down_ways
            if max(downlinks, self.uplinks) > have:
                found.append((f"{max(downlinks, self.uplinks)} links for {have} ports", "raise model.ports"))
        else:
            down_panels = -(-downlinks // self.down_ways)
            if down_panels + self.up_panels > kind.ports:
                found.append(
                    (
                        f"too many links for the radix: {downlinks} downlinks and {self.uplinks} uplinks need "
                        f"{down_panels + self.up_panels} front-panel ports, the switch has {kind.ports}",
                        "raise ports, break ports out, or use fewer links",
                    )
                )
        return found

    def all_ports(self) -> tuple[Port, ...]:
        out: list[Port] = []
        for i in range(self.decl.kind.ports):
            up = i >= self.first_up and self.up_panels > 0
            out += front_panel(self.decl.kind, i, self.decl.up_breakout if up else self._down_mode(i))
        return tuple(out)

    def _down_mode(self, index: int) -> tuple[int, int] | None:
        return self.decl.down_breakout

    def downlink(self, slot: int) -> Port:
        return front_panel(self.decl.kind, slot // self.down_ways, self.decl.down_breakout)[slot % self.down_ways]

    def uplink(self, number: int) -> Port:
        index = self.first_up + number // self.up_ways
        return front_panel(self.decl.kind, index, self.decl.up_breakout)[number % self.up_ways]

    def named(self, name: str) -> Port | None:
        if self._by_name is None:
            self._by_name = {p.name: p for p in self.all_ports()}
        return self._by_name.get(name)

    def names(self) -> list[str]:
        return [p.name for p in self.all_ports()]


def _port_of(
    node: str, wanted: str | None, cable: Cable, panels: dict[str, _Panel], used: dict[tuple[str, str], Cable],
    problems: list[Problem], source: Source, *, uplink: bool,
) -> tuple[str, int]:  # fmt: skip
    """The port and its speed (0: a server's, which takes the other end's)."""
    panel = panels.get(node)
    speed = 0
    if panel is None:
        port = wanted or next(f"eth{i}" for i in range(1, 1000) if (node, f"eth{i}") not in used)
        if not _ETH.match(port):
            problems.append(source.problem(cable.at, f"{node}:{port} is not a NIC port", "servers have eth1, eth2, …"))
    elif is_custom(source):
        names = panel.names()
        port = wanted or next((n for n in names if (node, n) not in used), "")
        found = panel.named(port)
        if found is None:
            span = f"{names[0]} … {names[-1]}" if names else "none"
            what = f"{node} has no port {port}" if port else f"{node} has no free port"
            problems.append(source.problem(cable.at, what, f"its ports are {span}"))
        else:
            speed = found.speed
    else:
        found = panel.uplink(cable.uplink) if uplink else panel.downlink(cable.slot)
        port, speed = found.name, found.speed
    if (node, port) in used:
        other = source.marks.get(used[node, port].at, (0, 0))[0]
        problems.append(source.problem(cable.at, f"two links on {node}:{port}", f"the other stands in line {other}"))
    used[node, port] = cable
    return port, speed
