"""Waiting until a fabric forwards as designed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fabtest.checks.observe import RouteFault, SwitchHealth, bfd_down, bgp_routes, health, route_faults, sessions
from fabtest.errors import ExecError, LabError, NotConverged
from fabtest.runtime.base import Lab
from fabtest.topology.routing import Designed, designed_routes

POLL_S = 0.1
SHOWN = 6


def wait_converged(
    lab: Lab, timeout: float, progress: Callable[[int, int], None] = lambda done, total: None,
    designed: Designed | None = None,
) -> float:  # fmt: skip
    """Until every switch has every designed route with its full width, every session is Established and, with BFD,
    every BFD session up. Returns the seconds it took.

    Switches are looked at one after another, the next when one is right, so that waiting costs little of the machine
    that is busy converging; a last round sees that none has fallen back. Raises NotConverged naming what is missing.
    """
    start = time.monotonic()
    designed = designed or designed_routes(lab.fabric)
    switches = lab.fabric.switches
    while True:
        for n, switch in enumerate(switches):
            progress(n, len(switches))
            while not _right(lab, switch.name, designed):
                if time.monotonic() - start > timeout:
                    hint = "the lab is left up: `lab-status`, `lab-logs NODE`, or a longer --timeout; then `lab-down`"
                    raise NotConverged(_what_is_missing(lab, designed, timeout), hint=hint)
                time.sleep(POLL_S)
        if all(_right(lab, s.name, designed) for s in switches):
            progress(len(switches), len(switches))
            return time.monotonic() - start


def _right(lab: Lab, name: str, designed: Designed) -> bool:
    switch = lab.fabric.switch[name]
    try:
        if route_faults(designed.routes[name], bgp_routes(lab, switch)):
            return False
        return all(s.state == "Established" for s in sessions(lab, switch)) and not bfd_down(lab, switch)
    except (ExecError, LabError):
        return False


def not_as_designed(report: SwitchHealth) -> list[str]:
    """One line per fault of a switch: daemons, then sessions, then routes."""
    lines = [f"{report.name}: {report.trouble}"] if report.trouble else []
    lines += [
        f"{report.name}: session with {s.neighbour} ({s.peer} on {s.port}) is {s.state}"
        for s in report.sessions
        if s.state != "Established"
    ]
    return lines + [f"{report.name}: {line}" for line in _grouped(report.faults)]


def _grouped(faults: Sequence[RouteFault]) -> list[str]:
    """Routes that lack the same ports are one line."""
    groups: dict[str, list[RouteFault]] = {}
    for fault in faults:
        groups.setdefault(str(fault).partition(" ")[2], []).append(fault)
    lines = []
    for what, alike in groups.items():
        if len(alike) == 1:
            lines.append(f"route {alike[0]}")
        else:
            names = ", ".join(str(f.prefix) for f in alike[:3]) + (", ..." if len(alike) > 3 else "")
            plural = what.replace("has ", "have ", 1).replace("is ", "are ", 1)
            lines.append(f"{len(alike)} routes {plural}: {names}")
    return lines


def _what_is_missing(lab: Lab, designed: Designed, timeout: float) -> str:
    lines: list[str] = []
    first = ""
    for switch in lab.fabric.switches:
        found = not_as_designed(health(lab, switch, designed))
        found += [f"{switch.name}: BFD with {peer} is not up" for peer in _bfd(lab, switch.name)]
        if found and not first:
            first = switch.name
        lines += found
    shown = lines[:SHOWN]
    if len(lines) > SHOWN:
        shown.append(f"... and {len(lines) - SHOWN} more")
    message = f"lab {lab.name} has not converged within {timeout:g} s:\n" + "\n".join(f"  {line}" for line in shown)
    logs = last_lines(lab, first, 5) if first else []
    if logs:
        message += f"\nlast lines of {first}'s log:\n" + "\n".join(f"  {line}" for line in logs)
    return message


def _bfd(lab: Lab, name: str) -> list[str]:
    try:
        return bfd_down(lab, lab.fabric.switch[name])
    except (ExecError, LabError):
        return []


def last_lines(lab: Lab, name: str, count: int) -> list[str]:
    """The end of a node's routing logs."""
    lines: list[str] = []
    for file in log_files(lab, name):
        lines += file.read_text(errors="replace").splitlines()[-count:]
    return lines[-count:]


def log_files(lab: Lab, name: str) -> list[Path]:
    """Logs of a node's daemons, the routing protocols' last."""
    return [f for f in lab.node(name).logs() if f.is_file() and f.stat().st_size]
