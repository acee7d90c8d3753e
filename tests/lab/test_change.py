"""change-test on real labs: what is harmless passes, what silently takes something away does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import fabtest

FABRICS = Path(__file__).parents[1] / "data" / "fabrics"
Config = dict[str, Any]


def edited(folder: Path, form: str, switch: str, change: Callable[[Config], object]) -> Path:
    shutil.copytree(FABRICS / form, folder)
    path = folder / switch / "config_db.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config, indent=4))
    return folder


def trial(before: str, after: str, *options: str) -> dict[str, Any]:
    done = fabtest("change-test", before, after, "--name", "t-trial", "--json", *options, ok=False, timeout=240)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["safe"] else 1)
    assert "t-trial" not in fabtest("lab-list").stdout
    return report


def no_ecn(c: Config) -> None:
    for row in c["WRED_PROFILE"].values():
        row["ecn"] = "ecn_none"


@pytest.mark.parametrize(
    ("form", "switch", "change", "words"),
    [
        ("frr-mgmt", "rail1-leaf", lambda c: c["BGP_GLOBALS_AF"]["default|ipv4_unicast"].update(max_ebgp_paths="1"),
         ["routes have fewer paths: rail1-leaf: "]),
        ("bgpcfgd", "DC1-SPINE-01", no_ecn, ["queue 3 ecn", "QOS002"]),
        ("bgpcfgd", "DC1-LEAF-01", lambda c: c["PORT"]["Ethernet56"].update(mtu="1500"),
         ["underlay.mtu: dc1-leaf-01:Ethernet56", "up, MTU 9100 -> up, MTU 1500", "FAB101"]),
        ("bgpcfgd", "DC1-LEAF-02", lambda c: c["BGP_NEIGHBOR"]["10.0.0.5"].update(admin_status="down"),
         ["BGP sessions are lost: ", "routes have fewer paths: "]),
    ],
    ids=["ECMP width", "ECN on one switch", "MTU of one link", "a session"],
)  # fmt: skip
def test_not_safe(form: str, switch: str, change: Callable[[Config], object], words: list[str], tmp_path: Path) -> None:
    report = trial(str(FABRICS / form), str(edited(tmp_path / "after", form, switch, change)))
    assert not report["safe"]
    for word in words:
        assert any(word in reason for reason in report["reasons"]), report["reasons"]
    assert report["traffic"]["sent"] > 1000
    assert all(v["outcome"] == "pass" for v in report["suites"]["before"])
    assert [s["switches"] for s in report["steps"]] == [[switch.lower()]]


def test_harmless(tmp_path: Path) -> None:
    """A description here, a cable's label there: safe, with no packet lost."""

    def change(c: Config) -> None:
        c["PORT"]["Ethernet56"]["description"] = "to spine 1"
        c["DEVICE_METADATA"]["localhost"]["deployment_id"] = "3"

    report = trial(str(FABRICS / "bgpcfgd"), str(edited(tmp_path / "after", "bgpcfgd", "DC1-LEAF-01", change)))
    assert report["safe"], report["reasons"]
    assert report["traffic"]["lost"] == 0
    assert report["state"] == []
    assert len(report["diff"]["changes"]) == 2


def test_frr_conf_switch_by_switch(tmp_path: Path) -> None:
    """In split mode a new frr.conf is loaded without a restart, in the order asked for; all at once as well."""
    before, after = tmp_path / "before", tmp_path / "after"
    fabtest("config-render", "clos-2x2", "--out", str(before))
    shutil.copytree(before, after)
    for switch in ("leaf1", "spine1"):
        path = after / switch / "frr.conf"
        path.write_text(path.read_text().replace("timers bgp 3 9", "timers bgp 1 3"))
    report = trial(str(before), str(after), "--order", "spine1", "--pause", "1")
    assert report["safe"], report["reasons"]
    assert [s["switches"] for s in report["steps"]] == [["spine1"], ["leaf1"]]
    assert trial(str(before), str(after), "--at-once")["steps"][0]["switches"] == ["leaf1", "spine1"]


def test_with_failover(tmp_path: Path) -> None:
    """The failover suite before and after; and rails without spines carry traffic too, between servers of a leaf."""
    report = trial("clos-2x2", "clos-2x2", "--failover")
    assert report["safe"], report["reasons"]
    for side in ("before", "after"):
        assert "failover.link-carrier" in {v["check"] for v in report["suites"][side]}
    assert report["traffic"]["sent"] > 100
    rails = tmp_path / "rails.yml"
    rails.write_text("kind: rail-only\nname: rails\nunits: 1\nrails: 2\nservers_per_unit: 2\n")
    report = trial(str(rails), str(rails))
    assert report["safe"], report["reasons"]
    assert report["traffic"]["sent"] > 100


def test_a_fabric_that_is_shut_for_a_moment(tmp_path: Path) -> None:
    """Both uplinks of a leaf go: traffic stands still for longer than allowed, and that is measured."""

    def change(c: Config) -> None:
        for port in ("Ethernet56", "Ethernet60"):
            c["PORT"][port]["admin_status"] = "down"

    report = trial(str(FABRICS / "bgpcfgd"), str(edited(tmp_path / "after", "bgpcfgd", "DC1-LEAF-01", change)))
    assert not report["safe"]
    assert any("stood still for" in reason and "dc1-leaf-01" in reason for reason in report["reasons"])
    assert report["traffic"]["outage_ms"] > 1000


def test_a_kept_lab_is_the_changed_one(tmp_path: Path) -> None:
    after = edited(
        tmp_path / "after", "bgpcfgd", "DC1-LEAF-01", lambda c: c["PORT"]["Ethernet56"].update(description="kept")
    )
    report = fabtest(
        "change-test", str(FABRICS / "bgpcfgd"), str(after), "--name", "t-kept", "--keep", "--json", timeout=120
    )
    try:
        assert json.loads(fabtest("lab-status", "--lab", "t-kept", "--json").stdout)["ok"]
        suites = json.loads(fabtest("lab-test", "underlay", "ecmp", "qos-config", "--lab", "t-kept", "--json").stdout)
        judged = json.loads(report.stdout)["suites"]["after"]
        assert {v["check"] for v in judged} == {v["check"] for v in suites["verdicts"]}  # the same suites
        assert fabtest("config-diff", str(after), "t-kept").stdout == "no difference\n"
    finally:
        fabtest("lab-down", "t-kept")


def test_what_cannot_be_tried(tmp_path: Path) -> None:
    done = fabtest("change-test", str(FABRICS / "bgpcfgd"), "clos-2x2", "--name", "t-trial", ok=False)
    assert done.returncode == 2
    assert "other cables" in done.stderr
    after = edited(tmp_path / "after", "bgpcfgd", "DC1-LEAF-01", lambda c: None)
    shutil.rmtree(after / "DC1-SPINE-02")
    done = fabtest("change-test", str(FABRICS / "bgpcfgd"), str(after), "--name", "t-trial", ok=False)
    assert done.returncode == 2
    assert "no dc1-spine-02" in done.stderr
    assert "t-trial" not in fabtest("lab-list").stdout
