"""containerlab from its own image, where there is no binary: the same answers through the Docker API."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabtest.runtime.containerlab import tool
from fabtest.runtime.containerlab.engine import Engine, ImageLauncher
from fabtest.runtime.containerlab.tool import Containerlab

IMAGE = "fabtest/t-clab-tool"


def binary() -> Path:
    """The program itself, also where the command on PATH is a script around it."""
    command = Path(shutil.which("containerlab") or "/nowhere")
    found = [command]
    if command.is_file() and command.read_bytes()[:2] == b"#!":
        found += [Path(name) for name in re.findall(r"/[^\s\"']+/containerlab\b", command.read_text())]
    for path in found:
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            return path
    pytest.skip("no containerlab binary to put into an image")


@pytest.fixture(scope="module")
def image(images: None, engine: Engine) -> Iterator[str]:
    """As containerlab publishes it: the program on a small base."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        dockerfile = b"FROM fabtest/host\nCOPY containerlab /usr/bin/containerlab\nENTRYPOINT []\nCMD []\n"
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(dockerfile)
        archive.addfile(info, io.BytesIO(dockerfile))
        archive.add(binary(), "containerlab")
    out.seek(0)
    engine.client.images.build(fileobj=out, custom_context=True, tag=IMAGE, rm=True)
    yield IMAGE
    engine.client.images.remove(IMAGE, force=True)


def test_found_by_image(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = binary()
    monkeypatch.setattr(tool, "IMAGE", image)
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    if shutil.which("containerlab"):
        pytest.skip("containerlab is installed in /usr/bin: it is preferred")
    found = Containerlab.find()
    assert isinstance(found.launcher, ImageLauncher)
    assert found.version >= tool.OLDEST
    assert found.inspect() == Containerlab(tool.Binary(str(program)), found.version).inspect()


def test_it_deploys(image: str, tmp_path: Path) -> None:
    if not Path("/proc/modules").exists():
        pytest.skip("containerlab needs /proc/modules, which this kernel, built without modules, does not have")
    topology = tmp_path / "t-clab-tool.clab.yml"
    topology.write_text(
        "name: t-clab-tool\nmgmt: {network: t-clab-tool, ipv4-subnet: 10.252.8.0/24}\ntopology:\n  nodes:\n"
        "    a: {kind: linux, image: fabtest/host}\n    b: {kind: linux, image: fabtest/host}\n"
        "  links:\n    - endpoints: [a:eth1, b:eth1]\n"
    )
    lines: list[str] = []
    by_image = Containerlab(ImageLauncher(image), (0, 79, 0))
    try:
        deployed = by_image.deploy(topology, log=tmp_path / "log", line=lines.append)
        assert {c.node for c in deployed} == {"a", "b"}
        assert any("Created link" in line for line in lines)
    finally:
        by_image.destroy(topology, log=tmp_path / "log")
    assert by_image.inspect("t-clab-tool") == []


def test_its_errors_are_ours(image: str, tmp_path: Path) -> None:
    from fabtest.errors import LabError

    topology = tmp_path / "bad.clab.yml"
    topology.write_text("name: bad\ntopology: {nodes: {a: {kind: no-such-kind}}}\n")
    with pytest.raises(LabError, match="could not deploy"):
        Containerlab(ImageLauncher(image), (0, 79, 0)).deploy(topology, log=tmp_path / "log")
    assert (tmp_path / "log").read_text()
