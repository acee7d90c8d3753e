"""The boot script on both generations of docker-sonic-vs, as far as they differ for it.

The images themselves cannot be had here; ``fabtest/sonic-lite`` starts up as generation A does. What generation B does
on top (from June 2026: copy /var/sonic, run bgpcfgd, start bgpd itself) is put into an image of its own.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabtest.runtime.containerlab.engine import Engine
from fabtest.runtime.containerlab.runtime import ContainerlabRuntime
from tests.containers.conftest import fabtest, leftovers

LAB = "t-clab-genb"
IMAGE = "t-clab-sonic:b"
DOCKERFILE = r"""FROM fabtest/sonic-lite
LABEL fabtest.generation=b
RUN sed -i 's#^python3 -m fabtest.litenode.container merge#[ ! -f /var/sonic/config_db.json ] || cp /var/sonic/config_db.json /etc/sonic/\n&#' /usr/bin/start.sh \
 && printf 'supervisorctl start bgpd bgpcfgd\n' >>/usr/bin/start.sh \
 && printf '\n[program:bgpcfgd]\ncommand=/bin/sleep infinity\nautostart=false\nstartsecs=0\n' >>/etc/supervisor/conf.d/supervisord.conf
"""


@pytest.fixture
def image(images: None, engine: Engine) -> Iterator[str]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(DOCKERFILE)
        archive.addfile(info, io.BytesIO(DOCKERFILE.encode()))
    out.seek(0)
    engine.client.images.build(fileobj=out, custom_context=True, tag=IMAGE, rm=True)
    yield IMAGE
    engine.client.images.remove(IMAGE, force=True)


def test_generation_b_boots(image: str, tmp_path: Path, engine: Engine) -> None:
    """bgpd that the image has started before the script comes to it takes our frr.conf, once."""
    file = tmp_path / "genb.yml"
    file.write_text(f"kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 1\nemulation: {{sonic_image: '{image}'}}\n")
    fabtest("lab-up", str(file), "--runtime", "containerlab", "--name", LAB)
    try:
        leaf = ContainerlabRuntime().attach(LAB).node("leaf1")
        status = leaf.exec(["supervisorctl", "status"]).stdout
        assert "bgpcfgd" in status
        assert "RUNNING" in next(line for line in status.splitlines() if line.startswith("bgpd "))
        running = leaf.exec(["vtysh", "-c", "show running-config"]).stdout
        assert running.count("\nrouter bgp ") == 1
        fabtest("lab-test", "underlay", "--lab", LAB)
    finally:
        fabtest("lab-down", LAB)
    assert leftovers(LAB, engine) == []
