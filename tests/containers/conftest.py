"""Labs of containers, by the real containerlab and a real Docker engine; where those are absent, tests say how to get
them and skip.

They run on the machine itself, not in a mount namespace of the tests' own: the engine opens the paths it is given
outside. So every lab here has a name that begins with ``t-clab``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.errors import APIError

from fabtest.errors import FabtestError
from fabtest.runtime.containerlab.engine import Engine
from fabtest.runtime.containerlab.tool import Containerlab
from fabtest.runtime.namespaces import CLONE_NEWNS, setns, unshare

FABTEST = [str(Path(sys.executable).with_name("fabtest"))]
CLONE_FS = 0x200
#: The mount namespace tests were started in; other tests leave it.
OUTSIDE = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _missing() -> str:
    if os.geteuid() != 0:
        return "labs need root"
    try:
        Engine().version()
    except FabtestError as error:
        return f"{error.message} (enable these tests: start Docker, or set DOCKER_HOST)"
    if shutil.which("containerlab") is None:
        return "containerlab is not installed (enable these tests: https://containerlab.dev/install)"
    try:
        Containerlab.find()
    except FabtestError as error:
        return error.message
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What these tests need, and where they do not have it, why they skip."""
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = _missing() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.lab)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module", autouse=True)
def outside() -> Iterator[None]:
    """The mount namespace of the machine."""
    inside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    unshare(CLONE_FS)  # threads of libraries share the working directory, and setns wants it alone
    setns(OUTSIDE, CLONE_NEWNS)
    yield
    setns(inside, CLONE_NEWNS)
    os.close(inside)


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session")
def images() -> None:
    """Both images; built if their content is not there."""
    fabtest("images", timeout=600)


def fabtest(
    *words: str, ok: bool = True, timeout: float = 240, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    done = subprocess.run(
        [*FABTEST, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert "Traceback" not in done.stderr, done.stderr
    if ok:
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def miscounted(engine: Engine, network: str) -> bool:
    """Whether the engine refuses to remove a network that nothing is on: nobody but its restart can then."""
    found = engine.client.networks.get(network)
    if found.attrs["Containers"]:
        return False
    try:
        found.remove()
    except APIError as error:
        return "active endpoints" in str(error.explanation)
    return False


def leftovers(lab: str, engine: Engine) -> list[str]:
    """What is still there of a lab: containers, network, links, names, files, entries in the machine's files."""
    found = [f"container {c}" for c in engine.nodes(lab)]
    found += [f"container {c}" for c in engine.foreign(lab)]
    if engine.has_network(f"fabtest-{lab}") and not miscounted(engine, f"fabtest-{lab}"):
        found.append("network")
    links = subprocess.run(["ip", "-d", "link"], capture_output=True, text=True, check=True).stdout
    found += [f"link: {line.strip()}" for line in links.splitlines() if "clab-o-" in line]
    for folder in ("/run/netns", "/run/fabtest", "/etc/ssh/ssh_config.d"):
        if os.path.isdir(folder):
            found += [f"{folder}/{name}" for name in os.listdir(folder) if lab in name]
    if f"clab-{lab}" in Path("/etc/hosts").read_text():
        found.append("/etc/hosts")
    return found
