"""Differences of configurations and of states, and which of them are worse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fabtest.change.apply import same_configuration
from fabtest.change.compare import StateChange, compare
from fabtest.change.configs import changed_fabric, configs_of
from fabtest.change.diff import Risk, config_diff
from fabtest.change.snapshot import Snapshot, SwitchState, read, write
from fabtest.change.trial import changed_switches, check_change
from fabtest.errors import FileProblem, UsageError
from fabtest.importer.load import fabric_of

FABRICS = Path(__file__).parents[1] / "data" / "fabrics"
Config = dict[str, Any]


def changed(tmp_path: Path, change: Callable[[Config], object], form: str = "bgpcfgd", switch: str = "") -> Path:
    folder = tmp_path / "after"
    shutil.copytree(FABRICS / form, folder, dirs_exist_ok=True)
    path = folder / (switch or {"bgpcfgd": "DC1-LEAF-01", "frr-mgmt": "rail1-leaf"}[form]) / "config_db.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return folder


def differences(
    tmp_path: Path, change: Callable[[Config], object], form: str = "bgpcfgd"
) -> list[tuple[str, str, str, str]]:
    diff = config_diff(configs_of(str(FABRICS / form)), configs_of(str(changed(tmp_path, change, form))))
    return [(c.risk.name, c.where, c.before, c.after) for c in diff.changes]


def test_nothing(tmp_path: Path) -> None:
    """Order and spacing of a file are no difference."""
    assert differences(tmp_path, lambda c: c.update(dict(reversed(list(c.items()))))) == []


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda c: c["PORT"]["Ethernet56"].update(mtu="1500"), ("HIGH", "PORT|Ethernet56|mtu", "9100", "1500")),
        (lambda c: c["PORT"]["Ethernet56"].update(description="x"), ("LOW", "PORT|Ethernet56|description", "", "x")),
        (lambda c: c["BGP_NEIGHBOR"]["10.0.0.1"].update(name="y"),
         ("LOW", "BGP_NEIGHBOR|10.0.0.1|name", "DC1-SPINE-01", "y")),
        (lambda c: c["BGP_NEIGHBOR"]["10.0.0.1"].update(asn="1"), ("HIGH", "BGP_NEIGHBOR|10.0.0.1|asn", "65100", "1")),
        (lambda c: c.update(SWITCH_HASH={"GLOBAL": {"ecmp_hash": ["SRC_IP"]}}),
         ("MEDIUM", "SWITCH_HASH|GLOBAL", "", "ecmp_hash SRC_IP")),
        (lambda c: c["PORT_QOS_MAP"]["Ethernet0"].pop("pfc_enable"),
         ("MEDIUM", "Ethernet0: PFC priority 3", "on", "")),
        (lambda c: c["FLEX_COUNTER_TABLE"].pop("PFCWD"),
         ("LOW", "FLEX_COUNTER_TABLE|PFCWD", "FLEX_COUNTER_STATUS enable", "")),
    ],
)  # fmt: skip
def test_what_and_how_risky(tmp_path: Path, change: Callable[[Config], object], wanted: tuple[str, ...]) -> None:
    assert differences(tmp_path, change) == [wanted]


def test_ports_alike_are_one_line(tmp_path: Path) -> None:
    def no_ecn(c: Config) -> None:
        for row in c["WRED_PROFILE"].values():
            row["ecn"] = "ecn_none"

    found = differences(tmp_path, no_ecn)
    assert found == [("MEDIUM", "Ethernet0,Ethernet4,Ethernet8 and 2 more: queue 3 ecn (ECN)", "ecn_all", "ecn_none")]


def test_another_name_of_a_map_is_hardly_a_difference(tmp_path: Path) -> None:
    def rename(c: Config) -> None:
        (name,) = c["DSCP_TO_TC_MAP"]
        c["DSCP_TO_TC_MAP"] = {"OTHER": c["DSCP_TO_TC_MAP"][name]}
        for row in c["PORT_QOS_MAP"].values():
            if row.get("dscp_to_tc_map") == name:
                row["dscp_to_tc_map"] = "OTHER"

    assert {risk for risk, *_ in differences(tmp_path, rename)} == {"LOW"}


def test_findings_gained_and_lost(tmp_path: Path) -> None:
    after = changed(tmp_path, lambda c: c["PORT"]["Ethernet56"].update(mtu="1500"))
    there = config_diff(configs_of(str(FABRICS / "bgpcfgd")), configs_of(str(after)))
    assert {f.rule for f in there.gained} == {"PORT026", "FAB101"}
    back = config_diff(configs_of(str(after)), configs_of(str(FABRICS / "bgpcfgd")))
    assert {f.rule for f in back.lost} == {"PORT026", "FAB101"}
    assert not back.gained


def test_switches_that_come_and_go(tmp_path: Path) -> None:
    after = changed(tmp_path, lambda c: None)
    shutil.rmtree(after / "DC1-SPINE-02")
    diff = config_diff(configs_of(str(FABRICS / "bgpcfgd")), configs_of(str(after)))
    assert (diff.changes[0].switch, diff.changes[0].where, diff.changes[0].risk) == (
        "dc1-spine-02",
        "switch",
        Risk.HIGH,
    )
    before, _ = fabric_of(str(FABRICS / "bgpcfgd"))
    with pytest.raises(UsageError, match="other switches: no dc1-spine-02"):
        changed_fabric(before, str(after))


def test_statements_of_frr() -> None:
    """Of files in split mode; topologies are rendered."""
    diff = config_diff(configs_of("clos-2x2"), configs_of("rail-4x4"))
    assert any(c.where.startswith("frr.conf: router bgp") and c.risk is Risk.HIGH for c in diff.changes)


def test_which_switches_change_and_in_which_order(tmp_path: Path) -> None:
    after = changed(tmp_path, lambda c: c["PORT"]["Ethernet56"].update(mtu="1500"))
    path = after / "DC1-SPINE-02" / "config_db.json"
    path.write_text(path.read_text().replace('"9100"', '"9000"'))
    before, _ = fabric_of(str(FABRICS / "bgpcfgd"))
    fabric, _ = changed_fabric(before, str(after))
    assert changed_switches(before, fabric, []) == ["dc1-leaf-01", "dc1-spine-02"]
    assert changed_switches(before, fabric, ["dc1-spine-02"]) == ["dc1-spine-02", "dc1-leaf-01"]
    with pytest.raises(UsageError, match="no switch 'nobody'"):
        changed_switches(before, fabric, ["nobody"])
    assert same_configuration(before, fabric, "dc1-spine-01")
    assert changed_fabric(before, str(FABRICS / "bgpcfgd"))[0].switch == before.switch
    with pytest.raises(UsageError, match="other cables"):
        changed_fabric(before, "clos-2x2")


def test_what_is_refused_before_a_lab_is_built(tmp_path: Path) -> None:
    """A switch that would change where FRR's configuration comes from."""

    def change(c: Config) -> None:
        c["DEVICE_METADATA"]["localhost"]["docker_routing_config_mode"] = "split-unified"

    before, _ = fabric_of(str(FABRICS / "bgpcfgd"))
    after, _ = changed_fabric(before, str(changed(tmp_path, change)))
    with pytest.raises(
        UsageError, match=r"dc1-leaf-01: FRR's configuration comes from bgpcfgd before and from frr.conf"
    ):
        check_change(before, after, [])
    check_change(before, before, [])


