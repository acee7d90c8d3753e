"""The images: built once per content, with docker-sonic-vs's traps, and docker-sonic-vs itself told apart."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fabtest.errors import FileProblem, LabError
from fabtest.images import build
from fabtest.runtime.containerlab.engine import Engine
from tests.containers.conftest import fabtest

pytestmark = pytest.mark.usefixtures("images")
LITE = "fabtest/sonic-lite"


def test_what_is_there_is_not_built_again() -> None:
    rows = json.loads(fabtest("images", "--json").stdout)
    assert {r["image"] for r in rows} == {LITE, "fabtest/host"}
    assert not any(r["built"] for r in rows)


def test_content_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.content_hash(build.SONIC_LITE)
    assert before == build.content_hash(build.SONIC_LITE)
    real = build.context

    def changed(recipe: build.Recipe) -> Iterator[tuple[str, bytes, int]]:
        for name, content, mode in real(recipe):
            yield name, content + b"#" if name.endswith("start.sh") else content, mode

    monkeypatch.setattr(build, "context", changed)
    assert build.content_hash(build.SONIC_LITE) != before
    assert build.content_hash(build.HOST) == build.content_hash(build.HOST)


def test_a_base_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    from fabtest.errors import MachineError

    monkeypatch.setattr(build, "REGISTRY_BASE", "registry.invalid/no-such:image")
    with pytest.raises(MachineError, match="cannot be pulled"):
        build.build(engine, build.HOST, base="registry", force=True, say=lambda text: None)


def test_a_build_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    monkeypatch.setattr(
        build,
        "context",
        lambda recipe: iter([("Dockerfile", b"ARG BASE\nFROM $BASE\nRUN echo the-reason; false\n", 0o644)]),
    )
    with pytest.raises(LabError, match="does not build") as caught:
        build.build(engine, build.HOST, force=True, say=lambda text: None)
    assert "the-reason" in str(caught.value)


# ------------------------------------------------------------------------------------------------------ traps


@contextmanager
def switch(engine: Engine, **options: Any) -> Iterator[Any]:
    """A container of the lite image as containerlab's kind starts it: bash first."""
    container = engine.client.containers.run(
        LITE, entrypoint="/bin/bash", tty=True, stdin_open=True, detach=True, privileged=True, hostname="sw", **options
    )
    try:
        yield container
    finally:
        container.remove(force=True)


def boot(container: Any) -> str:
    """Start supervisord and wait for the end of start.sh; its log."""
    container.exec_run("supervisord", detach=True)
    for _ in range(100):
        time.sleep(0.2)
        state = container.exec_run("supervisorctl status start.sh").output.decode()
        if "EXITED" in state or "FATAL" in state:
            break
    return str(container.exec_run("cat /var/log/supervisor/start.log").output.decode())


def running(container: Any, program: str) -> bool:
    return "RUNNING" in container.exec_run(f"supervisorctl status {program}").output.decode()


def config(tmp_path: Path, engine: Engine) -> Path:
    path = tmp_path / "config_db.json"
    path.write_text(json.dumps({"PORT": {"Ethernet0": {"lanes": "25,26,27,28", "admin_status": "up"}}}))
    return path


def test_it_boots_alone_and_does_not_start_bgpd(engine: Engine) -> None:
    with switch(engine) as container:
        boot(container)
        assert running(container, "redis-server")
        assert running(container, "zebra")
        assert not running(container, "bgpd")
        assert container.exec_run("sonic-db-cli CONFIG_DB PING").output == b"PONG\n"


def test_a_directory_is_copied_and_ports_appear(engine: Engine, tmp_path: Path) -> None:
    config(tmp_path, engine)
    with switch(engine, volumes={str(tmp_path): {"bind": "/var/sonic", "mode": "ro"}}) as container:
        container.exec_run("cp /var/sonic/config_db.json /etc/sonic/config_db.json")
        container.exec_run("ip link add eth1 type veth peer name far")
        boot(container)
        assert container.exec_run("ip link show Ethernet0").exit_code == 0


def test_a_bind_of_the_single_file_fails_as_on_the_real_image(engine: Engine, tmp_path: Path) -> None:
    path = config(tmp_path, engine)
    with switch(engine, volumes={str(path): {"bind": "/etc/sonic/config_db.json", "mode": "rw"}}) as container:
        log = boot(container)
        assert "busy" in log
        assert not running(container, "redis-server")


def test_a_wire_without_a_lane_aborts_as_on_the_real_image(engine: Engine, tmp_path: Path) -> None:
    with switch(engine) as container:
        container.exec_run("ip link add eth33 type veth peer name far")
        log = boot(container)
        assert "no lane for eth33" in log
        assert not running(container, "redis-server")


# --------------------------------------------------------------------------------------- docker-sonic-vs, loaded


def _saved(engine: Engine, tmp_path: Path, extra: str) -> Path:
    """A file as SONiC publishes it, of an image that looks like docker-sonic-vs: ours without our label."""
    dockerfile = (
        f"FROM {LITE}\nLABEL {build.GENERATION}=\nRUN printf '{extra}' >>/etc/supervisor/conf.d/supervisord.conf\n"
    )
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(dockerfile)
        archive.addfile(info, io.BytesIO(dockerfile.encode()))
    out.seek(0)
    image, _ = engine.client.images.build(fileobj=out, custom_context=True, tag="docker-sonic-vs:t-clab", rm=True)
    path = tmp_path / "docker-sonic-vs.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for chunk in image.save(named=True):
            file.write(chunk)
    engine.client.images.remove("docker-sonic-vs:t-clab", force=True)
    return path


@pytest.mark.parametrize(("extra", "generation"), [("", "a"), ("[program:bgpcfgd]\\ncommand=/usr/bin/bgpcfgd\\n", "b")])
def test_generations_are_told_apart(engine: Engine, tmp_path: Path, extra: str, generation: str) -> None:
    path = _saved(engine, tmp_path, extra)
    fabtest("images", "--sonic-vs", str(path), timeout=300)
    found = engine.image("fabtest/sonic-vs:latest")
    try:
        assert found is not None
        assert found.labels[build.GENERATION] == generation
        assert len(found.labels[build.SOURCE]) == 64
    finally:
        for image in engine.client.images.list("fabtest/sonic-vs"):
            engine.client.images.remove(image.id, force=True)
        engine.client.images.remove("docker-sonic-vs:t-clab", force=True)


def test_files_that_hold_no_switch(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="cannot read"):
        build.load_sonic_vs(engine, tmp_path / "none.gz", say=lambda text: None)
    text = tmp_path / "text.gz"
    text.write_text("hello")
    done = fabtest("images", "--sonic-vs", str(text), ok=False)
    assert done.returncode == 2
    assert "text.gz holds no image" in done.stderr
    host = tmp_path / "host.tar"
    with open(host, "wb") as file:
        for chunk in engine.client.images.get("fabtest/host").save(named=True):
            file.write(chunk)
    with pytest.raises(LabError, match="is not a docker-sonic-vs"):
        build.load_sonic_vs(engine, host, say=lambda text: None)
