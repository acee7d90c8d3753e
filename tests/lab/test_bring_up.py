"""How a lab comes up: daemons make way for each other until the fabric has converged, and no longer."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fabtest.checks.converge import wait_converged
from fabtest.runtime.base import Lab
from fabtest.runtime.priority import set_nice
from fabtest.runtime.vty import vty
from tests.lab.conftest import running


def niceness(lab: Lab) -> dict[str, tuple[int, int]]:
    """daemon@node -> nice value, and that of its autogroup (the same where the kernel has none)."""
    found = {}
    for switch in lab.fabric.switches:
        for daemon in ("zebra", "bgpd"):
            pid = int((lab.node(switch.name).folder / "run" / f"{daemon}.pid").read_text())  # type: ignore[attr-defined]
            own = os.getpriority(os.PRIO_PROCESS, pid)
            try:
                group = int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
            except OSError:
                group = own
            found[f"{daemon}@{switch.name}"] = own, group
    return found


def test_daemons_make_way_until_the_fabric_has_converged() -> None:
    with running("clos-2x2", "t-yield", wait=False) as lab:
        at_first = niceness(lab)
        assert at_first["zebra@leaf1"] == at_first["zebra@spine2"] == (15, 15)
        assert at_first["bgpd@leaf1"] == (7, 7)
        assert at_first["bgpd@spine1"] == (0, 0)
        wait_converged(lab, 60)
        assert set(niceness(lab).values()) == {(0, 0)}


def test_only_processes_of_the_lab_are_touched(small: Lab) -> None:
    """A pid file that names somebody else's process (a pid that was used again) changes nothing."""
    other = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
    file = small.node("leaf1").folder / "run" / "other.pid"  # type: ignore[attr-defined]
    try:
        set_nice(other, 5)
        file.write_text(f"{other}\n")
        small.settle()
        assert os.getpriority(os.PRIO_PROCESS, other) == 5
    finally:
        file.unlink()
        os.kill(other, 9)
        os.waitpid(other, 0)


def test_sessions_do_not_wait_for_the_start_timer(small: Lab) -> None:
    """Spines call their leaves the moment they run: none was in the way of another (a collision), none had to wait for
    its peer to call again (``timers connect``)."""
    for switch in small.fabric.switches:
        text = vty(small.node(switch.name).folder / "run" / "bgpd.vty", "show bgp neighbors")  # type: ignore[attr-defined]
        established, dropped = re.findall(r"Connections established (\d+); dropped (\d+)", text)[0]
        assert (established, dropped) == ("1", "0")
