"""Nodes and links as listed; only the order and the free ports are filled in."""

from __future__ import annotations

from collections import Counter

from fabtest.model import Tier
from fabtest.topology.schema import CustomSpec
from fabtest.topology.shapes.tiers import switch_kind
from fabtest.topology.units import parse_breakout, parse_speed
from fabtest.topology.wiring import Cable, ServerDecl, SwitchDecl, Wiring


def custom(spec: CustomSpec) -> Wiring:
    """A link's end nearer to the servers becomes its ``a``. Unknown nodes are left for ``load`` to report."""
    wiring = Wiring()
    ordinals: Counter[tuple[Tier, int]] = Counter()
    tiers: dict[str, tuple[Tier, int, int | None]] = {}
    for i, node in enumerate(spec.nodes):
        tier = Tier[node.tier.upper()]
        model = node.model
        down = parse_breakout(model.downlink_breakout) if model.downlink_breakout else None
        wiring.switches.append(
            SwitchDecl(
                node.name, tier, node.plane, switch_kind(model), ordinals[tier, node.plane], unit=node.unit,
                rail=node.rail, asn=node.asn, down_breakout=down, up_breakout=down, at=("nodes", i),
            )
        )  # fmt: skip
        ordinals[tier, node.plane] += 1
        tiers.setdefault(node.name, (tier, node.plane, node.rail))
    for i, server in enumerate(spec.servers):
        wiring.servers.append(ServerDecl(server.name, i + 1, server.unit, server.gpus_per_nic, ("servers", i)))
        tiers.setdefault(server.name, (Tier.SERVER, 0, None))
    slots: Counter[str] = Counter()
    for i, link in enumerate(spec.links):
        ends = [_split(link.a), _split(link.b)]
        ends.sort(key=lambda end: tiers.get(end[0], (Tier.SERVER, 0, None))[0])
        (a, a_port), (b, b_port) = ends
        tier = tiers.get(a, (Tier.SERVER, 0, None))[0]
        _, plane, rail = tiers.get(b if tier is Tier.SERVER else a, (tier, 1, None))
        wiring.cables.append(
            Cable(
                a, b, tier, link.length, max(plane, 1), rail, a_port, b_port, slot=slots[b], uplink=slots[a],
                speed=parse_speed(link.speed) if link.speed else None, mtu=link.mtu, at=("links", i),
            )
        )  # fmt: skip
        slots[a] += 1
        slots[b] += 1
    return wiring


def _split(text: str) -> tuple[str, str | None]:
    node, _, port = text.partition(":")
    return node, port or None
