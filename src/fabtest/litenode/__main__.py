"""``python -m fabtest.litenode LAB``: the agent of a running namespace lab."""

from __future__ import annotations

import json
import logging
import resource
import sys
import threading

from fabtest.litenode.agent import Agent, Place, run
from fabtest.model import Fabric
from fabtest.runtime import processes
from fabtest.runtime.namespaces import namespace_path
from fabtest.runtime.state import LabFolder

#: When the daemons of a lab stop yielding to each other, if nobody waits for convergence (``lab-up --no-wait``).
SETTLE_AFTER_S = 60


def places(lab: LabFolder, fabric: Fabric) -> list[Place]:
    """Every node of the lab, where the namespace runtime put it."""
    return [
        Place(
            name,
            name in fabric.switch,
            namespace_path(lab.name, name),
            lab.node(name),
            lab.node(name) / "run",
            len(fabric.links_of[name]),
        )
        for name in fabric.node_names
    ]


def held_down(lab: LabFolder, fabric: Fabric, node: str) -> set[str]:
    """Ports of a node that a fault holds down."""
    try:
        faults = json.loads((lab.path / "faults.json").read_text())
    except (OSError, ValueError):
        return set()
    if node in faults:
        return {link.end(node).port for link in fabric.links_of[node]}
    return {key.partition(":")[2] for key, how in faults.items() if key.startswith(f"{node}:") and how == "carrier"}


def main(name: str) -> None:
    """Entry point of the agent process."""
    lab = LabFolder(name)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", filename=lab.path / "agent.log"
    )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a hundred switches need more than the usual 1024
    fabric = lab.fabric()
    nodes = places(lab, fabric)
    later = threading.Timer(SETTLE_AFTER_S, processes.settle, (lab.name, [n.vty for n in nodes if n.is_switch]))
    later.daemon = True
    later.start()
    run(
        Agent(
            nodes,
            name=lab.name,
            ready=lab.path / "agent.ready",
            bfd=fabric.bgp.bfd,
            qp_hash=fabric.qp_hash,
            cut=lambda node: held_down(lab, fabric, node),
        )
    )


main(sys.argv[1])
