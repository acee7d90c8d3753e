"""Configurations that exist, run as they are: rendered ones and hand-written ones in both of SONiC's forms."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fabtest.checks import underlay
from fabtest.runtime.base import Lab
from fabtest.runtime.labs import runtime_of
from fabtest.sonic.db import DbId
from tests.lab.conftest import eventually, fabtest

FABRICS = Path(__file__).parents[1] / "data" / "fabrics"


def suites_pass(lab: str) -> dict[str, Any]:
    report = json.loads(fabtest("lab-test", "--lab", lab, "--json", timeout=300).stdout)
    assert report["ok"], [v for v in report["verdicts"] if v["outcome"] != "pass"]
    return {v["check"]: v for v in report["verdicts"]}


def test_export_delete_import_up(tmp_path: Path) -> None:
    """rail-4x4 rendered, its topology gone: imported from the files alone, it runs and passes every suite, and renders
    the same bytes."""
    folder = tmp_path / "exported"
    fabtest("config-render", "rail-4x4", "--out", str(folder))
    topology = tmp_path / "topology.yml"
    fabtest("fabric-import", str(folder), "--out", str(topology), "--name", "t-again")
    fabtest("lab-up", str(topology))
    try:
        assert len(suites_pass("t-again")) >= 20
        fabtest("node-down", "leaf1", "--lab", "t-again")
        fabtest("node-up", "leaf1", "--lab", "t-again")
        eventually(lambda: fabtest("lab-status", "--lab", "t-again", ok=False).returncode == 0, 30, 0.3)
    finally:
        fabtest("lab-down", "t-again")
    fabtest("config-render", str(topology), "--out", str(tmp_path / "again"))
    for path in sorted(folder.glob("*/*")):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(folder)).read_bytes(), path


@pytest.mark.parametrize("form", ["bgpcfgd", "frr-mgmt"])
def test_a_production_fabric(form: str, tmp_path: Path) -> None:
    """From a folder of hand-written files to every suite passed; the files are untouched."""
    folder = tmp_path / "prod"
    shutil.copytree(FABRICS / form, folder)
    topology = tmp_path / f"t-{form}.yml"
    report = json.loads(fabtest("fabric-import", str(folder), "--out", str(topology), "--json").stdout)
    assert {s["routing"] for s in report["switches"]} == {form}
    assert not report["contradictions"]
    fabtest("lab-up", str(topology), "--name", f"t-{form}")
    try:
        verdicts = suites_pass(f"t-{form}")
        assert "failover.link-carrier" in verdicts
    finally:
        fabtest("lab-down", f"t-{form}")
    for path in folder.glob("*/config_db.json"):
        assert path.read_bytes() == (FABRICS / form / path.relative_to(folder)).read_bytes()


@pytest.fixture(scope="module")
def prod() -> Iterator[Lab]:
    fabtest("lab-up", str(FABRICS / "bgpcfgd"), "--name", "t-prod")
    yield runtime_of("t-prod").attach("t-prod")
    fabtest("lab-down", "t-prod")


def state(lab: Lab, switch: str, peer: str) -> str:
    summary = lab.node(switch).vty("bgpd", "show bgp summary json")
    return str(summary.get("ipv4Unicast", {}).get("peers", {}).get(peer, {}).get("state", "absent"))


def test_bgp_follows_config_db(prod: Lab) -> None:
    """As with bgpcfgd: a neighbour that is shut down in CONFIG_DB goes, one that is removed is gone, and both come
    back. The suites name it meanwhile."""
    config = prod.node("dc1-leaf-01").db(DbId.CONFIG)
    key = "BGP_NEIGHBOR|10.0.0.1"
    row = config.hgetall(key)
    config.hset(key, "admin_status", "down")
    eventually(lambda: state(prod, "dc1-leaf-01", "10.0.0.1").startswith("Idle"), 15, 0.1)
    verdict = underlay.sessions(prod)
    assert not verdict.passed
    assert "dc1-leaf-01:Ethernet56" in verdict.where
    config.delete(key)
    eventually(lambda: state(prod, "dc1-leaf-01", "10.0.0.1") == "absent", 15, 0.1)
    config.hset(key, mapping=row)
    eventually(lambda: state(prod, "dc1-leaf-01", "10.0.0.1") == "Established", 30, 0.1)
    eventually(lambda: underlay.sessions(prod).passed, 10, 0.2)


def test_a_change_while_the_agent_was_away(prod: Lab) -> None:
    """A new agent brings FRR to what CONFIG_DB says by then."""
    from fabtest.runtime import processes
    from fabtest.runtime.boot import agent_pid
    from fabtest.runtime.processes import Process

    pid = agent_pid("t-prod")
    assert pid is not None
    processes.end([Process(pid, "agent")], gently=(pid,))
    config = prod.node("dc1-leaf-02").db(DbId.CONFIG)
    config.hset("BGP_NEIGHBOR|10.0.0.5", "admin_status", "down")
    prod.restart_agent()
    eventually(lambda: state(prod, "dc1-leaf-02", "10.0.0.5").startswith("Idle"), 20, 0.1)
    config.hset("BGP_NEIGHBOR|10.0.0.5", "admin_status", "up")
    eventually(lambda: state(prod, "dc1-leaf-02", "10.0.0.5") == "Established", 30, 0.1)


def test_snapshot_and_verify(prod: Lab, tmp_path: Path) -> None:
    """A kept state is the same while nothing changes, and what differs is named."""
    eventually(lambda: underlay.routes(prod).passed and underlay.sessions(prod).passed, 30, 0.2)
    file = tmp_path / "golden.json"
    fabtest("lab-snapshot", "--lab", "t-prod", "--out", str(file))
    done = fabtest("lab-verify", str(file), "--lab", "t-prod")
    assert "is as it was" in done.stdout
    config = prod.node("dc1-spine-01").db(DbId.CONFIG)
    (profile,) = [k for k in config.keys("WRED_PROFILE|*") if config.hget(k, "ecn") == "ecn_all"]
    config.hset(profile, "ecn", "ecn_none")
    try:
        done = fabtest("lab-verify", str(file), "--lab", "t-prod", "--json", ok=False)
        assert done.returncode == 1
        changes = json.loads(done.stdout)["changes"]
        assert {(x["switch"], x["kind"], x["worse"]) for x in changes} == {("dc1-spine-01", "qos", True)}
        diff = json.loads(fabtest("config-diff", str(FABRICS / "bgpcfgd"), "t-prod", "--json", ok=False).stdout)
        assert [(x["switch"], x["after"]) for x in diff["changes"]] == [("dc1-spine-01", "ecn_none")]
        assert "QOS002" in {f["rule"] for f in diff["lint"]["gained"]}
    finally:
        config.hset(profile, "ecn", "ecn_all")
    assert fabtest("config-diff", str(FABRICS / "bgpcfgd"), "t-prod").stdout == "no difference\n"


@pytest.mark.parametrize("broken", ["no file", "not JSON", "a cable short"])
def test_bad_input_leaves_nothing(broken: str, tmp_path: Path) -> None:
    folder = tmp_path / "prod"
    shutil.copytree(FABRICS / "bgpcfgd", folder)
    if broken == "no file":
        shutil.rmtree(folder / "DC1-SPINE-01")
    elif broken == "not JSON":
        (folder / "DC1-SPINE-01" / "config_db.json").write_text("{")
    else:
        path = folder / "DC1-SPINE-01" / "config_db.json"
        config = json.loads(path.read_text())
        config["DEVICE_NEIGHBOR"]["Ethernet0"]["port"] = "Ethernet60"
        path.write_text(json.dumps(config))
    done = fabtest("lab-up", str(folder), "--name", "t-bad", ok=False)
    assert done.returncode == 2
    assert "fabtest: " in done.stderr
    assert "t-bad" not in fabtest("lab-list").stdout
    target = tmp_path / "t.yml"
    assert fabtest("fabric-import", str(folder), "--out", str(target), ok=False).returncode == 2
    assert not target.exists()


def test_a_topology_of_ones_own_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "t.yml"
    target.write_text("mine\n")
    done = fabtest("fabric-import", str(FABRICS / "frr-mgmt"), "--out", str(target), ok=False)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert target.read_text() == "mine\n"
    fabtest("fabric-import", str(FABRICS / "frr-mgmt"), "--out", str(target), "--force")
    assert "kind: custom" in target.read_text()