# ------------------------------------------------------------------------------------------------------- states

STATE = SwitchState(
    routes={"10.0.0.0/24": ["Ethernet0", "Ethernet4"], "10.1.0.0/24": ["Ethernet0"]},
    sessions={"10.9.0.1": "Established"},
    ports={"Ethernet0": "up, MTU 9100"},
    qos={"CONFIG_DB": {"Ethernet0": {"PFC priority 3": "on", "queue 3 ecn (ECN)": "ecn_all", "DSCP 26 to TC": "3"}}},
)


def snapshot(**changes: Any) -> Snapshot:
    return Snapshot("lab", "t", "netns", "2026-01-01T00:00:00Z", {"leaf1": replace(STATE, **changes)})


def qos(**values: str) -> dict[str, Any]:
    row = {**STATE.qos["CONFIG_DB"]["Ethernet0"], **{k.replace("_", " "): v for k, v in values.items()}}
    return {"CONFIG_DB": {"Ethernet0": {k: v for k, v in row.items() if v != "-"}}}


@pytest.mark.parametrize(
    ("changes", "kind", "worse"),
    [
        ({"routes": {**STATE.routes, "10.0.0.0/24": ["Ethernet0"]}}, "ecmp", True),
        ({"routes": {**STATE.routes, "10.1.0.0/24": ["Ethernet0", "Ethernet4"]}}, "ecmp", False),
        ({"routes": {**STATE.routes, "10.1.0.0/24": ["Ethernet4"]}}, "route", False),
        ({"routes": {"10.0.0.0/24": ["Ethernet0", "Ethernet4"]}}, "route", True),
        ({"routes": {**STATE.routes, "10.2.0.0/24": ["Ethernet0"]}}, "route", False),
        ({"sessions": {"10.9.0.1": "Active"}}, "session", True),
        ({"sessions": {}}, "session", True),
        ({"sessions": {**STATE.sessions, "10.9.0.3": "Established"}}, "session", False),
        ({"ports": {"Ethernet0": "down, MTU 9100"}}, "port", True),
        ({"ports": {"Ethernet0": "up, MTU 1500"}}, "port", True),
        ({"ports": {"Ethernet0": "up, MTU 9216"}}, "port", False),
        ({"qos": qos(PFC_priority_3="-")}, "qos", True),
        ({"qos": qos(PFC_priority_4="on")}, "qos", False),
        ({"qos": {"CONFIG_DB": {"Ethernet0": {**STATE.qos["CONFIG_DB"]["Ethernet0"], "queue 3 ecn (ECN)": "ecn_none"}}}},
         "qos", True),
        ({"qos": qos(DSCP_26_to_TC="missing")}, "qos", True),
        ({"qos": qos(DSCP_26_to_TC="0")}, "qos", True),
        ({"trouble": "bgpd does not answer"}, "switch", True),
    ],
)  # fmt: skip
def test_better_and_worse(changes: dict[str, Any], kind: str, worse: bool) -> None:
    found = compare(snapshot(), snapshot(**changes))
    assert [(c.kind, c.worse) for c in found] == [(kind, worse)], found


def test_the_same_state() -> None:
    assert compare(snapshot(), snapshot()) == []


def test_a_switch_that_is_gone() -> None:
    gone = replace(snapshot(), switches={})
    assert [(c.kind, c.worse) for c in compare(snapshot(), gone)] == [("switch", True)]
    assert isinstance(compare(gone, snapshot())[0], StateChange)


def test_snapshots_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    write(snapshot(), path)
    assert read(path) == snapshot()
    for text in ("{", "[]", "{}", '{"format": 1}', '{"format": 1, "switches": {"a": 3}}', '{"format": 99}'):
        path.write_text(text)
        with pytest.raises(FileProblem):
            read(path)
    with pytest.raises(FileProblem):
        read(tmp_path / "nothing")
