"""What each switch is: its tier, scalable unit, rail and plane, where cables make it evident. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from fabtest.importer.cables import Cabling
from fabtest.importer.files import GivenSwitch
from fabtest.lint.run import natural
from fabtest.model import Tier
from fabtest.sonic.config_db import DEVICE_TYPE

#: DEVICE_METADATA type -> tier, where no cable tells.
TIER_OF_TYPE = {kind.lower(): tier for tier, kind in DEVICE_TYPE.items()}


@dataclass(frozen=True, slots=True)
class Role:
    """Of one switch; unit and rail are None where there are none."""

    tier: Tier
    plane: int = 1
    unit: int | None = None
    rail: int | None = None


@dataclass(slots=True)
class Roles:
    """Of every switch, and the unit of every server."""

    switch: dict[str, Role] = field(default_factory=dict)
    unit_of_server: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_roles(switches: Sequence[GivenSwitch], cabling: Cabling) -> Roles:
    """Leaves have servers; each tier above is one cable further from them. Servers that share leaves are a unit."""
    result = Roles()
    names = [s.name for s in switches]
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(names)
    nics: dict[str, dict[int, str]] = defaultdict(dict)
    for c in cabling.cables:
        if c.a in graph and c.b in graph:
            graph.add_edge(c.a, c.b)
        else:
            nics[c.a][int(c.a_port.removeprefix("eth"))] = c.b
    leaves = {leaf for ports in nics.values() for leaf in ports.values()}
    tiers = _tiers(switches, graph, leaves, result.notes)
    planes = _planes(graph, nics)
    rails = _rails(nics, planes)
    units = _pods(graph, tiers, planes) or (_units(leaves, nics) if rails else {})
    for name in names:
        result.switch[name] = Role(tiers[name], planes.get(name, 1), units.get(name), rails.get(name))
    for server, ports in nics.items():
        unit = units.get(next(iter(ports.values())))
        if unit is not None:
            result.unit_of_server[server] = unit
    return result


def _tiers(
    switches: Sequence[GivenSwitch], graph: nx.Graph[str], leaves: set[str], notes: list[str]
) -> dict[str, Tier]:
    found: dict[str, Tier] = {}
    distance: dict[str, int] = {}
    frontier = set(leaves)
    while frontier:
        distance |= {name: max(distance.values(), default=-1) + 1 for name in frontier}
        frontier = {far for name in frontier for far in graph[name] if far not in distance}
    for s in switches:
        said = str(s.config.get("DEVICE_METADATA", {}).get("localhost", {}).get("type", ""))
        by_type = TIER_OF_TYPE.get(said.lower())
        by_cable = Tier(min(distance[s.name] + 1, 3)) if s.name in distance else None
        if by_cable is not None and by_type is not None and by_cable is not by_type:
            # A leaf without servers yet is one cable above a spine, as a super-spine is.
            if by_type is Tier.LEAF and by_cable is not Tier.LEAF:
                by_cable = by_type
            else:
                notes.append(
                    f"{s.name}: DEVICE_METADATA type is {said}, and by its cables it is a {by_cable.name.lower()}"
                )
        found[s.name] = by_cable or by_type or Tier.LEAF
    return found


def _planes(graph: nx.Graph[str], nics: dict[str, dict[int, str]]) -> dict[str, int]:
    """Parts of the fabric that share no switch, and of which every server has several ports in each: planes.

    A part where each server has one port only is a rail without spines across.
    """
    parts = sorted(nx.connected_components(graph), key=lambda part: natural(min(part, key=natural)))
    if len(parts) < 2:
        return {}
    part_of = {name: n for n, part in enumerate(parts, 1) for name in part}
    for ports in nics.values():
        per_part = [sum(part_of[leaf] == n for leaf in ports.values()) for n in range(1, len(parts) + 1)]
        if min(per_part) < 2 or len(set(per_part)) > 1:
            return {}
    return part_of if nics else {}


def _pods(graph: nx.Graph[str], tiers: dict[str, Tier], planes: dict[str, int]) -> dict[str, int]:
    """Under super-spines: leaves and spines that reach each other without them, numbered within their plane."""
    below = graph.subgraph(name for name, tier in tiers.items() if tier is not Tier.SUPERSPINE)
    if len(below) == len(graph):
        return {}
    parts = sorted(nx.connected_components(below), key=lambda part: natural(min(part, key=natural)))
    found: dict[str, int] = {}
    count: dict[int, int] = defaultdict(int)
    for part in parts:
        plane = planes.get(next(iter(part)), 1)
        count[plane] += 1
        found |= dict.fromkeys(part, count[plane])
    return found


def _units(leaves: set[str], nics: dict[str, dict[int, str]]) -> dict[str, int]:
    """Leaves that share servers, in natural order."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(leaves)
    for ports in nics.values():
        nx.add_path(graph, ports.values())
    parts = sorted(nx.connected_components(graph), key=lambda part: natural(min(part, key=natural)))
    return {name: n for n, part in enumerate(parts, 1) for name in part}


def _rails(nics: dict[str, dict[int, str]], planes: dict[str, int]) -> dict[str, int]:
    """Leaf -> rail, where port r (of each plane) of every server leads to the leaf of rail r of its unit."""
    count = max(planes.values(), default=1)
    numbers: dict[str, set[int]] = defaultdict(set)
    widest = 0
    for ports in nics.values():
        widest = max(widest, len(set(ports.values())))
        if len(set(ports.values())) != len(ports):
            return {}
        for number, leaf in ports.items():
            numbers[leaf].add((number - 1) // count + 1)
    if widest // count < 2 or any(len(found) != 1 for found in numbers.values()):
        return {}
    return {leaf: next(iter(found)) for leaf, found in numbers.items()}
