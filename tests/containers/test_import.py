"""A folder of configurations in the management framework's form, in containers: the same verdicts, and FRR follows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabtest.runtime.base import Lab
from fabtest.runtime.containerlab.engine import Engine
from fabtest.runtime.labs import runtime_of
from fabtest.sonic.db import DbId
from tests.containers.conftest import fabtest, leftovers

FABRIC = Path(__file__).parents[1] / "data" / "fabrics" / "frr-mgmt"
LAB = "t-clab-prod"
pytestmark = pytest.mark.usefixtures("images")


@pytest.fixture(scope="module")
def prod(outside: None, images: None, engine: Engine) -> Iterator[Lab]:
    fabtest("lab-up", str(FABRIC), "--name", LAB, "--runtime", "containerlab")
    yield runtime_of(LAB).attach(LAB)
    fabtest("lab-down", LAB)
    assert leftovers(LAB, engine) == []


def test_the_suites_pass(prod: Lab) -> None:
    report = json.loads(fabtest("lab-test", "underlay", "ecmp", "qos-config", "--lab", LAB, "--json").stdout)
    assert report["ok"], report["verdicts"]


def test_frr_follows_config_db(prod: Lab) -> None:
    config = prod.node("rail1-leaf").db(DbId.CONFIG)

    def width() -> int:
        routes = prod.node("rail1-leaf").vty("zebra", "show ip route 10.2.0.2/32 json")
        return sum(hop.get("fib", False) for hop in routes["10.2.0.2/32"][0]["nexthops"])

    assert width() == 2
    for paths, wanted in (("1", 1), ("64", 2)):
        config.hset("BGP_GLOBALS_AF|default|ipv4_unicast", "max_ebgp_paths", paths)
        deadline = time.monotonic() + 20
        while width() != wanted:
            assert time.monotonic() < deadline, f"{width()} paths, not {wanted}"
            time.sleep(0.2)
