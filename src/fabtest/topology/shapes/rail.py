"""Rails: NIC r of every server of a scalable unit on leaf r of the unit; with spines, without, and in planes.

Sources: NVIDIA reference architectures (rail-optimised), arXiv 2307.12169 (rail-only), Alibaba HPN, SIGCOMM 2024
(two planes).
"""

from __future__ import annotations

from fabtest.model import Tier
from fabtest.topology.schema import DualPlaneSpec, RailOnlySpec, RailSpec
from fabtest.topology.shapes.tiers import add_tiers, declare
from fabtest.topology.wiring import Cable, ServerDecl, SwitchDecl, Wiring


def rail(spec: RailSpec) -> Wiring:
    """Spines join all leaves; with super-spines, spines join the leaves of their unit."""
    wiring = _servers(spec)
    _plane(wiring, spec, plane=1, planes=1)
    return wiring


def rail_only(spec: RailOnlySpec) -> Wiring:
    """Spines, if any, join the leaves of one rail only."""
    wiring = _servers(spec)
    units = _leaves(wiring, spec, plane=1, planes=1)
    if spec.spines:
        add_tiers(wiring, spec, 1, "", [[unit[r] for unit in units] for r in range(spec.rails)])
    return wiring


def dual_plane(spec: DualPlaneSpec) -> Wiring:
    """A whole rail fabric per plane; a NIC has one port in each."""
    wiring = _servers(spec)
    for plane in range(1, spec.planes + 1):
        _plane(wiring, spec, plane, spec.planes)
    return wiring


_Rails = RailSpec | RailOnlySpec | DualPlaneSpec


def _servers(spec: _Rails) -> Wiring:
    wiring = Wiring()
    for index in range(1, spec.units * spec.servers_per_unit + 1):
        unit = (index - 1) // spec.servers_per_unit + 1
        wiring.servers.append(ServerDecl(f"gpu{index}", index, unit, spec.server.gpus_per_nic))
    return wiring


def _plane(wiring: Wiring, spec: RailSpec | DualPlaneSpec, plane: int, planes: int) -> None:
    units = _leaves(wiring, spec, plane, planes)
    prefix = f"p{plane}-" if planes > 1 else ""
    pods = units if spec.superspines else [[leaf for unit in units for leaf in unit]]
    add_tiers(wiring, spec, plane, prefix, pods, label_pods=bool(spec.superspines))


def _leaves(wiring: Wiring, spec: _Rails, plane: int, planes: int) -> list[list[SwitchDecl]]:
    """The leaves of one plane by unit, and the cables from the servers to them."""
    prefix = f"p{plane}-" if planes > 1 else ""
    units = []
    for u in range(spec.units):
        row = [
            declare(
                spec, f"{prefix}leaf{u * spec.rails + r + 1}", Tier.LEAF, plane, u * spec.rails + r, unit=u + 1,
                rail=r + 1,
            )
            for r in range(spec.rails)
        ]  # fmt: skip
        units.append(row)
        wiring.switches += row
        for s in range(spec.servers_per_unit):
            for r, leaf in enumerate(row):
                wiring.cables.append(
                    Cable(
                        f"gpu{u * spec.servers_per_unit + s + 1}", leaf.name, Tier.SERVER, spec.cables.server, plane,
                        r + 1, a_port=f"eth{r * planes + plane}", slot=s, at=("servers_per_unit",),
                    )
                )  # fmt: skip
    return units
