"""ASIC_DB as orchagent of SONiC 202411 filled it, compared with the configuration it was given; and broken."""

from __future__ import annotations

import copy
import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from fabtest.checks.ecmp import asic_width_findings
from fabtest.checks.qos_config import asic_findings
from fabtest.sonic.asic import NameMaps, asic_qos, route_widths
from fabtest.sonic.db import ConfigDb

PORTS = ("Ethernet0", "Ethernet4", "Ethernet8", "Ethernet12")
PORT = "ASIC_STATE:SAI_OBJECT_TYPE_PORT:"


@pytest.fixture(scope="module")
def leaf4(shared: Path) -> tuple[ConfigDb, dict[str, Any], NameMaps]:
    folder = shared / "data" / "sonic-vs-202411" / "leaf4"
    config = json.loads((folder / "config_db.json").read_text())
    objects = json.loads((folder / "ASIC_DB.json").read_text())
    counters = json.loads((folder / "COUNTERS_DB.json").read_text())
    names = NameMaps(*(counters[f"COUNTERS_{kind}_NAME_MAP"] for kind in ("PORT", "QUEUE", "PG")))
    return config, objects, names


def findings(config: ConfigDb, objects: dict[str, Any], names: NameMaps) -> str:
    found = [f for port in PORTS for f in asic_findings(config, objects, names, "leaf4", port)[0]]
    return "; ".join(f"{f.where}: {f.what}" for f in found)


def test_what_sonic_programmed_is_what_it_was_given(leaf4: Any) -> None:
    config, objects, names = leaf4
    assert findings(config, objects, names) == ""
    assert asic_findings(config, objects, names, "leaf4", "Ethernet0")[1] > 100
    qos = asic_qos(objects, names, "Ethernet0")
    assert qos.pfc == {"priority 3": "on"}
    assert qos.maps["DSCP 26 to TC"] == "3"
    assert qos.ecn["queue 3 ecn"] == "ecn_all"
    assert qos.ecn["queue 3 green_max_threshold"] == "1000000"
    assert qos.buffers["priority group 3 xoff"] == "165568"


def _changed(leaf4: Any, kind: str, attribute: str, value: str | None) -> tuple[ConfigDb, dict[str, Any], NameMaps]:
    config, objects, names = leaf4
    broken = copy.deepcopy(objects)
    for key, row in broken.items():
        if f":SAI_OBJECT_TYPE_{kind}:" in key and attribute in row:
            if value is None:
                del row[attribute]
            else:
                row[attribute] = value
            break
    else:
        raise AssertionError(f"no {kind} has {attribute}")
    return config, broken, names


@pytest.mark.parametrize(
    ("kind", "attribute", "value", "words"),
    [
        ("PORT", "SAI_PORT_ATTR_PRIORITY_FLOW_CONTROL", "0", "priority 3 is not set, should be on"),
        ("PORT", "SAI_PORT_ATTR_PRIORITY_FLOW_CONTROL", "24", "priority 4 is on, should be not set"),
        ("PORT", "SAI_PORT_ATTR_QOS_DSCP_TO_TC_MAP", None, "DSCP 0 to TC is not set"),
        ("WRED", "SAI_WRED_ATTR_ECN_MARK_MODE", None, "queue 3 ecn is not set, should be ecn_all"),
        ("WRED", "SAI_WRED_ATTR_GREEN_ENABLE", None, "queue 3 wred_green_enable is not set"),
        ("WRED", "SAI_WRED_ATTR_GREEN_MAX_THRESHOLD", "2000000", "green_max_threshold is 2000000"),
        ("BUFFER_PROFILE", "SAI_BUFFER_PROFILE_ATTR_XOFF_TH", "1", "priority group 3 xoff is 1, should be 165568"),
        ("BUFFER_POOL", "SAI_BUFFER_POOL_ATTR_XOFF_SIZE", None, "pool xoff is not set, should be 4000000"),
    ],
)
def test_what_is_not_programmed_is_found(leaf4: Any, kind: str, attribute: str, value: str | None, words: str) -> None:
    assert words in findings(*_changed(leaf4, kind, attribute, value))


def test_a_port_orchagent_does_not_know(leaf4: Any) -> None:
    config, objects, names = leaf4
    less = NameMaps({k: v for k, v in names.ports.items() if k != "Ethernet8"}, names.queues, names.groups)
    text = findings(config, objects, less)
    assert "leaf4:Ethernet8: priority 3 is not set" in text
    assert "Ethernet4" not in text


GROUP = {
    'ASIC_STATE:SAI_OBJECT_TYPE_ROUTE_ENTRY:{"dest":"10.1.0.0/24","switch_id":"oid:0x21","vr":"oid:0x3"}': {
        "SAI_ROUTE_ENTRY_ATTR_NEXT_HOP_ID": "oid:0x5000000000001"
    },
    'ASIC_STATE:SAI_OBJECT_TYPE_ROUTE_ENTRY:{"dest":"10.2.0.0/24","switch_id":"oid:0x21","vr":"oid:0x3"}': {
        "SAI_ROUTE_ENTRY_ATTR_NEXT_HOP_ID": "oid:0x4000000000001"
    },
    "ASIC_STATE:SAI_OBJECT_TYPE_NEXT_HOP_GROUP:oid:0x5000000000001": {
        "SAI_NEXT_HOP_GROUP_ATTR_TYPE": "SAI_NEXT_HOP_GROUP_TYPE_DYNAMIC_UNORDERED_ECMP"
    },
    **{
        f"ASIC_STATE:SAI_OBJECT_TYPE_NEXT_HOP_GROUP_MEMBER:oid:0x2d00000000000{n}": {
            "SAI_NEXT_HOP_GROUP_MEMBER_ATTR_NEXT_HOP_GROUP_ID": "oid:0x5000000000001",
            "SAI_NEXT_HOP_GROUP_MEMBER_ATTR_NEXT_HOP_ID": f"oid:0x400000000000{n}",
        }
        for n in range(4)
    },
}


def test_widths_of_next_hop_groups() -> None:
    have = route_widths(GROUP)
    wide, narrow, absent = (ip_network(f"10.{n}.0.0/24") for n in (1, 2, 3))
    assert have == {wide: 4, narrow: 1}
    assert asic_width_findings("leaf1", {wide: 4, narrow: 1}, have) == ([], 2)
    found, _ = asic_width_findings("leaf1", {wide: 8, absent: 2}, have)
    assert [f.what for f in found] == [
        "route 10.1.0.0/24 has 4 next hops, should have 8 (ASIC_DB)",
        "route 10.3.0.0/24 is not programmed (ASIC_DB)",
    ]


def test_routes_of_a_real_dump_are_read(leaf4: Any) -> None:
    widths = route_widths(leaf4[1])
    assert ip_network("10.1.0.0/32") in widths
    assert set(widths.values()) == {1}
