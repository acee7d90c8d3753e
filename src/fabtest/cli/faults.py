"""link-down, link-up, node-down, node-up, agent-restart."""

from __future__ import annotations

from typing import Any

from fabtest.cli.common import JSON, LAB, fabtest_task, out, print_json, the_lab
from fabtest.errors import UsageError
from fabtest.runtime.base import Fault
from fabtest.runtime.state import LabFolder

ENDS = {"a": "node, or NODE:PORT for one cable of several", "b": "the node at the other end", "lab": LAB}


@fabtest_task(
    positional=["a", "b"],
    help={
        **ENDS,
        "silent": "frames are lost but carrier stays (a bad optic): only BFD or the hold timer sees it",
        "loss": "percent of all frames that are lost each way, at random, while carrier stays (a grey link)",
        "json": JSON,
    },
)
def link_down(
    c: Any, a: str, b: str, lab: str = "", silent: bool = False, loss: float = 0.0, json: bool = False
) -> None:
    """Break every cable between two nodes: link-down A B [--silent | --loss PERCENT]."""
    if silent and loss:
        raise UsageError("a link is either silent or loses a share of its frames", hint="--silent, or --loss PERCENT")
    fault = Fault.SILENT if silent else Fault.GREY if loss else Fault.CARRIER
    live = the_lab(lab)
    with LabFolder(live.name).lock(wait=30):
        links = live.fail_link(a, b, fault, loss / 100)
    what = {
        Fault.CARRIER: "has no carrier",
        Fault.SILENT: "drops every frame",
        Fault.GREY: f"loses {loss:g} % of frames",
    }
    _report(what[fault], "broken", links, json)


@fabtest_task(positional=["a", "b"], help={**ENDS, "json": JSON})
def link_up(c: Any, a: str, b: str, lab: str = "", json: bool = False) -> None:
    """Mend every cable between two nodes: link-up A B."""
    live = the_lab(lab)
    with LabFolder(live.name).lock(wait=30):
        links = live.repair_link(a, b)
    _report("is whole", "mended", links, json)


def _report(what: str, key: str, links: list[str], json: bool) -> None:
    if json:
        print_json({key: links})
    else:
        for link in links:
            out.print(f"{link} {what}")


@fabtest_task(positional=["node"], help={"node": "switch or server", "lab": LAB})
def node_down(c: Any, node: str, lab: str = "") -> None:
    """Power a node off: its links lose carrier, its daemons stop."""
    live = the_lab(lab)
    with LabFolder(live.name).lock(wait=30):
        live.stop_node(node)
    out.print(f"{node} is off")


@fabtest_task(positional=["node"], help={"node": "switch or server", "lab": LAB})
def node_up(c: Any, node: str, lab: str = "") -> None:
    """Power a node on; a switch boots from its config_db.json."""
    live = the_lab(lab)
    with LabFolder(live.name).lock(wait=30):
        live.start_node(node)
    out.print(f"{node} is on")


@fabtest_task(help={"lab": LAB})
def agent_restart(c: Any, lab: str = "") -> None:
    """Restart what applies CONFIG_DB to the lab; traffic is not disturbed."""
    live = the_lab(lab)
    with LabFolder(live.name).lock(wait=30):
        live.restart_agent()
    out.print(f"agent of {live.name} restarted")
