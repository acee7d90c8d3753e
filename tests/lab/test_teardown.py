"""lab-down leaves nothing, whatever happened to lab-up, and touches nothing that is not a lab's."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fabtest.runtime.base import Fault
from fabtest.runtime.netns import NetnsRuntime
from fabtest.runtime.processes import MARK
from fabtest.runtime.state import ROOT, LabFolder
from tests.lab.conftest import FABTEST, eventually, fabtest, running

KILLS = 50


def mark_of(pid: str) -> str:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    ours = [e for e in environ if e.startswith(MARK.encode())]
    return ours[0].decode() if ours and state not in "ZX" else ""


def remains(lab: str = "") -> list[str]:
    """What is left of a lab, or of all of the tests': processes, namespaces, files, mounts, links, scratch files."""
    prefix = lab or "t-"
    found = []
    for pid in (p.name for p in Path("/proc").iterdir() if p.name.isdigit()):
        mark = mark_of(pid).partition("=")[2]
        if mark == lab if lab else mark.startswith("t-"):
            found.append(f"process {pid} of {mark}")
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"/run/fabtest/{prefix}".encode() in words and state not in "ZX":
            found.append(f"process {pid} {words[:60]!r}")
    found += [f"namespace {n}" for n in os.listdir("/run/netns") if n.startswith(f"fabtest.{prefix}")]
    if lab:
        found += [str(p) for p in (ROOT / lab, ROOT / f".{lab}.lock") if p.exists()]
    else:
        found += [str(p) for p in ROOT.rglob("*")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [line for line in mounts if f"fabtest.{prefix}" in line or f"/run/fabtest/{prefix}" in line]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found += [line for line in links.splitlines() if "Ethernet" in line or "Loopback" in line]
    return found + sorted(scratch() - SCRATCH_BEFORE)


def scratch() -> set[str]:
    """FRR's crash logs of processes that are gone."""
    folder = Path("/var/tmp/frr")
    alive = {p.name for p in Path("/proc").iterdir()}
    return {str(p) for p in folder.iterdir() if p.name.rpartition(".")[2] not in alive} if folder.is_dir() else set()


SCRATCH_BEFORE = scratch()


def test_nothing_is_left() -> None:
    with running("rail-4x4", "t-gone") as lab:
        lab.fail_link("leaf1", "spine1", Fault.SILENT)
        assert remains("t-gone")
    assert remains("t-gone") == []


def test_killed_at_many_moments() -> None:
    """SIGKILL at random moments of lab-up, fifty times, then one lab-down --all."""
    dice = random.Random(20261201)
    states = set()
    for n in range(KILLS):
        name = f"t-kill{n}"
        topology = dice.choice(["clos-2x2", "rail-4x4", "clos-3tier"])
        up = subprocess.Popen(
            [*FABTEST, "lab-up", topology, "--name", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Imports take the first 0.3 s; half the kills fall into the building, half into the rest.
        time.sleep(dice.uniform(0.25, 0.9) if n % 2 else dice.uniform(0.3, 2.5))
        up.kill()
        up.wait()
        states |= {info.state for info in NetnsRuntime().list() if info.name == name}
        if n % 25 == 24:
            assert remains()
            fabtest("lab-down", "--all")
            assert remains() == []
    assert "building" in states
    assert "up" in states


def test_kill_at_each_stage() -> None:
    """A process that dies between any two stages leaves something lab-down finds."""
    from fabtest.topology import load_fabric_text, topology_path

    path = topology_path("clos-2x2")
    for stage in ("files", "namespaces", "links", "interfaces", "routing", "agent"):
        child = os.fork()
        if child == 0:  # a lab-up that is killed as soon as it reaches the stage
            try:
                source = path.read_text()
                fabric = load_fabric_text(source, str(path), default_name="clos-2x2")

                def die(now: str, done: int, total: int, stage: str = stage) -> None:
                    if now == stage:
                        os.kill(os.getpid(), signal.SIGKILL)

                with LabFolder("t-stage").lock():
                    NetnsRuntime().deploy(fabric, source, "t-stage", die)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, stage
        assert remains("t-stage"), stage
        assert [i.name for i in NetnsRuntime().list()] == ["t-stage"]
        fabtest("lab-down", "t-stage")
        assert remains("t-stage") == [], stage


def test_state_folder_deleted() -> None:
    fabtest("lab-up", "clos-2x2", "--name", "t-lost", "--no-wait")
    for path in ROOT.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert NetnsRuntime().list()[0].state == "broken"
    done = fabtest("lab-status", "t-lost", ok=False)
    assert done.returncode == 5
    fabtest("lab-down", "t-lost")
    assert remains("t-lost") == []


def test_up_again_after_a_kill() -> None:
    """lab-up over what a killed lab-up left simply works."""
    up = subprocess.Popen(
        [*FABTEST, "lab-up", "clos-2x2", "--name", "t-again"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    eventually(lambda: (ROOT / "t-again" / "lab.json").exists(), 10, 0.002)
    time.sleep(0.05)
    up.kill()
    up.wait()
    try:
        record = LabFolder("t-again").read()
        if record and record.state == "building":
            fabtest("lab-up", "clos-2x2", "--name", "t-again")
    finally:
        fabtest("lab-down", "t-again", ok=False)
    assert remains("t-again") == []


def test_interrupted_lab_up_cleans_up() -> None:
    # A test run in the background of a script inherits an ignored SIGINT; a user's terminal does not.
    up = subprocess.Popen(
        [*FABTEST, "lab-up", "clos-32x8", "--name", "t-int"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    eventually(lambda: (ROOT / "t-int" / "lab.json").exists(), 10, 0.005)
    up.send_signal(signal.SIGINT)
    _, stderr = up.communicate(timeout=60)
    assert up.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert remains("t-int") == []


def test_several_labs_do_not_touch_each_other() -> None:
    with running("clos-2x2", "t-one") as one, running("clos-2x2", "t-two") as two:
        one.stop_node("spine1")
        from fabtest.checks.status import lab_status

        assert lab_status(two).trouble == ()
        assert lab_status(one).trouble
        fabtest("lab-down", "t-one")
        assert lab_status(two).trouble == ()
        assert remains("t-one") == []
        assert fabtest("lab-down", "t-one", ok=False).returncode == 5


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    subprocess.run(["ip", "netns", "add", "t-foreign"], check=True)
    sleeper = subprocess.Popen(["ip", "netns", "exec", "t-foreign", "sleep", "60"])
    try:
        with running("clos-2x2", "t-mine", wait=False):
            pass
        fabtest("lab-down", "--all")
        assert sleeper.poll() is None
        assert Path("/run/netns/t-foreign").exists()
    finally:
        sleeper.kill()
        sleeper.wait()
        subprocess.run(["ip", "netns", "del", "t-foreign"], check=True)


def test_lock_of_a_lab() -> None:
    with LabFolder("t-lock").lock():
        done = fabtest("lab-up", "clos-2x2", "--name", "t-lock", ok=False)
        assert done.returncode == 5
        assert "is being changed by another command" in done.stderr
    assert remains("t-lock") == []


@pytest.mark.parametrize("name", ["../etc", "a b", "-x", "x" * 40, "a/b"])
def test_names_that_are_no_names(name: str) -> None:
    done = fabtest("lab-up", "clos-2x2", f"--name={name}", ok=False)
    assert done.returncode == 2
    assert "is not a lab name" in done.stderr


def test_bad_topology_builds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "bad.yml"
    file.write_text("kind: clos\nleafs: 2\nspines: many\nservers_per_leaf: 1\n")
    done = fabtest("lab-up", str(file), ok=False)
    assert done.returncode == 2
    assert f"{file}:2:1: leafs: unknown key (did you mean leaves?)" in done.stderr
    assert f"{file}:3:9: spines" in done.stderr
    assert remains("bad") == []
