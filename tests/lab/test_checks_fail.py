"""Every check fails on a lab that is broken the way it looks for, names the place, and leaves other checks alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fabtest.checks import ecmp, failover, qos_config, underlay
from fabtest.checks.converge import wait_converged
from fabtest.checks.verdict import NotApplicable, Outcome, Verdict
from fabtest.runtime.base import Fault, Lab
from fabtest.runtime.boot import agent_pid
from fabtest.runtime.namespaces import inside, write_sysctls
from fabtest.sonic.db import DbId
from tests.lab.conftest import eventually, running

LEAF, UPLINK, DOWNLINK = "leaf1", "Ethernet240", "Ethernet0"
#: Every check that passes on a whole clos-2x2 without breaking anything on purpose.
CHECKS: dict[str, Callable[[Lab], Verdict]] = {
    "underlay.links": underlay.links_up,
    "underlay.cabling": underlay.cabling,
    "underlay.sessions": underlay.sessions,
    "underlay.routes": underlay.routes,
    "underlay.mtu": underlay.mtu,
    "underlay.reachability": underlay.reachability,
    "ecmp.width": ecmp.width,
    "ecmp.spread": ecmp.spreading,
    "ecmp.one-path": ecmp.one_path,
    "ecmp.local": ecmp.local,
    "qos-config.maps": qos_config.maps,
    "qos-config.pfc": qos_config.pfc,
    "qos-config.ecn": qos_config.ecn,
    "qos-config.schedulers": qos_config.schedulers,
    "qos-config.buffers": qos_config.buffers,
    "qos-config.watchdog": qos_config.watchdog,
}


def run_all(lab: Lab) -> dict[str, Verdict]:
    """The checks that do not fail now are left out."""
    found = {}
    for name, check in CHECKS.items():
        try:
            verdict = check(lab)
        except NotApplicable:
            continue
        if verdict.outcome is not Outcome.PASS:
            found[name] = verdict
    return found


def only(lab: Lab, check: str) -> Verdict:
    """The verdict of the one check that fails; all others pass, or say that they cannot tell while it does."""
    failing = {name: v for name, v in run_all(lab).items() if v.outcome is Outcome.FAIL}
    assert set(failing) == {check}, {k: v.sentence for k, v in failing.items()}
    assert failing[check].outcome is Outcome.FAIL
    return failing[check]


@contextmanager
def config(lab: Lab, key: str, field: str, value: str | None, switch: str = LEAF) -> Iterator[None]:
    """A field of CONFIG_DB changed (None: removed), and put back."""
    db = lab.node(switch).db(DbId.CONFIG)
    before = db.hget(key, field)
    if value is None:
        db.hdel(key, field)
    else:
        db.hset(key, field, value)
    try:
        yield
    finally:
        if before is None:
            db.hdel(key, field)
        else:
            db.hset(key, field, before)


def vtysh(lab: Lab, switch: str, *lines: str) -> None:
    done = lab.node(switch).exec(["vtysh", *(word for line in lines for word in ("-c", line))])
    assert done.returncode == 0, done


def ip(lab: Lab, node: str, *words: str) -> None:
    done = lab.node(node).exec(["ip", *words])
    assert done.returncode == 0, done.stderr


def test_whole_lab_passes(small: Lab) -> None:
    assert run_all(small) == {}


# ---------------------------------------------------------------------------------------------------- underlay


def test_cut_link(small: Lab) -> None:
    small.fail_link("leaf1", "spine1", Fault.CARRIER)
    try:
        verdict = underlay.links_up(small)
        assert verdict.outcome is Outcome.FAIL
        assert verdict.where == (f"leaf1:{UPLINK} -- spine1:Ethernet0",)
    finally:
        small.repair_link("leaf1", "spine1")
        wait_converged(small, 60)


def test_swapped_cables(small: Lab) -> None:
    """The two server ports of a leaf change places: the wrong server answers on each."""

    def swap() -> None:
        for old, new in (("Ethernet0", "swap"), ("Ethernet8", "Ethernet0"), ("swap", "Ethernet8")):
            ip(small, LEAF, "link", "set", old, "down")
            ip(small, LEAF, "link", "set", old, "name", new)
        for port in ("Ethernet0", "Ethernet8"):
            ip(small, LEAF, "link", "set", port, "up")

    swap()
    try:
        eventually(lambda: "gpu2:eth1" in underlay.cabling(small).sentence)
        verdict = underlay.cabling(small)
        assert verdict.outcome is Outcome.FAIL
        assert set(verdict.where) == {"leaf1:Ethernet0", "leaf1:Ethernet8"}
    finally:
        swap()
    eventually(lambda: underlay.cabling(small).passed)
    eventually(lambda: underlay.reachability(small).passed)


def test_removed_bgp_neighbour(small: Lab) -> None:
    session = next(s for s in small.fabric.switch[LEAF].sessions if s.port == UPLINK)
    asn = small.fabric.switch[LEAF].asn
    peer = str(session.remote[0].ip)
    vtysh(small, LEAF, "configure terminal", f"router bgp {asn}", f"no neighbor {peer}")
    try:
        eventually(lambda: underlay.sessions(small).numbers.get("faults") == 2, 15)
        eventually(lambda: ecmp.width(small).passed)
        verdict = only(small, "underlay.sessions")
        assert set(verdict.where) == {f"leaf1:{UPLINK}", "spine1:Ethernet0"}
        assert "absent" in verdict.sentence
        assert failover.link_carrier(small).outcome is Outcome.INCONCLUSIVE
    finally:
        vtysh(
            small, LEAF, "configure terminal", f"router bgp {asn}", f"neighbor {peer} remote-as {session.peer_asn}",
            "address-family ipv4 unicast", f"neighbor {peer} activate", f"neighbor {peer} prefix-list ADVERTISED out",
        )  # fmt: skip
        wait_converged(small, 60)


def test_unexpected_route(small: Lab) -> None:
    ip(small, LEAF, "route", "add", "10.99.0.0/16", "via", "172.16.0.1", "proto", "bgp")
    try:
        verdict = underlay.routes(small)
        assert verdict.outcome is Outcome.FAIL
        assert verdict.where == (LEAF,)
        assert "10.99.0.0/16 should not be there" in verdict.sentence
    finally:
        ip(small, LEAF, "route", "del", "10.99.0.0/16")


def test_small_mtu(small: Lab) -> None:
    with config(small, f"PORT|{DOWNLINK}", "mtu", "1500"):
        eventually(lambda: underlay.mtu(small).outcome is Outcome.FAIL)
        verdict = only(small, "underlay.mtu")
        assert "gpu1:eth1" in verdict.where
    eventually(lambda: underlay.mtu(small).passed)


def test_blackhole(small: Lab) -> None:
    block = str(small.fabric.switch["leaf2"].server_prefixes[0])
    ip(small, "spine1", "route", "add", "blackhole", block, "metric", "1")
    ip(small, "spine2", "route", "add", "blackhole", block, "metric", "1")
    try:
        verdict = underlay.reachability(small)
        assert verdict.outcome is Outcome.FAIL
        assert "gpu1:eth1" in verdict.where
    finally:
        for spine in ("spine1", "spine2"):
            ip(small, spine, "route", "del", "blackhole", block, "metric", "1")


def test_one_spine_that_swallows_packets(small: Lab) -> None:
    """Routes, sessions and widths are all as designed; half of the flows die in a spine."""
    block = str(small.fabric.switch["leaf2"].server_prefixes[0])
    ip(small, "spine1", "route", "add", "blackhole", block, "table", "98")
    ip(small, "spine1", "rule", "add", "to", block, "lookup", "98", "priority", "98")
    try:
        assert ecmp.width(small).passed
        for check in (ecmp.spreading, ecmp.one_path):
            verdict = check(small)
            assert verdict.outcome is Outcome.FAIL
            assert "arrive" in verdict.sentence
    finally:
        ip(small, "spine1", "rule", "del", "priority", "98")
        ip(small, "spine1", "route", "flush", "table", "98")


def test_wrong_mtu_on_an_uplink(small: Lab) -> None:
    with config(small, f"PORT|{UPLINK}", "mtu", "9000"):
        eventually(lambda: underlay.mtu(small).outcome is Outcome.FAIL)
        assert f"{LEAF}:{UPLINK}" in underlay.mtu(small).where
    eventually(lambda: underlay.mtu(small).passed)


def test_nobody_listens_to_lldp_without_the_agent(small: Lab) -> None:
    pid = agent_pid(small.name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not small.agent_running())
    assert underlay.cabling(small).outcome is Outcome.INCONCLUSIVE
    small.restart_agent()
    eventually(lambda: underlay.cabling(small).passed)


def test_lost_redundancy_is_not_a_pass(small: Lab) -> None:
    """With every session of one spine down there is nothing to spread over: undecided, not fine."""
    small.stop_node("spine1")
    try:
        eventually(lambda: ecmp.spreading(small).outcome is Outcome.INCONCLUSIVE, 10)
        assert failover.link_carrier(small).outcome is Outcome.INCONCLUSIVE
    finally:
        small.start_node("spine1")
        wait_converged(small, 60)


def test_leak_between_rails() -> None:
    """A server that forwards joins rails which should never meet."""
    with running("rail-only", "t-leak") as lab:
        blocks = {s.rail: str(s.server_prefixes[0]) for s in lab.fabric.switches if s.server_prefixes and s.unit == 1}
        gpu = lab.fabric.server["gpu1"]
        with inside(lab.node("gpu1").netns):
            assert write_sysctls({"net.ipv4.ip_forward": 1}) == []
        for near, far in ((1, 2), (2, 1)):
            ip(
                lab,
                gpu.ports[near - 1].leaf.node,
                "route",
                "add",
                blocks[far],
                "via",
                str(gpu.ports[near - 1].addresses[0].ip),
            )
        verdict = underlay.reachability(lab)
        assert verdict.outcome is Outcome.FAIL
        assert "which this fabric keeps apart" in verdict.sentence


# -------------------------------------------------------------------------------------------------------- ecmp


def test_one_path_configured(small: Lab) -> None:
    asn = small.fabric.switch[LEAF].asn
    lines = ("configure terminal", f"router bgp {asn}", "address-family ipv4 unicast")
    vtysh(small, LEAF, *lines, "maximum-paths 1")
    try:
        eventually(lambda: ecmp.width(small).outcome is Outcome.FAIL, 15)
        verdict = ecmp.width(small)
        assert verdict.where == (LEAF,)
        assert "has 1 of 2 paths" in verdict.sentence
        assert underlay.sessions(small).passed
    finally:
        vtysh(small, LEAF, *lines, "maximum-paths 64")
        wait_converged(small, 60)


def test_no_l4_hash(small: Lab) -> None:
    with config(small, "SWITCH_HASH|GLOBAL", "ecmp_hash@", "SRC_IP,DST_IP,IP_PROTOCOL"):
        eventually(lambda: ecmp.spreading(small).outcome is Outcome.FAIL)
        verdict = only(small, "ecmp.spread")
        assert verdict.where == (LEAF,)
        assert "use 1 of 2 uplinks" in verdict.sentence
        assert "Ethernet24" in verdict.sentence
    eventually(lambda: ecmp.spreading(small).passed)


def test_hash_that_changes(small: Lab) -> None:
    """A seed that changes under way splits flows over paths."""
    stop = threading.Event()
    seed = small.fabric.switch[LEAF].hash.seed

    def shake() -> None:
        n = 0
        with inside(small.node(LEAF).netns):
            while not stop.is_set():
                n += 1
                write_sysctls({"net.ipv4.fib_multipath_hash_seed": n})
                time.sleep(0.0005)
            write_sysctls({"net.ipv4.fib_multipath_hash_seed": seed})

    thread = threading.Thread(target=shake)
    thread.start()
    try:
        verdict = ecmp.one_path(small)
    finally:
        stop.set()
        thread.join()
    assert verdict.outcome is Outcome.FAIL
    assert LEAF in verdict.where


def test_local_traffic_through_a_spine(small: Lab) -> None:
    victim = small.fabric.server["gpu2"].ports[0].addresses[0].ip
    ip(small, LEAF, "route", "add", f"{victim}/32", "via", "172.16.0.1")
    try:
        verdict = ecmp.local(small)
        assert verdict.outcome is Outcome.FAIL
        assert "spine1" in verdict.sentence
    finally:
        ip(small, LEAF, "route", "del", f"{victim}/32")


def test_equal_seeds_polarise() -> None:
    text = (
        "kind: clos\npods: 2\nleaves: 2\nspines: 2\nservers_per_leaf: 1\nsuperspines: 4\nsuperspine_groups: 2\n"
        "hash:\n  seed: 42\n"
    )
    with running(text, "t-seeds") as lab:
        measured = ecmp.Measurement(lab)
        assert ecmp.spreading(lab, measured).passed
        verdict = ecmp.polarisation(lab, measured)
        assert verdict.outcome is Outcome.FAIL
        assert any(where.startswith("spine") for where in verdict.where)


# -------------------------------------------------------------------------------------------------- qos-config


@pytest.mark.parametrize(
    ("check", "key", "field", "value", "words"),
    [
        ("qos-config.ecn", "WRED_PROFILE|ROCE_400G", "ecn", None, "queue 3 ecn is not set, should be ecn_all"),
        ("qos-config.ecn", "WRED_PROFILE|ROCE_400G", "green_max_threshold", "9999999", "queue 3 green_max_threshold"),
        ("qos-config.pfc", f"PORT_QOS_MAP|{DOWNLINK}", "pfc_enable", None, "priority 3 is not set, should be on"),
        ("qos-config.pfc", f"PORT_QOS_MAP|{DOWNLINK}", "pfc_enable", "3,4", "priority 4 is on, should be not set"),
        ("qos-config.maps", "DSCP_TO_TC_MAP|ROCE", "26", "0", "DSCP 26 to TC is 0, should be 3"),
        ("qos-config.maps", f"PORT_QOS_MAP|{DOWNLINK}", "tc_to_queue_map", "AZURE", "TC 0 to queue is not set"),
        ("qos-config.schedulers", "SCHEDULER|scheduler.cnp", "type", "DWRR", "queue 6 type is DWRR, should be STRICT"),
        ("qos-config.buffers", f"BUFFER_PG|{DOWNLINK}|3", "profile", "gone", "priority group 3 profile is missing"),
        ("qos-config.watchdog", f"PFC_WD|{DOWNLINK}", "action", "forward", "watchdog action is forward, should be drop"),
    ],
)  # fmt: skip
def test_changed_qos(small: Lab, check: str, key: str, field: str, value: str | None, words: str) -> None:
    with config(small, key, field, value):
        failing = {
            name: v for name, v in ((n, CHECKS[n](small)) for n in CHECKS if n.startswith("qos")) if not v.passed
        }
        assert set(failing) == {check}
        verdict = failing[check]
        assert f"{LEAF}:{DOWNLINK}" in verdict.where
        assert all(where.startswith(f"{LEAF}:") for where in verdict.where)
        if DOWNLINK in key:
            assert verdict.where == (f"{LEAF}:{DOWNLINK}",)
        assert words in verdict.sentence
    assert CHECKS[check](small).passed


# ---------------------------------------------------------------------------------------------------- failover


@pytest.mark.parametrize("check", [failover.link_carrier, failover.link_silent, failover.spine, failover.transport])
def test_a_static_route_left_over(small: Lab, check: Callable[[Lab], Verdict]) -> None:
    """A static route over the spine that fails, on a leaf that does not mind its carrier, sends into the failure."""
    spine = failover._target(small).link.b.node
    session = next(s for s in small.fabric.switch["leaf2"].sessions if s.peer == spine)
    block = str(small.fabric.switch["leaf1"].server_prefixes[0])
    mind = [f"net.ipv4.conf.{name}.ignore_routes_with_linkdown" for name in ("all", session.port)]
    with inside(small.node("leaf2").netns):
        write_sysctls(dict.fromkeys(mind, 0))
    # In a table of its own: zebra would take it for a better route in the main one.
    ip(small, "leaf2", "route", "add", block, "via", str(session.remote[0].ip), "table", "99")
    ip(small, "leaf2", "rule", "add", "to", block, "lookup", "99", "priority", "99")
    try:
        verdict = check(small)
        assert verdict.outcome is Outcome.FAIL, verdict.sentence
        if check is failover.transport:
            assert "retries exceeded" in verdict.sentence
        else:
            assert "stopped a flow for" in verdict.sentence
            assert "had not come back" in verdict.sentence
        assert all(spine in where for where in verdict.where)
    finally:
        with inside(small.node("leaf2").netns):
            write_sysctls(dict.fromkeys(mind, 1))
        ip(small, "leaf2", "rule", "del", "priority", "99")
        small.node("leaf2").exec(["ip", "route", "flush", "table", "99"])
        wait_converged(small, 60)
    assert underlay.reachability(small).passed


def test_neighbour_lost_with_a_servers_cable(small: Lab) -> None:
    """A server's cable takes another server's traffic with it."""
    victim = small.fabric.servers[-1]
    witness: dict[str, Any] = {}

    def meddle() -> None:
        eventually(lambda: small.faults(), 20, 0.01)
        small.fail_link("gpu2", "leaf1", Fault.CARRIER)
        witness["hit"] = True

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        verdict = failover.server_link(small)
    finally:
        thread.join()
        small.repair_link("gpu2", "leaf1")
        wait_converged(small, 60)
    assert victim.name in verdict.sentence or witness["hit"]
    assert verdict.outcome is Outcome.FAIL
    assert "unbroken path" in verdict.sentence


def test_plane_without_its_twin() -> None:
    """If the other plane is broken too, nothing carries the flows on."""
    with running("dual-plane", "t-plane") as lab:
        victim = failover._plane_paths(lab)[1].dst

        def meddle() -> None:
            eventually(lambda: lab.faults(), 20, 0.01)
            lab.fail_link(f"{victim.server}:{victim.port.name}", str(victim.port.leaf), fault)

        fault = Fault.CARRIER
        thread = threading.Thread(target=meddle)
        thread.start()
        try:
            verdict = failover.plane(lab)
        finally:
            thread.join()
        assert verdict.outcome is Outcome.FAIL
        assert "had not come back" in verdict.sentence
