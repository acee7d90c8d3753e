"""The state of a lab on one page."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from fabtest.checks.converge import not_as_designed
from fabtest.checks.observe import LinkHealth, SwitchHealth, health, link_health
from fabtest.model import Tier
from fabtest.runtime.base import Lab
from fabtest.topology.routing import designed_routes


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One line of ``lab-status``. ``width`` is the range of ECMP widths of its routes."""

    name: str
    role: str
    tier: str
    plane: int
    rail: int | None
    state: str
    sessions: str
    routes: str
    width: str


@dataclass(frozen=True)
class LabStatus:
    """The whole of it. ``trouble`` says what is not as designed; empty if all is well."""

    lab: str
    topology: str
    nodes: tuple[NodeStatus, ...]
    links: int
    links_up: int
    sessions: int
    established: int
    agent: bool
    faults: dict[str, str]
    trouble: tuple[str, ...]
    health: tuple[SwitchHealth, ...]
    link_health: tuple[LinkHealth, ...]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``; keys are part of the interface."""
        return {
            "lab": self.lab,
            "topology": self.topology,
            "ok": not self.trouble,
            "nodes": [asdict(n) for n in self.nodes],
            "links": {
                "total": self.links,
                "up": self.links_up,
                "down": [{"link": str(h.link), "why": h.why} for h in self.link_health if not h.up],
            },
            "sessions": {"total": self.sessions, "established": self.established},
            "agent": self.agent,
            "faults": self.faults,
            "not_as_designed": list(self.trouble),
        }


def lab_status(lab: Lab) -> LabStatus:
    """Look at every node and link."""
    fabric = lab.fabric
    designed = designed_routes(fabric)
    reports = tuple(health(lab, s, designed) for s in fabric.switches)
    cables = tuple(link_health(lab))
    broken = Counter(end.node for h in cables if not h.up for end in (h.link.a, h.link.b))
    faults = lab.faults()
    nodes = []
    for switch, report in zip(fabric.switches, reports, strict=True):
        widths = sorted(len(p) for p in designed.routes[switch.name].values())
        have = sorted({len(f.have) for f in report.faults if f.have} | set(widths if not report.faults else ()))
        spread = f"{have[0]}-{have[-1]}" if have and have[0] != have[-1] else str(have[0]) if have else "-"
        off = faults.get(switch.name) == "down"
        ok = report.as_designed and not broken[switch.name]
        nodes.append(
            NodeStatus(
                switch.name, "switch", switch.tier.name.lower(), switch.plane, switch.rail,
                "off" if off else "ok" if ok else "degraded",
                f"{report.established}/{len(switch_peers(report, switch))}",
                f"{report.routes}/{len(widths)}", spread,
            )
        )  # fmt: skip
    for server in fabric.servers:
        state = "off" if faults.get(server.name) == "down" else "degraded" if broken[server.name] else "ok"
        nodes.append(NodeStatus(server.name, "server", Tier.SERVER.name.lower(), 0, None, state, "-", "-", "-"))
    trouble = [*lab.trouble(), *(f"{h.link}: {h.why}" for h in cables if not h.up)]
    for report in reports:
        trouble += not_as_designed(report)
    return LabStatus(
        lab=lab.name,
        topology=fabric.name,
        nodes=tuple(nodes),
        links=len(cables),
        links_up=sum(h.up for h in cables),
        sessions=sum(len(switch_peers(r, s)) for r, s in zip(reports, fabric.switches, strict=True)),
        established=sum(r.established for r in reports),
        agent=lab.agent_running(),
        faults=faults,
        trouble=tuple(trouble),
        health=reports,
        link_health=cables,
    )


def switch_peers(report: SwitchHealth, switch: Any) -> tuple[Any, ...]:
    """The sessions a switch should have, also when it does not answer."""
    return report.sessions or tuple(peer for s in switch.sessions for peer in (s.remote or (s.port,)))
