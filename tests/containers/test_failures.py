"""What goes wrong with a deploy ends in one clear sentence, and leaves nothing."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from fabtest.errors import LabError
from fabtest.render.containerlab import LABEL
from fabtest.runtime.containerlab.engine import LAB_NAME, Engine
from fabtest.runtime.containerlab.tool import Containerlab
from tests.containers.conftest import FABTEST, fabtest, leftovers

LAB = "t-clab-bad"
pytestmark = pytest.mark.usefixtures("images")
UP = ("lab-up", "--runtime", "containerlab", "--name", LAB)


def topology(folder: Path, text: str) -> str:
    path = folder / "bad.yml"
    path.write_text(text)
    return str(path)


def one_sentence(done: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("fabtest: ")]
    assert len(lines) == 1, done.stderr
    assert words in lines[0]


def test_a_missing_image(tmp_path: Path, engine: Engine) -> None:
    file = topology(
        tmp_path,
        "kind: clos\nleaves: 2\nspines: 1\nservers_per_leaf: 1\nemulation: {sonic_image: 'docker-sonic-vs:none'}\n",
    )
    one_sentence(fabtest(*UP, file, ok=False), 5, "the image docker-sonic-vs:none is not there")
    assert leftovers(LAB, engine) == []


def test_an_image_that_is_no_switch(tmp_path: Path, engine: Engine) -> None:
    """containerlab deploys anything and says nothing of it; we wait, and say what did not come."""
    file = topology(
        tmp_path, "kind: clos\nleaves: 1\nspines: 0\nservers_per_leaf: 1\nemulation: {sonic_image: 'fabtest/host'}\n"
    )
    before = len(engine.client.containers.list(all=True))
    done = fabtest(*UP, file, ok=False)
    one_sentence(done, 5, "leaf1")
    assert len(engine.client.containers.list(all=True)) == before
    assert leftovers(LAB, engine) == []


def test_no_engine(engine: Engine) -> None:
    for host in ("unix:///run/no-such-engine.sock", "tcp://127.0.0.1:9"):
        one_sentence(
            fabtest(*UP, "clos-2x2", ok=False, env={"DOCKER_HOST": host}), 4, "the Docker engine does not answer"
        )
    assert leftovers(LAB, engine) == []


def test_no_containerlab(engine: Engine) -> None:
    done = fabtest(*UP, "clos-2x2", ok=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    one_sentence(done, 4, "containerlab is not installed")
    assert "https://containerlab.dev/install" in done.stderr
    assert leftovers(LAB, engine) == []


def test_a_foreign_container_of_the_same_name(engine: Engine) -> None:
    stranger = engine.client.containers.run("fabtest/host", detach=True, name=f"clab-{LAB}-leaf2")
    try:
        one_sentence(fabtest(*UP, "clos-2x2", ok=False), 5, f"clab-{LAB}-leaf2")
        stranger.reload()
        assert stranger.status == "running"
    finally:
        stranger.remove(force=True)
    assert leftovers(LAB, engine) == []


def test_a_port_beyond_the_image(tmp_path: Path, engine: Engine) -> None:
    """The lite image has 256 ports; a leaf of 300 has its uplink on the last."""
    file = topology(
        tmp_path,
        "kind: clos\nleaves: 1\nspines: 1\nservers_per_leaf: 1\nswitches: {leaf: {ports: 300, port_speed: 10G, lanes_per_port: 1}}\n",
    )
    one_sentence(fabtest(*UP, file, ok=False), 5, "is port 300, and fabtest/sonic-lite:latest has 256")
    assert leftovers(LAB, engine) == []


def test_a_full_port_range(tmp_path: Path, engine: Engine) -> None:
    """Every port of a switch has its cable, and works; one cable more is refused before anything is built."""
    text = "kind: clos\nleaves: 1\nspines: 1\nservers_per_leaf: {n}\nswitches: {leaf: {ports: 4}, spine: {ports: 4}}\n"
    fabtest(*UP, topology(tmp_path, text.replace("{n}", "3")))
    fabtest("lab-down", LAB)
    done = fabtest(*UP, topology(tmp_path, text.replace("{n}", "5")), ok=False)
    assert done.returncode == 2
    assert "ports" in done.stderr
    assert leftovers(LAB, engine) == []


def test_no_free_subnet(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from fabtest.errors import MachineError
    from fabtest.render.containerlab import candidate_subnets
    from fabtest.runtime.containerlab import runtime
    from fabtest.topology import load_fabric, topology_path

    fabric = load_fabric(topology_path("clos-2x2"))
    taken = [next(iter(candidate_subnets(8)))]
    monkeypatch.setattr(runtime, "candidate_subnets", lambda nodes: iter(taken))
    monkeypatch.setattr(Engine, "subnets", lambda self: taken)
    with pytest.raises(MachineError, match="no free subnet"):
        runtime.ContainerlabRuntime()._free_subnet(fabric)


def test_servers_without_their_tools(tmp_path: Path, engine: Engine) -> None:
    """containerlab only logs a script that failed; a lab whose servers have no addresses is not up."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        text = b"FROM fabtest/host\nRUN rm /sbin/sysctl\n"
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    out.seek(0)
    engine.client.images.build(fileobj=out, custom_context=True, tag="t-clab-host:none", rm=True)
    try:
        file = topology(
            tmp_path,
            "kind: clos\nleaves: 1\nspines: 0\nservers_per_leaf: 1\nemulation: {server_image: 't-clab-host:none'}\n",
        )
        done = fabtest(*UP, file, ok=False)
        one_sentence(done, 5, "gpu1: eth1 does not have 10.0.")
        assert "sysctl" in done.stderr
    finally:
        engine.client.images.remove("t-clab-host:none", force=True)
    assert leftovers(LAB, engine) == []


