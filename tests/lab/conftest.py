"""Real labs for tests: each under a name of its own, and taken down whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fabtest.checks.converge import wait_converged
from fabtest.errors import MachineError
from fabtest.runtime.base import Lab
from fabtest.runtime.namespaces import CLONE_NEWNS, MS_REC, MS_SLAVE, NETNS_DIR, mount, unshare
from fabtest.runtime.netns import NetnsRuntime
from fabtest.runtime.processes import program
from fabtest.runtime.state import ROOT, LabFolder
from fabtest.topology import load_fabric_text, topology_path

FABTEST = [str(Path(sys.executable).with_name("fabtest"))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Labs need root and the daemons: say so, rather than fail one by one."""
    reason = ""
    if os.geteuid() != 0:
        reason = "labs need root"
    try:
        for name, package in (("zebra", "frr"), ("bgpd", "frr"), ("redis-server", "redis-server")):
            program(name, package)
    except MachineError as error:
        reason = str(error)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.lab)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def a_machine_of_their_own() -> None:
    """The tests' labs live in a mount namespace with its own /run/fabtest and /run/netns: labs of the user are neither
    seen nor touched, not even by `lab-down --all`."""
    unshare(CLONE_NEWNS)
    mount(None, "/", None, MS_SLAVE | MS_REC)
    for folder in (ROOT, NETNS_DIR):
        folder.mkdir(parents=True, exist_ok=True)
        mount("tmpfs", str(folder), "tmpfs", 0, "mode=755")


@contextmanager
def running(topology: str, name: str, *, wait: bool = True) -> Iterator[Lab]:
    """A lab of a shipped topology (by name) or of the text of one."""
    if "\n" in topology:
        source, default = topology, "test"
    else:
        path = topology_path(topology)
        source, default = path.read_text(), path.stem
    fabric = load_fabric_text(source, "test.yml", default_name=default)
    runtime = NetnsRuntime()
    with LabFolder(name).lock(wait=60):
        lab = runtime.deploy(fabric, source, name, lambda stage, done, total: None)
    try:
        if wait:
            wait_converged(lab, 120)
        yield lab
    finally:
        with LabFolder(name).lock(wait=60):
            runtime.destroy(name)


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    """A clos-2x2 for one module of tests; each leaves it as it was."""
    with running("clos-2x2", "t-small") as lab:
        yield lab


def fabtest(*words: str, ok: bool = True, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    done = subprocess.run([*FABTEST, *words], capture_output=True, text=True, timeout=timeout, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    if ok:
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def eventually(check: Callable[[], object], seconds: float = 5.0, every: float = 0.02) -> float:
    """Wait until ``check()`` is true; the seconds it took."""
    start = time.monotonic()
    while not check():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not true within {seconds} s: {check}")
        time.sleep(every)
    return time.monotonic() - start
