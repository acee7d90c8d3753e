"""Leaf-spine, and pods of it under super-spines."""

from __future__ import annotations

from fabtest.model import Tier
from fabtest.topology.schema import ClosSpec
from fabtest.topology.shapes.tiers import add_tiers, declare
from fabtest.topology.wiring import Cable, ServerDecl, Wiring


def clos(spec: ClosSpec) -> Wiring:
    """Every NIC of a server goes to the server's leaf."""
    wiring = Wiring()
    pods = []
    for p in range(spec.pods):
        row = []
        for number in range(p * spec.leaves, (p + 1) * spec.leaves):
            unit = p + 1 if spec.pods > 1 or spec.superspines else None
            leaf = declare(spec, f"leaf{number + 1}", Tier.LEAF, 1, number, unit=unit)
            row.append(leaf)
            for s in range(spec.servers_per_leaf):
                index = number * spec.servers_per_leaf + s + 1
                wiring.servers.append(ServerDecl(f"gpu{index}", index, unit, spec.server.gpus_per_nic))
                for nic in range(spec.server.nics):
                    wiring.cables.append(
                        Cable(
                            f"gpu{index}", leaf.name, Tier.SERVER, spec.cables.server, a_port=f"eth{nic + 1}",
                            slot=s * spec.server.nics + nic, at=("servers_per_leaf",),
                        )
                    )  # fmt: skip
        wiring.switches += row
        pods.append(row)
    add_tiers(wiring, spec, 1, "", pods, label_pods=bool(spec.superspines))
    return wiring
