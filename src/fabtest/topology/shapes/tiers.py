"""What all generated shapes share: spines over groups of leaves, and super-spines over the spines."""

from __future__ import annotations

from collections.abc import Sequence

from fabtest.model import SwitchKind, Tier
from fabtest.topology.schema import GeneratedSpec, SwitchSpec
from fabtest.topology.units import DEFAULT_LANES, parse_breakout, parse_speed
from fabtest.topology.wiring import Cable, SwitchDecl, Wiring


def switch_kind(spec: SwitchSpec) -> SwitchKind:
    """The model's hardware of a specification; lanes default by speed."""
    speed = parse_speed(spec.port_speed)
    lanes = spec.lanes_per_port or DEFAULT_LANES.get(speed // 10**9, 8)
    return SwitchKind(spec.hwsku, spec.platform, spec.ports, speed, lanes, spec.fec, spec.first_lane)


def tier_spec(spec: GeneratedSpec, tier: Tier) -> SwitchSpec:
    """The hardware asked for in a tier."""
    chosen = {Tier.SPINE: spec.switches.spine, Tier.SUPERSPINE: spec.switches.superspine}.get(tier)
    return chosen or spec.switches.leaf


def declare(
    spec: GeneratedSpec,
    name: str,
    tier: Tier,
    plane: int,
    ordinal: int,
    *,
    group: int = 0,
    unit: int | None = None,
    rail: int | None = None,
) -> SwitchDecl:
    """A switch of a tier with that tier's hardware."""
    hardware = tier_spec(spec, tier)
    down = parse_breakout(hardware.downlink_breakout) if hardware.downlink_breakout else None
    up = parse_breakout(hardware.uplink_breakout) if hardware.uplink_breakout else None
    return SwitchDecl(
        name, tier, plane, switch_kind(hardware), ordinal, group, unit, rail, down_breakout=down, up_breakout=up,
        at=("switches", tier.name.lower()),
    )  # fmt: skip


def add_tiers(
    wiring: Wiring, spec: GeneratedSpec, plane: int, prefix: str, pods: Sequence[Sequence[SwitchDecl]], *,
    label_pods: bool = False,
) -> None:  # fmt: skip
    """Put ``spec.spines`` spines over every pod of leaves and, if asked, super-spines over all of them.

    A spine's downlinks are in leaf order and a super-spine's in (pod, spine) order, so a pod or leaf added at the
    end takes ports that were free.
    """
    spines: list[list[SwitchDecl]] = []
    for p, leaves in enumerate(pods):
        row = [
            declare(
                spec, f"{prefix}spine{p * spec.spines + s + 1}", Tier.SPINE, plane, p * spec.spines + s, group=p,
                unit=p + 1 if label_pods else None,
            )
            for s in range(spec.spines)
        ]  # fmt: skip
        spines.append(row)
        wiring.switches += row
        for number, leaf in enumerate(leaves):
            for s, spine in enumerate(row):
                for k in range(spec.links_per_spine):
                    wiring.cables.append(
                        Cable(
                            leaf.name, spine.name, Tier.LEAF, spec.cables.leaf_spine, plane, leaf.rail,
                            slot=number * spec.links_per_spine + k, uplink=s * spec.links_per_spine + k,
                            at=("spines",),
                        )
                    )  # fmt: skip
    supers = [declare(spec, f"{prefix}superspine{i + 1}", Tier.SUPERSPINE, plane, i) for i in range(spec.superspines)]
    wiring.switches += supers
    groups = spec.superspine_groups
    for p, row in enumerate(spines):
        for s, spine in enumerate(row):
            mine = [sup for i, sup in enumerate(supers) if i % groups == s % groups]
            peers = [i for i in range(spec.spines) if i % groups == s % groups]
            for j, sup in enumerate(mine):
                for k in range(spec.links_per_superspine):
                    slot = (p * len(peers) + peers.index(s)) * spec.links_per_superspine + k
                    wiring.cables.append(
                        Cable(
                            spine.name, sup.name, Tier.SPINE, spec.cables.spine_superspine, plane,
                            slot=slot, uplink=j * spec.links_per_superspine + k, at=("superspines",),
                        )
                    )  # fmt: skip
