"""The lite node follows CONFIG_DB live, publishes what it sees, and survives its agent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from fabtest.checks import underlay
from fabtest.checks.converge import wait_converged
from fabtest.checks.observe import link_health, links, sessions
from fabtest.checks.status import lab_status
from fabtest.errors import UsageError
from fabtest.roce.send import nic_named
from fabtest.roce.transfer import transfer
from fabtest.runtime import processes
from fabtest.runtime.base import Fault, Lab
from fabtest.runtime.boot import agent_pid
from fabtest.sonic.db import DbId
from tests.lab.conftest import eventually, running

LEAF, UPLINK, SPINE = "leaf1", "Ethernet240", "spine1"


def test_admin_status_down_and_up(small: Lab) -> None:
    """redis-cli HSET 'PORT|Ethernet240' admin_status down, as a user would."""
    folder = small.node(LEAF).folder  # type: ignore[attr-defined]
    set_to = ["redis-cli", "-s", str(folder / "redis.sock"), "-n", "4", "HSET", f"PORT|{UPLINK}", "admin_status"]
    done = small.node("gpu1").exec([*set_to, "down"])
    assert done.returncode == 0, done
    took = eventually(lambda: not links(small.node(LEAF))[UPLINK].up, 1)
    assert took < 1
    eventually(lambda: not links(small.node(SPINE))["Ethernet0"].running, 1)
    appl = small.node(LEAF).db(DbId.APPL)
    eventually(lambda: appl.hget(f"PORT_TABLE:{UPLINK}", "oper_status") == "down", 1)
    eventually(lambda: appl.hget("ROUTE_TABLE:10.0.2.0/24", "ifname") == "Ethernet248", 5)
    status = lab_status(small)
    assert any(f"{LEAF}:{UPLINK} is administratively down" in line for line in status.trouble)
    assert any("has 1 of 2 paths" in line or "is missing" in line for line in status.trouble)
    small.node("gpu1").exec([*set_to, "up"])
    wait_converged(small, 30)
    eventually(lambda: appl.hget("ROUTE_TABLE:10.0.2.0/24", "ifname") == "Ethernet240,Ethernet248", 5)
    assert lab_status(small).trouble == ()


def test_mtu_and_address(small: Lab) -> None:
    db = small.node(LEAF).db(DbId.CONFIG)
    db.hset("PORT|Ethernet0", "mtu", "4000")
    eventually(lambda: links(small.node(LEAF))["Ethernet0"].mtu == 4000, 1)
    db.hset("PORT|Ethernet0", "mtu", "9100")
    eventually(lambda: links(small.node(LEAF))["Ethernet0"].mtu == 9100, 1)

    def addresses() -> str:
        return small.node(LEAF).exec(["ip", "-o", "address"]).stdout

    db.hset("INTERFACE|Ethernet16|10.50.0.1/24", mapping={"NULL": "NULL"})
    db.hset("LOOPBACK_INTERFACE|Loopback7|10.51.0.1/32", mapping={"NULL": "NULL"})
    db.hset("LOOPBACK_INTERFACE|Loopback7", mapping={"NULL": "NULL"})
    eventually(lambda: "10.51.0.1/32" in addresses(), 1)
    db.hset("INTERFACE|Ethernet0|10.52.0.1/24", mapping={"NULL": "NULL"})
    eventually(lambda: "10.52.0.1/24" in addresses(), 1)
    appl = small.node(LEAF).db(DbId.APPL)
    eventually(lambda: appl.exists("INTF_TABLE:Ethernet0:10.52.0.1/24"), 1)
    for key in (
        "INTERFACE|Ethernet0|10.52.0.1/24",
        "INTERFACE|Ethernet16|10.50.0.1/24",
        "LOOPBACK_INTERFACE|Loopback7|10.51.0.1/32",
        "LOOPBACK_INTERFACE|Loopback7",
    ):
        db.delete(key)
    eventually(lambda: "10.52.0.1" not in addresses() and "Loopback7" not in addresses(), 1)
    eventually(lambda: not appl.exists("INTF_TABLE:Ethernet0:10.52.0.1/24"), 1)


def test_hash_fields_and_seed(small: Lab) -> None:
    node = small.node(LEAF)

    def sysctl(name: str) -> str:
        return node.exec(["cat", f"/proc/sys/net/ipv4/fib_multipath_hash_{name}"]).stdout.strip()

    fields, seed = sysctl("fields"), sysctl("seed")
    config, appl = node.db(DbId.CONFIG), node.db(DbId.APPL)
    before = config.hget("SWITCH_HASH|GLOBAL", "ecmp_hash@")
    config.hset("SWITCH_HASH|GLOBAL", "ecmp_hash@", "SRC_IP,DST_IP")
    eventually(lambda: int(sysctl("fields"), 0) == 3, 1)
    config.hset("SWITCH_HASH|GLOBAL", "ecmp_hash@", before)
    eventually(lambda: sysctl("fields") == fields, 1)
    appl.hset("SWITCH_TABLE:switch", "ecmp_hash_seed", "77")
    eventually(lambda: sysctl("seed").split()[0] == "77", 1)
    appl.hset("SWITCH_TABLE:switch", "ecmp_hash_seed", seed.split()[0])
    eventually(lambda: sysctl("seed") == seed, 1)


def test_what_is_published(small: Lab) -> None:
    node = small.node(LEAF)
    appl, state, counters = node.db(DbId.APPL), node.db(DbId.STATE), node.db(DbId.COUNTERS)
    route = {
        "protocol": "bgp",
        "nexthop": "172.16.0.1,172.16.0.3",
        "ifname": "Ethernet240,Ethernet248",
        "weight": "1,1",
    }
    eventually(lambda: appl.hgetall("ROUTE_TABLE:10.0.2.0/24") == route, 3)
    neighbour = {"neigh": small.fabric.switch[SPINE].mac, "family": "IPv4"}
    eventually(lambda: appl.hgetall("NEIGH_TABLE:Ethernet240:172.16.0.1") == neighbour, 3)
    eventually(lambda: appl.hget("LLDP_ENTRY_TABLE:Ethernet240", "lldp_rem_sys_name") == SPINE, 3)
    eventually(lambda: state.hget("NEIGH_STATE_TABLE|172.16.0.1", "state") == "Established", 3)
    assert state.hget("PORT_TABLE|Ethernet240", "netdev_oper_status") == "up"
    oid = counters.hget("COUNTERS_PORT_NAME_MAP", "Ethernet0")
    before = int(counters.hget(f"COUNTERS:{oid}", "SAI_PORT_STAT_IF_IN_UCAST_PKTS"))
    result = transfer(small, nic_named(small, "gpu1", 4), nic_named(small, "gpu3", 4), count=500, flows=5, pps=0)
    assert result.lost == 0
    eventually(lambda: int(counters.hget(f"COUNTERS:{oid}", "SAI_PORT_STAT_IF_IN_UCAST_PKTS")) >= before + 500, 4)


def test_agent_killed_and_restarted(small: Lab) -> None:
    """Traffic does not notice; what changed meanwhile is caught up with; rows without a cause go."""
    pid = agent_pid(small.name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not small.agent_running())
    assert any("agent does not run" in line for line in lab_status(small).trouble)
    result = transfer(small, nic_named(small, "gpu1", 4), nic_named(small, "gpu3", 4), count=500, flows=5, pps=0)
    assert result.lost == 0
    node = small.node(LEAF)
    node.db(DbId.CONFIG).hset("PORT|Ethernet0", "mtu", "5000")
    node.db(DbId.APPL).hset("ROUTE_TABLE:203.0.113.0/24", mapping={"nexthop": "1.2.3.4", "ifname": "Ethernet0"})
    time.sleep(0.3)
    assert links(node)["Ethernet0"].mtu == 9100
    small.restart_agent()
    eventually(small.agent_running)
    eventually(lambda: links(node)["Ethernet0"].mtu == 5000, 2)
    eventually(lambda: not node.db(DbId.APPL).exists("ROUTE_TABLE:203.0.113.0/24"), 2)
    node.db(DbId.CONFIG).hset("PORT|Ethernet0", "mtu", "9100")
    eventually(lambda: links(node)["Ethernet0"].mtu == 9100, 1)
    eventually(lambda: underlay.cabling(small).passed, 5)


def test_silent_and_carrier_faults(small: Lab) -> None:
    small.fail_link(LEAF, SPINE, Fault.SILENT)
    assert links(small.node(LEAF))[UPLINK].running
    status = lab_status(small)
    assert any("drops every frame" in line for line in status.trouble)
    small.repair_link(LEAF, SPINE)
    assert not small.faults()
    small.fail_link(f"{LEAF}:{UPLINK}", SPINE, Fault.CARRIER)
    assert not links(small.node(LEAF))[UPLINK].running
    # A change of CONFIG_DB elsewhere on the switch must not mend the cable.
    small.node(SPINE).db(DbId.CONFIG).hset("PORT|Ethernet8", "mtu", "9000")
    eventually(lambda: links(small.node(SPINE))["Ethernet8"].mtu == 9000, 1)
    assert not links(small.node(LEAF))[UPLINK].running
    small.node(SPINE).db(DbId.CONFIG).hset("PORT|Ethernet8", "mtu", "9100")
    small.repair_link(LEAF, SPINE)
    wait_converged(small, 60)


def test_two_kinds_of_fault_on_one_cable(small: Lab) -> None:
    """Whatever was done to it in whatever order, link-up mends it."""
    for kinds in ((Fault.CARRIER, Fault.SILENT), (Fault.SILENT, Fault.CARRIER)):
        for kind in kinds:
            small.fail_link(LEAF, SPINE, kind)
        small.repair_link(LEAF, SPINE)
        for node, port in ((LEAF, UPLINK), (SPINE, "Ethernet0")):
            eventually(lambda n=node, p=port: links(small.node(n))[p].running, 2)  # type: ignore[misc]
            assert not links(small.node(node))[port].xdp
        assert small.faults() == {}
    wait_converged(small, 60)


def test_node_up_of_a_node_that_is_up(small: Lab) -> None:
    """A second node-up starts no second set of daemons."""
    small.start_node(SPINE)
    small.start_node(SPINE)
    wait_converged(small, 60)
    names = sorted(p.name for p in processes.of_lab("no lab of this name", [small.node(SPINE).netns]))
    assert names == ["bgpd", "redis-server", "zebra"]
    small.start_node("gpu1")
    rules = small.node("gpu1").exec(["ip", "rule"]).stdout.splitlines()
    assert len(rules) == len(set(rules))


def test_one_refused_row_does_not_stop_the_rest(small: Lab) -> None:
    """An IPv6 address where IPv6 is off: the kernel refuses it, everything else goes on."""
    db = small.node(LEAF).db(DbId.CONFIG)
    db.hset("INTERFACE|Ethernet0|fd00::1/64", mapping={"NULL": "NULL"})
    db.hset("PORT|Ethernet8", "mtu", "8000")
    appl = small.node(LEAF).db(DbId.APPL)
    eventually(lambda: links(small.node(LEAF))["Ethernet8"].mtu == 8000, 2)
    eventually(lambda: appl.hget("PORT_TABLE:Ethernet8", "mtu") == "8000", 2)
    db.delete("INTERFACE|Ethernet0|fd00::1/64")
    db.hset("PORT|Ethernet8", "mtu", "9100")
    eventually(lambda: links(small.node(LEAF))["Ethernet8"].mtu == 9100, 2)


def test_node_down_and_up(small: Lab) -> None:
    small.stop_node(SPINE)
    assert not links(small.node(LEAF))[UPLINK].running
    assert any(s.state != "Established" for s in sessions(small, small.fabric.switch[LEAF]))
    assert next(n for n in lab_status(small).nodes if n.name == SPINE).state == "off"
    small.start_node(SPINE)
    wait_converged(small, 60)
    eventually(lambda: lab_status(small).trouble == (), 10)


VARIANTS = {
    "vlan": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 3\nserver:\n  attachment: vlan\n",
    "dual-stack": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\naddressing:\n  families: dual\n",
    "ipv6": "kind: rail\nrails: 2\nspines: 2\nservers_per_unit: 2\naddressing:\n  families: ipv6\n",
    "unnumbered": (
        "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\naddressing:\n  fabric_links: unnumbered\n"
    ),
    "bfd": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\nbgp:\n  bfd: true\n",
    "two-links": (
        "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\nlinks_per_spine: 2\nswitches:\n  leaf:\n"
        "    uplink_breakout: 2x200G\n  spine:\n    downlink_breakout: 2x200G\n"
    ),
    "lossy": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\nqos: lossy\n",
    "custom": (
        "kind: custom\nnodes:\n  - {name: tor-a}\n  - {name: tor-b}\n  - {name: core, tier: spine}\n"
        "servers:\n  - {name: node-a}\n  - {name: node-b}\nlinks:\n"
        "  - {a: tor-a, b: core}\n  - {a: tor-b, b: core}\n  - {a: node-a, b: tor-a}\n  - {a: node-b, b: tor-b}\n"
    ),
}  # fmt: skip


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with running(VARIANTS[request.param], f"t-{request.param}") as lab:
        yield lab


def test_variants_converge_and_pass(variant: Lab) -> None:
    """Every way to attach servers and number links works end to end."""
    from fabtest.checks import ecmp, qos_config
    from fabtest.checks.verdict import NotApplicable

    checks = [underlay.links_up, underlay.cabling, underlay.sessions, underlay.routes, underlay.mtu, ecmp.width]
    checks += [ecmp.spreading, ecmp.one_path, ecmp.local, ecmp.polarisation]
    checks += [qos_config.maps, qos_config.pfc, qos_config.ecn, qos_config.schedulers, qos_config.buffers]
    for check in checks:
        try:
            verdict = check(variant)
        except NotApplicable:
            continue
        assert verdict.passed, f"{verdict.check}: {verdict.sentence}"
    for family in variant.fabric.families:
        verdict = underlay.reachability(variant, family)
        assert verdict.passed, verdict.sentence


def test_bfd_notices_a_silent_failure_in_time() -> None:
    from fabtest.checks import failover

    with running(VARIANTS["bfd"], "t-bfd") as lab:
        state = lab.node("leaf1").db(DbId.STATE)
        eventually(lambda: any(state.hget(k, "state") == "Up" for k in state.keys("BFD_SESSION_TABLE|*")), 5)
        verdict = failover.link_silent(lab)
        assert verdict.passed, verdict.sentence
        assert verdict.numbers["bound_ms"] == 1900


def test_a_grey_link_loses_its_share_and_says_so(small: Lab) -> None:
    """Half of the frames each way: three pings of four get no answer. A share that means nothing is refused."""

    def answered(count: int) -> int:
        out = small.node(LEAF).exec(["ping", "-q", "-c", str(count), "-i", "0.005", "-W", "1", "172.16.0.1"]).stdout
        return int(out.partition("transmitted, ")[2].split()[0])

    for nothing in (0.0, 1.0, -0.5, 1.5):
        with pytest.raises(UsageError, match="no grey link"):
            small.fail_link(LEAF, SPINE, Fault.GREY, nothing)
    assert answered(50) == 50
    small.fail_link(LEAF, SPINE, Fault.GREY, 0.5)
    try:
        # 50 of 200 on average, standard deviation 6.1.
        assert 20 < answered(200) < 80
        why = [h.why for h in link_health(small) if not h.up]
        assert len(why) == 1
        assert "loses 50% of all frames" in why[0]
    finally:
        small.repair_link(LEAF, SPINE)
    assert answered(50) == 50
    wait_converged(small, 60)
