"""Waiting until a fabric forwards as designed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fabtest.checks.observe import ESTABLISHED, Network, RouteFault, SwitchHealth, bfd_down, health, sessions
from fabtest.errors import ExecError, LabError, NotConverged
from fabtest.model import Switch
from fabtest.runtime.base import Lab
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import NetlinkSocket
from fabtest.topology.routing import Designed, designed_routes

SHOWN = 6
#: (family, packed prefix, length) -> ports, as the kernel's own routes are compared without making objects of them.
Packed = dict[tuple[int, bytes, int], frozenset[str]]


def wait_converged(
    lab: Lab, timeout: float, progress: Callable[[int, int], None] = lambda done, total: None,
    designed: Designed | None = None,
) -> float:  # fmt: skip
    """Until every switch has every designed route with its full width, every session is Established and, with BFD,
    every BFD session up. Returns the seconds it took.

    Switches are looked at one after another, the next when one is right, and the less often the more there are, so
    that waiting costs little of the machine that is busy converging; all of them once more after the last that was not.
    Raises NotConverged naming what is missing. However it ends, what made way while the fabric came up no longer does.
    """
    start = time.monotonic()
    designed = designed or designed_routes(lab.fabric)
    switches = lab.fabric.switches
    pause = min(0.5, 0.05 + 0.004 * len(switches))
    wanted = {s.name: _packed(designed.routes[s.name]) for s in switches}
    at = right = 0  # the switch looked at, and how many in a row were right without a pause between
    try:
        while right < len(switches):
            switch = switches[at % len(switches)]
            if _right(lab, switch, wanted[switch.name]):
                right += 1
                at += 1
                progress(min(at, len(switches)), len(switches))
                continue
            right = 0
            if time.monotonic() - start > timeout:
                hint = "the lab is left up: `lab-status`, `lab-logs NODE`, or a longer --timeout; then `lab-down`"
                raise NotConverged(_what_is_missing(lab, designed, timeout), hint=hint)
            time.sleep(pause)
    finally:
        lab.settle()
    return time.monotonic() - start


def _packed(routes: dict[Network, frozenset[str]]) -> Packed:
    return {(p.version, p.network_address.packed, p.prefixlen): ports for p, ports in routes.items()}


def _right(lab: Lab, switch: Switch, wanted: Packed) -> bool:
    try:
        return (
            _live_routes(lab, switch) == wanted
            and all(s.state == ESTABLISHED for s in sessions(lab, switch))
            and not bfd_down(lab, switch)
        )
    except (ExecError, LabError):
        return False


def _live_routes(lab: Lab, switch: Switch) -> Packed:
    found: Packed = {}
    with inside(lab.node(switch.name).netns), NetlinkSocket() as kernel:
        names = {link.index: link.name for link in kernel.links().values()}
        for family in lab.fabric.families:
            wire = socket.AF_INET if family == 4 else socket.AF_INET6
            for (packed, length), hops in kernel.bgp_widths(wire).items():
                found[family, packed, length] = frozenset(names.get(i, "") for i in hops)
    return found


def not_as_designed(report: SwitchHealth) -> list[str]:
    """One line per fault of a switch: daemons, then sessions, then routes."""
    own = report.trouble.startswith(f"{report.name}: ")
    lines = [report.trouble if own else f"{report.name}: {report.trouble}"] if report.trouble else []
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
