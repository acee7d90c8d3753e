"""How a lab comes up: daemons make way for each other until the fabric has converged, and no longer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from fabtest.checks.converge import wait_converged
from fabtest.errors import LabError
from fabtest.runtime import boot
from fabtest.runtime.base import Lab
from fabtest.runtime.netns import NetnsRuntime
from fabtest.runtime.priority import set_nice
from fabtest.runtime.processes import program
from fabtest.runtime.state import LabFolder
from fabtest.runtime.vty import vty_json
from tests.lab.conftest import running

FAULT = re.compile(r"%NOTIFICATION|%ADJCHANGE.* Down")


def nice_of(pid: int) -> tuple[int, int]:
    """The nice value of a process, and that of its autogroup (the same where the kernel has none)."""
    own = os.getpriority(os.PRIO_PROCESS, pid)
    try:
        return own, int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except OSError:
        return own, own


def niceness(lab: Lab) -> dict[str, tuple[int, int]]:
    """daemon@node -> ``nice_of``."""
    return {
        f"{daemon}@{switch.name}": nice_of(int((lab.node(switch.name).folder / "run" / f"{daemon}.pid").read_text()))  # type: ignore[attr-defined]
        for switch in lab.fabric.switches
        for daemon in ("zebra", "bgpd")
    }


def test_daemons_make_way_until_the_fabric_has_converged() -> None:
    with running("clos-2x2", "t-yield", wait=False) as lab:
        at_first = niceness(lab)
        assert at_first["zebra@leaf1"] == at_first["zebra@spine2"] == (15, 15)
        assert at_first["bgpd@leaf1"] == (7, 7)
        assert at_first["bgpd@spine1"] == (0, 0)
        wait_converged(lab, 60)
        assert set(niceness(lab).values()) == {(0, 0)}


def test_every_session_is_called_by_the_tier_above_and_once() -> None:
    """Leaves have called before spines listened and wait; spines call the moment they run, not after bgpd's start timer:
    else leaves, which started earlier, would have called them."""
    with running("clos-2x2", "t-called") as lab:
        for switch in lab.fabric.switches:
            socket = lab.node(switch.name).folder / "run" / "bgpd.vty"  # type: ignore[attr-defined]
            found = vty_json(socket, "show bgp neighbors json")
            assert len(found) == len(switch.sessions)
            for neighbour in found.values():
                assert (neighbour["connectionsEstablished"], neighbour["connectionsDropped"]) == (1, 0)
                assert (neighbour["portForeign"] == 179) == switch.name.startswith("spine")


@pytest.mark.parametrize("daemon", ["zebra", "bgpd"])
def test_a_daemon_that_ends_at_once(daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named with what it said, without waiting for it any longer, and nothing is left."""
    usual = boot._frr_argv
    broken = program("sh", "dash")

    def argv(path: str, name: str, folder: Path) -> list[str]:
        if name == daemon and folder.name == "leaf2":
            return [broken, "-c", f"echo {name} has no memory >&2; exit 1"]
        return usual(path, name, folder)

    monkeypatch.setattr(boot, "_frr_argv", argv)
    monkeypatch.setattr(boot, "START_S", 1e6)
    with pytest.raises(LabError, match=f"{daemon} of leaf2 does not start") as raised, running("clos-2x2", "t-ends"):
        pass
    assert raised.value.hint == f"{daemon} has no memory"
    assert "t-ends" not in [info.name for info in NetnsRuntime().list()]


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


def test_nobody_else_in_a_session_makes_way() -> None:
    """A process that does not lead its session (those that supervisord starts do not) moves alone."""
    leader = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    member = int(leader.stdout.readline())
    try:
        set_nice(member, 10)
        assert nice_of(member)[0] == 10
        assert nice_of(leader.pid) == (0, 0)
        set_nice(leader.pid, 5)
        assert nice_of(leader.pid) == (5, 5)
    finally:
        os.killpg(leader.pid, 9)
        leader.wait()


def test_no_session_of_a_large_fabric_is_made_twice() -> None:
    """512 sessions between 40 switches, which all start at once on this machine."""
    with running("clos-32x8", "t-up") as lab:
        made = 0
        for switch in lab.fabric.switches:
            folder = LabFolder("t-up").node(switch.name)
            for peer, found in vty_json(folder / "run" / "bgpd.vty", "show bgp neighbors json").items():
                assert (found["connectionsEstablished"], found["connectionsDropped"]) == (1, 0), (switch.name, peer)
                made += 1
            faults = [line for line in (folder / "log" / "bgpd.log").read_text().splitlines() if FAULT.search(line)]
            assert not faults, (switch.name, faults)
        assert made == 512


def test_every_interface_asks_as_long_as_the_kernel_would() -> None:
    """A neighbour that is late for a second, as in a large lab, is no neighbour out of reach."""
    with running("clos-2x2", "t-up") as lab:
        for node, port in (("leaf1", "Ethernet0"), ("gpu1", "eth1")):
            folder = f"net/ipv4/neigh/{port}"
            times, wait = (
                int(lab.node(node).exec(["cat", f"/proc/sys/{folder}/{name}"]).stdout)
                for name in ("mcast_solicit", "retrans_time_ms")
            )
            assert times * wait == 3000
            assert wait == 100
