"""A lab of containers lives, is used, is broken and mended as one of namespaces is."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fabtest.checks.converge import wait_converged
from fabtest.runtime.base import Capability, Fault
from fabtest.runtime.containerlab.engine import Engine
from fabtest.runtime.containerlab.lab import ContainerLab
from fabtest.runtime.containerlab.runtime import ContainerlabRuntime, clab_file
from fabtest.runtime.containerlab.tool import Containerlab
from fabtest.runtime.state import LabFolder
from fabtest.sonic.db import DbId
from tests.containers.conftest import fabtest, leftovers

LAB = "t-clab"
pytestmark = pytest.mark.usefixtures("images")


@pytest.fixture(scope="module")
def lab(images: None, outside: None) -> Iterator[str]:
    """A clos-2x2 as containers, by the command line."""
    fabtest("lab-down", LAB, ok=False)
    fabtest("lab-up", "clos-2x2", "--runtime", "containerlab", "--name", LAB)
    yield LAB
    fabtest("lab-down", LAB)


def attached() -> ContainerLab:
    return ContainerlabRuntime().attach(LAB)


def eventually(check: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not true within {seconds} s: {check}"
        time.sleep(0.1)


def status() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(fabtest("lab-status", LAB, "--json", ok=False).stdout)
    return value


def test_status_lists_and_containerlab_sees_it(lab: str) -> None:
    found = status()
    assert found["ok"]
    assert found["links"] == {"total": 8, "up": 8, "down": []}
    row = next(r for r in json.loads(fabtest("lab-list", "--json").stdout) if r["name"] == lab)
    assert (row["runtime"], row["state"]) == ("containerlab", "up")
    nodes = {c.node: c for c in Containerlab.find().inspect(lab)}
    assert set(nodes) == {"leaf1", "leaf2", "spine1", "spine2", "gpu1", "gpu2", "gpu3", "gpu4"}
    assert nodes["leaf1"].kind == "sonic-vs"
    assert nodes["leaf1"].group == "leaf"
    assert all(c.state == "running" for c in nodes.values())


def test_commands_work_unchanged(lab: str) -> None:
    assert fabtest("lab-exec", "leaf1", "--lab", lab, "--", "hostname").stdout == "leaf1\n"
    assert fabtest("lab-exec", "leaf1", "--lab", lab, "--", "sh", "-c", "exit 7", ok=False).returncode == 7
    assert fabtest("lab-exec", "leaf1", "--lab", lab, "--", "no-such-program", ok=False).returncode == 127
    assert "Ethernet0" in fabtest("show", "leaf1", "interfaces", "status", "--lab", lab).stdout
    assert "spine1" in fabtest("show", "leaf1", "ip", "bgp", "summary", "--lab", lab).stdout
    assert "ready" in fabtest("lab-logs", "leaf1", "--lab", lab).stdout
    assert "Created link" in fabtest("lab-logs", "--lab", lab).stdout
    vtysh = fabtest("lab-exec", "leaf1", "--lab", lab, "--", "vtysh", "-c", "show bgp summary json").stdout
    assert json.loads(vtysh)["ipv4Unicast"]["peerCount"] == 2
    lock = json.loads(fabtest("lab-lock", lab).stdout)
    assert lock["runtime"] == "containerlab"
    assert len(lock["images"]["fabtest/sonic-lite:latest"]) == 64


def test_files_are_where_sonic_has_them(lab: str) -> None:
    """What tools for docker-sonic-vs count on."""
    script = (
        "test -S /var/run/redis/redis.sock && test -f /var/run/redis/sonic-db/database_config.json && "
        "test -f /etc/sonic/config_db.json && test -f /var/sonic/config_db.json && test -f /etc/frr/frr.conf && "
        "test -x /usr/local/bin/supervisord && sonic-db-cli CONFIG_DB PING && "
        "sonic-db-cli CONFIG_DB HGET 'DEVICE_METADATA|localhost' hostname && "
        "sonic-db-cli STATE_DB HGET 'PORT_TABLE|Ethernet0' netdev_oper_status && supervisorctl status zebra"
    )
    out = fabtest("lab-exec", "leaf1", "--lab", lab, "--", "sh", "-c", script).stdout
    assert out.split()[:3] == ["PONG", "leaf1", "up"]
    assert "RUNNING" in out


def test_only_ethernet_ports_speak_ip(lab: str) -> None:
    """Two interfaces per port must not both answer ARP, nor have link-local addresses."""
    out = fabtest(
        "lab-exec", "leaf1", "--lab", lab, "--", "sh", "-c", "ip -o link show eth1; ip -o addr show eth1"
    ).stdout
    assert "NOARP" in out
    assert "inet6" not in out


def test_nothing_leaves_by_the_management_network(lab: str) -> None:
    for node in ("leaf1", "gpu1"):
        routes = fabtest("lab-exec", node, "--lab", lab, "--", "ip", "route").stdout
        assert "default" not in routes or "dev eth0" not in routes.partition("default")[2].splitlines()[0]


def test_a_port_shut_down_takes_the_far_carrier(lab: str) -> None:
    live = attached()
    live.node("leaf1").exec(["sonic-db-cli", "CONFIG_DB", "HSET", "PORT|Ethernet240", "admin_status", "down"])
    try:
        eventually(lambda: status()["links"]["up"] == 7, 5)
        found = status()
        assert not found["ok"]
        assert any("spine1:Ethernet0 has no carrier" in line for line in found["not_as_designed"])
    finally:
        live.node("leaf1").exec(["sonic-db-cli", "CONFIG_DB", "HSET", "PORT|Ethernet240", "admin_status", "up"])
    wait_converged(attached(), 60)


def test_mtu_of_a_port_reaches_its_wire(lab: str) -> None:
    node = attached().node("leaf1")

    def mtu(name: str) -> str:
        return node.exec(["cat", f"/sys/class/net/{name}/mtu"]).stdout.strip()

    assert (mtu("Ethernet0"), mtu("eth1")) == ("9100", "9100")
    node.db(DbId.CONFIG).hset("PORT|Ethernet0", "mtu", "9216")
    eventually(lambda: (mtu("Ethernet0"), mtu("eth1")) == ("9216", "9216"))
    node.db(DbId.CONFIG).hset("PORT|Ethernet0", "mtu", "9100")
    eventually(lambda: mtu("Ethernet0") == "9100")


def _lost(live: ContainerLab) -> float:
    """Share of 50 pings over the cable between leaf1 and spine1 that got no answer."""
    out = live.node("leaf1").exec(["ping", "-q", "-c", "50", "-i", "0.01", "-W", "1", "172.16.0.1"]).stdout
    return int(out.partition("transmitted, ")[2].split()[0]) / -50 + 1


def test_links_fail_in_every_way_and_are_mended(lab: str) -> None:
    live = attached()
    for fault in Fault:
        live.fail_link("leaf1", "spine1", fault, loss=0.2)
        assert not status()["ok"]
        if fault is not Fault.CARRIER:
            least = 0.1 if fault is Fault.GREY else 0.9
            assert _lost(live) > least
        live.repair_link("leaf1", "spine1")
        wait_converged(attached(), 60)
        assert status()["ok"]


def test_a_node_is_switched_off_and_on(lab: str) -> None:
    fabtest("node-down", "spine2", "--lab", lab)
    found = status()
    assert next(n for n in found["nodes"] if n["name"] == "spine2")["state"] == "off"
    assert found["links"]["up"] == 6
    assert found["agent"]
    fabtest("agent-restart", "--lab", lab)
    fabtest("node-up", "spine2", "--lab", lab)
    wait_converged(attached(), 60)
    assert status()["ok"]
    fabtest("node-down", "gpu1", "--lab", lab)
    found = status()
    assert found["links"]["up"] == 7
    assert found["agent"]
    fabtest("node-up", "gpu1", "--lab", lab)
    assert status()["ok"]


def test_the_agent_is_missed_and_restarted(lab: str) -> None:
    attached().node("leaf1").exec(["supervisorctl", "stop", "litenode"])
    found = status()
    assert not found["agent"]
    assert any("no agent runs in leaf1" in line for line in found["not_as_designed"])
    fabtest("agent-restart", "--lab", lab)
    eventually(lambda: status()["ok"])


def test_a_port_shut_stays_shut_and_opens_again_over_a_restart_of_the_agent(lab: str) -> None:
    node = attached().node("leaf1")

    def carrier() -> str:
        return attached().node("spine2").exec(["cat", "/sys/class/net/eth1/operstate"]).stdout.strip()

    node.db(DbId.CONFIG).hset("PORT|Ethernet248", "admin_status", "down")
    eventually(lambda: carrier() == "down")
    node.exec(["supervisorctl", "stop", "litenode"])
    node.db(DbId.CONFIG).hset("PORT|Ethernet248", "admin_status", "up")
    node.exec(["supervisorctl", "start", "litenode"])
    eventually(lambda: carrier() == "up")
    wait_converged(attached(), 60)


def test_a_command_out_of_time_does_not_stay(lab: str) -> None:
    done = fabtest("lab-exec", "gpu1", "--lab", lab, "--timeout", "1", "--", "sleep", "4711", ok=False)
    assert done.returncode == 124
    assert "sleep 4711" not in attached().node("gpu1").exec(["ps", "ax"]).stdout


def test_a_wrong_config_fails_the_right_check(lab: str) -> None:
    """ECN off in one profile of one switch, ECMP by layer 3 in another: each check names its switch."""
    leaf1, leaf2 = attached().node("leaf1"), attached().node("leaf2")
    profile = next(k for k in leaf1.db(DbId.CONFIG).keys("WRED_PROFILE|*"))
    before = leaf1.db(DbId.CONFIG).hget(profile, "ecn")
    hashed = leaf2.db(DbId.CONFIG).hget("SWITCH_HASH|GLOBAL", "ecmp_hash@")
    leaf1.db(DbId.CONFIG).hdel(profile, "ecn")
    leaf2.db(DbId.CONFIG).hset("SWITCH_HASH|GLOBAL", "ecmp_hash@", "SRC_IP,DST_IP")
    try:
        time.sleep(1)
        done = fabtest("lab-test", "qos-config", "ecmp", "--lab", lab, "--json", ok=False)
        verdicts = {v["check"]: v for v in json.loads(done.stdout)["verdicts"]}
        assert verdicts["qos-config.ecn"]["outcome"] == "fail"
        assert "leaf1" in verdicts["qos-config.ecn"]["sentence"]
        assert verdicts["qos-config.pfc"]["outcome"] == "pass"
        assert verdicts["ecmp.spread"]["outcome"] == "fail"
        assert "leaf2" in verdicts["ecmp.spread"]["sentence"]
    finally:
        leaf1.db(DbId.CONFIG).hset(profile, "ecn", before)
        leaf2.db(DbId.CONFIG).hset("SWITCH_HASH|GLOBAL", "ecmp_hash@", hashed)


def test_traffic_is_the_same_engine(lab: str) -> None:
    """The engine enters containers as it enters namespaces: nothing of it knows which it is."""
    found = json.loads(fabtest("traffic-run", "ring-allreduce", "--lab", lab, "--check", "--json").stdout)
    assert found["ok"]
    assert found["failed_messages"] == 0
    assert found["jobs"]


def test_a_restart_by_containerlab_is_survived(lab: str) -> None:
    folder = LabFolder(LAB)
    for node in ("leaf1", "gpu2"):
        Containerlab.find().restart(clab_file(folder), node, log=folder.path / "containerlab.log")
    eventually(lambda: status()["ok"], 90)
    done = fabtest("lab-test", "underlay", "--lab", lab, "--json")
    assert json.loads(done.stdout)["ok"]


def test_a_restart_by_docker_is_reported_and_mended(lab: str, engine: Engine) -> None:
    container = engine.client.containers.get(f"clab-{LAB}-leaf1")
    container.restart(timeout=1)
    found = status()
    assert any("leaf1: its cables have gone" in line for line in found["not_as_designed"])
    assert next(n for n in found["nodes"] if n["name"] == "leaf1")["state"] == "degraded"
    done = fabtest("node-up", "leaf1", "--lab", lab, ok=False)
    assert done.returncode == 5
    assert any("leaf1: its cables have gone" in line for line in status()["not_as_designed"])
    engine.client.containers.get(f"clab-{LAB}-gpu3").kill()
    assert any("gpu3: its container is" in line for line in status()["not_as_designed"])
    done = fabtest("lab-exec", "gpu3", "--lab", lab, "--", "hostname", ok=False)
    assert done.returncode == 5
    assert "its container is" in done.stderr
    fabtest("lab-up", "clos-2x2", "--runtime", "containerlab", "--name", LAB)
    assert status()["ok"]
    done = fabtest("lab-up", "clos-2x2", "--runtime", "containerlab", "--name", LAB, ok=False)
    assert "is already up" in done.stderr
    done = fabtest("lab-up", "rail-4x4", "--runtime", "containerlab", "--name", LAB, ok=False)
    assert "is already up, of another topology" in done.stderr
    assert status()["ok"]


def test_a_lab_goes_and_others_stay(engine: Engine, tmp_path: Path, outside: None) -> None:
    """`lab-down` takes containers, network, links and files of its lab, and nothing of a lab someone else made."""
    other = tmp_path / "other.clab.yml"
    other.write_text(
        "name: t-clab-other\nmgmt: {network: t-clab-other, ipv4-subnet: 10.252.7.0/24}\ntopology:\n  nodes:\n"
        "    a: {kind: linux, image: fabtest/host}\n    b: {kind: linux, image: fabtest/host}\n"
        "  links:\n    - endpoints: [a:eth1, b:eth1]\n"
    )
    tool = Containerlab.find()
    tool.deploy(other, log=tmp_path / "log")
    try:
        name = "t-clab-gone"
        fabtest("lab-up", "clos-2x2", "--runtime", "containerlab", "--name", name, "--no-wait")
        clash = fabtest("lab-up", "clos-2x2", "--runtime", "containerlab", "--name", "t-clab-other", ok=False)
        assert clash.returncode == 5
        assert "lab t-clab-other that fabtest did not make" in clash.stderr
        fabtest("lab-down", name)
        assert leftovers(name, engine) == []
        assert fabtest("lab-down", "t-clab-other", ok=False).returncode == 5
        still = {c.node: c.state for c in tool.inspect("t-clab-other")}
        assert still == {"a": "running", "b": "running"}
        pinged = subprocess.run(
            ["docker", "exec", "clab-t-clab-other-a", "cat", "/sys/class/net/eth1/carrier"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert pinged.stdout.strip() == "1"
    finally:
        tool.destroy(other, log=tmp_path / "log")


def test_capabilities_are_what_the_image_has(lab: str) -> None:
    found = attached().capabilities
    assert {Capability.CONFIG_DB, Capability.COUNTERS, Capability.LLDP} <= found
    assert Capability.ASIC_DB not in found
