"""The shipped topologies come up converged and pass every suite, as a user runs them."""

from __future__ import annotations

import json

import pytest

from tests.lab.conftest import fabtest, running

#: What each fabric has nothing to look at for: the checks that may be absent, and no others.
NOT_THERE = {
    "clos-2x2": {"ecmp.polarisation", "failover.plane"},
    "clos-32x8": {"ecmp.polarisation", "failover.plane"},
    "rail-8x8": {"failover.plane"},
    "dual-plane": set(),
    "rail-only": {"ecmp.polarisation", "failover.plane"},
    "clos-3tier": {"failover.plane"},
}
ALL = {
    "underlay.links", "underlay.cabling", "underlay.sessions", "underlay.routes", "underlay.mtu",
    "underlay.reachability", "ecmp.width", "ecmp.spread", "ecmp.polarisation", "ecmp.one-path", "ecmp.local",
    "qos-config.maps", "qos-config.pfc", "qos-config.ecn", "qos-config.schedulers", "qos-config.buffers",
    "qos-config.watchdog", "failover.link-carrier", "failover.link-silent", "failover.spine", "failover.server-link",
    "failover.plane", "failover.transport",
}  # fmt: skip


@pytest.mark.parametrize("topology", NOT_THERE)
def test_all_four_suites_pass(topology: str) -> None:
    with running(topology, f"t-{topology}"):
        done = fabtest("lab-test", "--lab", f"t-{topology}", "--json", timeout=600)
    report = json.loads(done.stdout)
    assert report["ok"], report
    assert {v["check"] for v in report["verdicts"]} == ALL - NOT_THERE[topology]
    assert {v["outcome"] for v in report["verdicts"]} == {"pass"}