def test_a_network_someone_else_made(engine: Engine) -> None:
    network = engine.client.networks.create(f"fabtest-{LAB}")
    try:
        one_sentence(fabtest(*UP, "clos-2x2", ok=False), 5, "that containerlab did not make")
        assert engine.has_network(f"fabtest-{LAB}")
    finally:
        network.remove()


@pytest.mark.parametrize("whose", ["the lab's", "someone else's"])
def test_a_network_with_an_endpoint_left(engine: Engine, whose: str) -> None:
    """The engine keeps the endpoint of a container it was told to remove for a while, or for good: `lab-down` cuts it
    off. That of a container which is not the lab's it names."""
    client = engine.client
    network = client.networks.create("fabtest-t-clab-left", labels={LAB_NAME: "t-clab-left"})
    labels = {LABEL: "t-clab-left"} if whose == "the lab's" else {}
    container = client.containers.create(
        "fabtest/host", ["sleep", "600"], name="t-clab-left-a", network=network.name, labels=labels
    )
    try:
        container.start()
        if labels:
            engine._remove_network(network.id, "t-clab-left", timeout=6)
            assert not engine.has_network(network.name)
        else:
            with pytest.raises(LabError, match="not the lab's: t-clab-left-a"):
                engine._remove_network(network.id, "t-clab-left", timeout=6)
            assert engine.has_network(network.name)
    finally:
        container.remove(force=True)
        if engine.has_network(network.name):
            network.remove()


def test_what_was_exported_and_deployed_by_hand_is_not_ours(tmp_path: Path, engine: Engine) -> None:
    """`config-render --format containerlab` gives files to deploy; fabtest neither lists nor removes such a lab."""
    fabtest("config-render", "clos-2x2", "--format", "containerlab", "--out", str(tmp_path / "x"))
    file = tmp_path / "x" / "clos-2x2.clab.yml"
    text = file.read_text().replace("name: clos-2x2", "name: t-clab-hand").replace("fabtest-clos-2x2", "t-clab-hand")
    file.write_text(text.replace("172.31.0.0/24", "10.252.9.0/24"))
    tool = Containerlab.find()
    try:
        assert len(tool.deploy(file, log=tmp_path / "log")) == 8
        assert "t-clab-hand" not in fabtest("lab-list").stdout
        assert fabtest("lab-down", "t-clab-hand", ok=False).returncode == 5
        container = engine.client.containers.get("clab-t-clab-hand-leaf1")
        deadline = time.monotonic() + 60
        while container.exec_run("cat /run/fabtest-boot").output != b"ready\n":
            assert time.monotonic() < deadline
            time.sleep(0.5)
    finally:
        tool.destroy(file, log=tmp_path / "log")
    assert leftovers("t-clab-hand", engine) == []


def test_a_lab_without_its_files(engine: Engine) -> None:
    """As after a reboot: containers are there, /run is empty. They are listed, and removed."""
    fabtest(*UP, "clos-2x2", "--no-wait")
    shutil.rmtree(Path("/run/fabtest") / LAB)
    assert f"{LAB}  broken" in fabtest("lab-list").stdout
    fabtest("lab-down", LAB)
    assert leftovers(LAB, engine) == []


def test_a_lab_of_the_other_runtime(engine: Engine) -> None:
    fabtest("lab-up", "clos-2x2", "--name", LAB, "--no-wait")
    try:
        one_sentence(fabtest(*UP, "clos-2x2", ok=False), 5, f"lab {LAB} is already there, as netns")
    finally:
        fabtest("lab-down", LAB)
    assert leftovers(LAB, engine) == []


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(seed: int, engine: Engine) -> None:
    """SIGKILL: the next `lab-down` finds everything, whatever it was doing."""
    wait = random.Random(seed).uniform(0.5, 8)
    child = subprocess.Popen([*FABTEST, *UP, "clos-2x2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        child.wait(wait)
    except subprocess.TimeoutExpired:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    time.sleep(0.2)
    fabtest("lab-down", LAB, ok=False)
    assert leftovers(LAB, engine) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, engine: Engine) -> None:
    """An interrupt cleans up before it ends."""
    child = subprocess.Popen(
        [*FABTEST, *UP, "clos-2x2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(3)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "interrupted" in err
    assert leftovers(LAB, engine) == []


def test_locked(tmp_path: Path, engine: Engine) -> None:
    """A lock that was edited is refused with what differs; the right one builds."""
    fabtest("lab-up", "clos-2x2", "--runtime", "containerlab", "--name", LAB, "--no-wait")
    lock = tmp_path / "lab.lock"
    fabtest("lab-lock", LAB, "--out", str(lock))
    fabtest("lab-down", LAB)
    good = lock.read_text()
    lock.write_text(good.replace('"docker": "', '"docker": "0.'))
    done = fabtest(*UP, "clos-2x2", "--locked", str(lock), ok=False)
    assert done.returncode == 5
    assert "version docker: 0." in done.stderr
    assert leftovers(LAB, engine) == []
    lock.write_text(good)
    fabtest(*UP, "clos-2x2", "--locked", str(lock), "--no-wait")
    fabtest("lab-down", LAB)
