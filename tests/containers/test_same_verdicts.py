"""Namespaces and containers give the same verdict on the same topology, check by check."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fabtest.runtime.containerlab.engine import Engine
from tests.containers.conftest import fabtest, leftovers

pytestmark = pytest.mark.usefixtures("images")


def verdicts(topology: str, runtime: str) -> dict[str, str]:
    name = f"t-clab-{runtime[:5]}"
    fabtest("lab-down", name, ok=False)
    fabtest("lab-up", topology, "--runtime", runtime, "--name", name)
    try:
        done = fabtest("lab-test", "--lab", name, "--json", timeout=600)
        result: dict[str, Any] = json.loads(done.stdout)
        return {v["check"]: v["outcome"] for v in result["verdicts"]}
    finally:
        fabtest("lab-down", name)


@pytest.mark.parametrize("topology", ["clos-2x2", "rail-4x4"])
def test_every_check_agrees(topology: str, engine: Engine) -> None:
    of_containers = verdicts(topology, "containerlab")
    assert leftovers("t-clab-conta", engine) == []
    assert of_containers == verdicts(topology, "netns")
    assert len(of_containers) > 15
    assert set(of_containers.values()) == {"pass"}
