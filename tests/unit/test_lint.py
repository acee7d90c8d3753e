"""config-lint: our own renderings are clean, each rule finds its fault, files no one here wrote, and files that are none."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabtest.errors import FabtestError, FileProblem
from fabtest.lint.fabric import FABRIC_RULES
from fabtest.lint.fix import FIXES
from fabtest.lint.output import as_junit, as_sarif, documentation, every_rule
from fabtest.lint.read import parse_config
from fabtest.lint.rule import RULES, Severity
from fabtest.lint.run import FORM, lint_files, lint_paths
from fabtest.render import iter_files, write_tree
from fabtest.sonic.config_db import render_config_db
from fabtest.topology import load_fabric, shipped_topologies

Config = dict[str, Any]
ROOT = Path(__file__).parents[2]


def rules_of(*configs: Config) -> list[str]:
    """The rules that find something in these switches, sorted."""
    files = [parse_config(Path(f"s{n}/config_db.json"), json.dumps(c).encode()) for n, c in enumerate(configs)]
    return sorted({f.rule for f in lint_files(files)[0]})


@pytest.fixture(scope="module")
def leaf() -> Config:
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    config: Config = json.loads(json.dumps(render_config_db(fabric, fabric.switch["leaf1"])))
    return config


@pytest.mark.parametrize("name", sorted(set(shipped_topologies()) - {"rail-8192"}))
def test_shipped_topologies_are_clean(name: str, tmp_path: Path) -> None:
    write_tree(iter_files(load_fabric(shipped_topologies()[name])), tmp_path / name)
    report = lint_paths([tmp_path / name])
    assert report.findings == ()
    assert report.unchecked == ()


def first(config: Config, table: str) -> tuple[str, Config]:
    key = next(k for k in config[table] if k not in ("GLOBAL", "global"))
    return key, config[table][key]


def edit(table: str, field: str, value: Any) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        first(config, table)[1][field] = value

    return change


def drop(table: str, field: str) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        del first(config, table)[1][field]

    return change


def no_enable(config: Config) -> None:
    row = first(config, "WRED_PROFILE")[1]
    for colour in ("green", "yellow", "red"):
        del row[f"wred_{colour}_enable"]


def no_group(length: str | None) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        del config["BUFFER_PG"]["Ethernet0|3"]
        if length is None:
            del config["CABLE_LENGTH"]["AZURE"]["Ethernet0"]
        else:
            config["CABLE_LENGTH"]["AZURE"]["Ethernet0"] = length

    return change


def two_priorities(config: Config) -> None:
    config["PORT_QOS_MAP"]["Ethernet0"] |= {"pfc_enable": "3,4", "pfcwd_sw_enable": "3,4"}


def lossy_pg(config: Config) -> None:
    config["BUFFER_PG"]["Ethernet0|3"]["profile"] = "ingress_lossy_profile"


def cnp_weighted(config: Config) -> None:
    config["SCHEDULER"]["scheduler.cnp"] = {"type": "DWRR", "weight": "10"}


def uplinks_narrow(config: Config) -> None:
    asn = next(iter(config["BGP_NEIGHBOR"].values()))["asn"]
    config["DEVICE_METADATA"]["localhost"] |= {
        "frr_mgmt_framework_config": "true", "docker_routing_config_mode": "unified",
    }  # fmt: skip
    config["BGP_NEIGHBOR"] = {f"default|{k}": {**v, "asn": asn} for k, v in config["BGP_NEIGHBOR"].items()}
    config["BGP_GLOBALS_AF"] = {"default|ipv4_unicast": {"max_ebgp_paths": "1"}}


def no_default_watchdog(config: Config) -> None:
    config["DEVICE_METADATA"]["localhost"]["default_pfcwd_status"] = "disable"
    del config["PFC_WD"]["Ethernet0"]


def no_watchdog_at_all(config: Config) -> None:
    """Nor would the default give it one: it has no neighbour."""
    del config["PFC_WD"]["Ethernet0"]
    del config["DEVICE_NEIGHBOR"]["Ethernet0"]


def meta(**fields: str) -> Callable[[Config], None]:
    return lambda config: config["DEVICE_METADATA"]["localhost"].update(fields)


def unnumbered(config: Config) -> None:
    config["DEVICE_METADATA"]["localhost"]["docker_routing_config_mode"] = "separated"
    config["BGP_NEIGHBOR"]["Ethernet0"] = {"asn": "65000"}


def other_action(config: Config) -> None:
    config["PFC_WD"]["Ethernet0"]["action"] = "forward"


def ghost_port(config: Config) -> None:
    config["QUEUE"]["Ethernet777|3"] = {"scheduler": "scheduler.roce"}


def lossless_profile(config: Config) -> Config:
    name = config["BUFFER_PG"]["Ethernet0|3"]["profile"]
    row: Config = config["BUFFER_PROFILE"][name]
    return row


#: Every rule of a switch: a change of a clean configuration, and the rules that must (and no others may) find it.
MUTATIONS: dict[str, tuple[Callable[[Config], None], set[str]]] = {
    "QOS001": (no_enable, {"QOS001"}),
    "QOS067": (edit("WRED_PROFILE", "wred_yellow_enable", "false"), {"QOS067"}),
    "QOS002": (drop("WRED_PROFILE", "ecn"), {"QOS002"}),
    "QOS010": (lambda c: first(c, "DSCP_TO_TC_MAP")[1].update({"26": "0"}), {"QOS010", "QOS051"}),
    "QOS051": (lambda c: first(c, "DSCP_TO_TC_MAP")[1].update({"26": "0", "34": "3"}), {"QOS051"}),
    "QOS052": (drop("DSCP_TO_TC_MAP", "63"), {"QOS052"}),
    "QOS011": (lambda c: c["PORT_QOS_MAP"].pop("Ethernet0"), {"QOS011"}),
    "QOS012": (edit("PORT", "pfc_enable", "3"), {"QOS012"}),
    "QOS014": (lambda c: c["PORT_QOS_MAP"]["Ethernet0"].pop("pfcwd_sw_enable"), {"QOS014"}),
    "QOS053": (no_watchdog_at_all, {"QOS053"}),
    "QOS063": (two_priorities, {"QOS063", "BUF058", "QOS039"}),
    "QOS064": (lambda c: c["PORT_QOS_MAP"]["Ethernet0"].pop("tc_to_pg_map"), {"QOS064"}),
    "QOS065": (drop("PFC_WD", "detection_time"), {"QOS065"}),
    "QOS066": (edit("WRED_PROFILE", "yellow_max_threshold", "1M"), {"QOS066"}),
    "QOS015": (no_default_watchdog, {"QOS015", "QOS053"}),
    "QOS016": (edit("PFC_WD", "detection_time", "100"), {"QOS016"}),
    "QOS045": (drop("PFC_WD", "restoration_time"), {"QOS045"}),
    "QOS046": (other_action, {"QOS046"}),
    "QOS032": (edit("WRED_PROFILE", "gren_min_threshold", "1"), {"QOS032"}),
    "QOS054": (edit("WRED_PROFILE", "green_min_threshold", "9000000"), {"QOS054"}),
    "QOS055": (edit("WRED_PROFILE", "red_max_threshold", "3000000000"), {"QOS055"}),
    "QOS038": (cnp_weighted, {"QOS038"}),
    "QOS056": (lambda c: c["SCHEDULER"]["scheduler.roce"].update(type="ETS"), {"QOS056"}),
    "QOS057": (lambda c: c["SCHEDULER"]["scheduler.roce"].update(weight="0"), {"QOS057"}),
    "QOS039": (lambda c: first(c, "TC_TO_PRIORITY_GROUP_MAP")[1].update({"3": "0"}), {"QOS039"}),
    "QOS040": (lambda c: first(c, "MAP_PFC_PRIORITY_TO_QUEUE")[1].update({"3": "4"}), {"QOS040"}),
    "QOS043": (
        lambda c: c["PORT_QOS_MAP"]["Ethernet0"].update(pfc_enable="2,3,4", pfcwd_sw_enable="2,3,4"),
        {"QOS043", "QOS063", "QOS039", "BUF058"},
    ),
    "QOS033": (meta(platform="x86_64-mlnx_msn4700-r0"), {"QOS033"}),
    "QOS028": (ghost_port, {"QOS028"}),
    "QOS020": (lambda c: c["BUFFER_POOL"].pop("egress_lossy_pool"), {"QOS020"}),
    "QOS017": (edit("QUEUE", "scheduler", "[SCHEDULER|scheduler.besteffort]"), {"QOS017"}),
    "BUF004": (lossy_pg, {"BUF004"}),
    "BUF006": (no_group("0m"), {"BUF006"}),
    "BUF005": (no_group("77m"), {"BUF005"}),
    "BUF058": (two_priorities, {"BUF058", "QOS063", "QOS039"}),
    "BUF018": (lambda c: c["BUFFER_PG"]["Ethernet0|0"].update(profile="NULL"), {"BUF018"}),
    "BUF019": (lambda c: c["BUFFER_POOL"]["egress_lossless_pool"].update(size="1000000"), {"BUF019"}),
    "BUF021": (lambda c: c["BUFFER_POOL"]["egress_lossy_pool"].update(mode="static"), {"BUF021"}),
    "BUF059": (lambda c: c["BUFFER_PROFILE"]["egress_lossy_profile"].update(dynamic_th="9"), {"BUF059"}),
    "BUF031": (lambda c: c["BUFFER_PROFILE"]["egress_lossy_profile"].pop("size"), {"BUF031"}),
    "BUF029": (edit("BUFFER_PORT_INGRESS_PROFILE_LIST", "profile_list", ["ingress_lossy_profile"]), {"BUF029"}),
    "BUF041": (edit("WRED_PROFILE", "green_max_threshold", "60000000"), {"BUF041"}),
    "BUF049": (lambda c: lossless_profile(c).update(size="30000000"), {"BUF049"}),
    "BUF050": (lambda c: lossless_profile(c).update(xoff="1024"), {"BUF050"}),
    "PORT026": (edit("PORT", "mtu", "1500"), {"PORT026"}),
    "PORT008": (drop("PORT", "admin_status"), {"PORT008"}),
    "PORT044": (edit("PORT", "fec", "none"), {"PORT044"}),
    "ECMP023": (lambda c: c["SWITCH_HASH"]["GLOBAL"].update(ecmp_hash=["SRC_IP", "DST_IP"]), {"ECMP023"}),
    "ECMP060": (lambda c: c["SWITCH_HASH"]["GLOBAL"]["ecmp_hash"].append("QPN"), {"ECMP060"}),
    "BGP035": (unnumbered, {"BGP035"}),
    "BGP036": (lambda c: c["BGP_NEIGHBOR"].update({"default|10.9.9.9": {"asn": "1"}}), {"BGP036"}),
    "BGP037": (meta(docker_routing_config_mode="seperated"), {"BGP037"}),
    "BGP042": (uplinks_narrow, {"BGP042"}),
    "GEN030": (edit("SCHEDULER", "weight", " 20"), {"GEN030"}),
    "GEN062": (edit("BUFFER_PG", "profil", "x"), {"GEN062"}),
    "GEN061": (edit("WRED_PROFILE", "ecn", "ecn_every"), {"GEN061"}),
}  # fmt: skip


def test_every_rule_has_a_fault_of_its_own() -> None:
    assert set(MUTATIONS) == set(RULES)


@pytest.mark.parametrize("rule", sorted(MUTATIONS))
def test_a_fault_is_found_by_its_rule_and_no_other(rule: str, leaf: Config) -> None:
    change, expected = MUTATIONS[rule]
    broken = copy.deepcopy(leaf)
    change(broken)
    assert rule in expected
    assert set(rules_of(broken)) == expected
    assert rules_of(leaf) == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_faults_in_random_switches_are_caught(seed: int) -> None:
    """Any switch of a rendered fabric, one fault of the catalogue: its rule finds it."""
    random_ = random.Random(seed)
    fabric = FABRIC
    switch = random_.choice([s for s in fabric.switches if s.name.startswith("leaf")])
    config: Config = json.loads(json.dumps(render_config_db(fabric, switch)))
    rule = random_.choice(sorted(MUTATIONS))
    MUTATIONS[rule][0](config)
    assert rule in rules_of(config)


FABRIC = load_fabric(shipped_topologies()["rail-8x8"])

#: A fault between two switches: what is changed on spine1.
BETWEEN: dict[str, Callable[[Config], None]] = {
    "FAB101": edit("PORT", "mtu", "9000"),
    "FAB102": lambda c: c["PORT_QOS_MAP"]["Ethernet0"].update(pfc_enable="4", pfcwd_sw_enable="4"),
    "FAB103": lambda c: first(c, "DSCP_TO_TC_MAP")[1].update({"10": "1"}),
    "FAB104": lambda c: c["DEVICE_METADATA"]["localhost"].update(bgp_asn="65099"),
    "FAB105": lambda c: c["DEVICE_NEIGHBOR"]["Ethernet0"].update(name="leaf2"),
    "FAB106": lambda c: c["DEVICE_METADATA"]["localhost"].update(hostname="leaf1"),
    "FAB022": lambda c: c["DEVICE_METADATA"]["localhost"].update(type="ToRRouter"),
}


def test_cables_as_planned(tmp_path: Path) -> None:
    """FAB107: a rendering has its own cabling.csv, and fits it; with another plan, both ends of the cable are named."""
    write_tree(iter_files(load_fabric(shipped_topologies()["clos-2x2"])), tmp_path)
    assert lint_paths([tmp_path]).findings == ()
    plan = tmp_path / "cabling.csv"
    plan.write_text(
        plan.read_text().replace("leaf1,Ethernet240,spine1,Ethernet0", "leaf1,Ethernet240,spine2,Ethernet8")
    )
    found = lint_paths([tmp_path]).findings
    assert {(f.rule, f.switch) for f in found} == {("FAB107", "leaf1"), ("FAB107", "spine2")}, found
    assert all("cabling.csv has" in f.what for f in found)
    plan.write_text("nonsense,x\n1,2\n")
    with pytest.raises(FileProblem, match="must name the columns"):
        lint_paths([tmp_path])


@pytest.mark.parametrize("rule", sorted(set(FABRIC_RULES) - {"FAB107"}))
def test_a_fault_between_switches(rule: str) -> None:
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    configs = [json.loads(json.dumps(render_config_db(fabric, s))) for s in fabric.switches]
    assert rules_of(*configs) == []
    spine = next(c for c in configs if c["DEVICE_METADATA"]["localhost"]["hostname"] == "spine1")
    BETWEEN[rule](spine)
    assert rule in rules_of(*configs)


def test_a_missing_bgp_neighbour_is_found() -> None:
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    configs = [json.loads(json.dumps(render_config_db(fabric, s))) for s in fabric.switches]
    leaf = configs[0]
    del leaf["BGP_NEIGHBOR"][next(iter(leaf["BGP_NEIGHBOR"]))]
    assert rules_of(*configs) == ["FAB104"]


def test_ecn_marks_a_colour_only_if_it_is_enabled(leaf: Config) -> None:
    for ecn, enabled, expected in (
        ("ecn_all", "green yellow red", []),
        ("ecn_green", "green", []),
        ("ecn_green", "yellow red", ["QOS001"]),
        ("ecn_yellow_red", "green", ["QOS001"]),
        ("ecn_green_yellow", "green red", ["QOS067"]),
        ("ecn_none", "green", ["QOS002"]),
    ):
        config = copy.deepcopy(leaf)
        row = first(config, "WRED_PROFILE")[1]
        row["ecn"] = ecn
        row |= {f"wred_{c}_enable": str(c in enabled.split()).lower() for c in ("green", "yellow", "red")}
        assert rules_of(config) == expected, ecn


def test_a_finding_in_a_range_of_groups_stands_at_its_key(leaf: Config) -> None:
    config = copy.deepcopy(leaf)
    del config["BUFFER_PG"]["Ethernet0|3"]
    config["BUFFER_PG"]["Ethernet0|3-4"] = {"profile": "ingress_lossy_profile"}
    file = parse_config(Path("f.json"), json.dumps(config, indent=1).encode())
    found = [f for f in lint_files([file])[0] if f.rule == "BUF004"]
    assert {f.where for f in found} == {"BUFFER_PG|Ethernet0|3-4|profile"}
    assert all("ingress_lossy_profile" in file.text.splitlines()[f.line - 1] for f in found)


def test_a_key_of_port_qos_map_may_name_several_ports(leaf: Config) -> None:
    """As orchagent splits it; a finding stands where the key stands."""
    config = copy.deepcopy(leaf)
    rows = config["PORT_QOS_MAP"]
    ports = [p for p in rows if p != "global"]
    row = rows[ports[0]]
    for port in ports:
        assert rows.pop(port) == row
    key = ",".join(ports)
    rows[key] = row
    assert rules_of(config) == []
    del row["tc_to_pg_map"]
    file = parse_config(Path("f.json"), json.dumps(config, indent=1).encode())
    found = set(lint_files([file])[0])
    assert {(f.rule, f.where) for f in found} == {("QOS064", f"PORT_QOS_MAP|{key}|tc_to_pg_map")}
    assert all(key in file.text.splitlines()[f.line - 1] for f in found)
    row["tc_to_pg_map"] = (
        "AZURE" if "AZURE" in config["TC_TO_PRIORITY_GROUP_MAP"] else first(config, "TC_TO_PRIORITY_GROUP_MAP")[0]
    )
    row["pfcwd_sw_enable"] = "4"
    assert "QOS014" in rules_of(config)
    FIXES["QOS014"](config)
    assert rules_of(config) == []
    config["PORT"][ports[0]]["pfc_enable"] = "4"
    FIXES["QOS012"](config)
    assert rules_of(config) == []


# ------------------------------------------------------------------------------------------ folders, and their files


def test_one_file_that_cannot_be_read_hides_nothing(tmp_path: Path, leaf: Config) -> None:
    broken = copy.deepcopy(leaf)
    no_enable(broken)
    for name, text in (("leaf1", json.dumps(broken)), ("leaf2", '{\n"PORT": {,'), ("leaf3", '["a"]')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config_db.json").write_text(text)
    report = lint_paths([tmp_path])
    assert {(f.rule, f.switch, f.line) for f in report.findings} == {
        ("QOS001", "leaf1", report.findings[0].line), (FORM, "leaf2", 2), (FORM, "leaf3", 1),
    }  # fmt: skip
    assert [f.severity for f in report.findings] == [Severity.ERROR] * 3
    assert "not JSON" in next(f.what for f in report.findings if f.switch == "leaf2")
    assert len(report.files) == 3
    assert run(str(tmp_path))[0] == 1
    assert 'tests="3"' in run(str(tmp_path), "--format", "junit")[1]
    # Of several paths, too; and if none at all can be read, nothing was checked.
    report = lint_paths([tmp_path / "leaf1", tmp_path / "nowhere"])
    assert [f.rule for f in report.findings] == ["QOS001", FORM]
    with pytest.raises(FileProblem, match="not JSON"):
        lint_paths([tmp_path / "leaf2", tmp_path / "nowhere"])
    assert run(str(tmp_path / "leaf2"))[0] == 2


def test_a_fix_that_is_there_does_not_stop_the_others(tmp_path: Path, leaf: Config) -> None:
    broken = copy.deepcopy(leaf)
    no_enable(broken)
    for name in ("a", "b", "c"):
        broken["DEVICE_METADATA"]["localhost"]["hostname"] = name
        (tmp_path / f"{name}.json").write_text(json.dumps(broken))
    (tmp_path / "b.fixed.json").write_text("mine")
    (tmp_path / "d.json").write_text("{")
    code, _, err = run(str(tmp_path), "--fix")
    assert code == 2
    assert "b.fixed.json is there already" in err
    assert (tmp_path / "b.fixed.json").read_text() == "mine"
    for name in ("a", "c"):
        assert f"{name}.fixed.json written" in err
        assert (tmp_path / f"{name}.fixed.json").is_file()


def several_asics(folder: Path) -> dict[str, Config]:
    """leaf1 as a switch of two ASICs: ports and neighbours of each are its own, the host has neither."""
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    write_tree(iter_files(fabric), folder)
    path = folder / "leaf1" / "config_db.json"
    whole: Config = json.loads(path.read_text())
    ports = list(whole["PORT"])
    parts: dict[str, Config] = {"config_db.json": {"DEVICE_METADATA": whole["DEVICE_METADATA"]}}
    for asic in (0, 1):
        mine = set(ports[asic::2])
        part = copy.deepcopy(whole)
        for table in part:
            for key in list(part[table]):
                if key.startswith("Ethernet") and key.partition("|")[0] not in mine:
                    del part[table][key]
        if asic:
            del part["LOOPBACK_INTERFACE"]
        parts[f"config_db{asic}.json"] = part
    for name, part in parts.items():
        (path.parent / name).write_text(json.dumps(part, indent=1))
    return parts


def test_every_asic_of_a_switch_is_linted(tmp_path: Path) -> None:
    parts = several_asics(tmp_path)
    leaf = tmp_path / "leaf1"
    report = lint_paths([tmp_path])
    assert report.findings == ()
    assert {Path(f).name for f in report.files if "leaf1" in f} == set(parts)
    no_enable(parts["config_db1.json"])
    first(parts["config_db0.json"], "DEVICE_NEIGHBOR")[1]["name"] = "leaf2"
    for name, part in parts.items():
        (leaf / name).write_text(json.dumps(part, indent=1))
    found = {(f.rule, f.switch, Path(f.file).name) for f in lint_paths([tmp_path]).findings}
    assert ("QOS001", "leaf1-asic1", "config_db1.json") in found
    assert {rule for rule, _, _ in found} == {"QOS001", "FAB105", "FAB022"}
    assert {f.switch for f in lint_paths([leaf]).findings} == {"leaf1-asic1"}
    # A file that is named alone is linted alone, and what is beside it is said.
    report = lint_paths([leaf / "config_db.json"])
    assert any("config_db0.json, config_db1.json beside it not checked" in note for note in report.unchecked)
    assert {f.switch for f in lint_paths([leaf / "config_db1.json"]).findings} == {"leaf1-asic1"}
    (leaf / "config_db.json").unlink()
    assert len(lint_paths([leaf]).files) == 2


# --------------------------------------------------------------------------------- files no one here wrote

#: What SONiC's own daemons did with these (facts of release 202411), and the rules that say so. Two are no faults.
FAULTY = {
    "01_no_wred_enable": {"QOS001"}, "02_no_ecn": {"QOS002"}, "03_wred_unknown_field": {"QOS032"},
    "04_wred_min_gt_max": {"QOS054"}, "05_wred_gt_2e31": {"QOS055", "BUF041"}, "06_pfc_in_port_table": {"QOS012", "QOS014"},
    "07_no_pfcwd_sw_enable": {"QOS014"}, "08_no_buffer_pg3": set(), "09_bracket_refs": {"QOS017"},
    "10_queue_bad_profile": {"QOS020"}, "11_no_port_qos_map_port": {"QOS011"}, "12_sched_unknown_type": {"QOS056"},
    "13_cable_0m_no_pg": {"BUF006"}, "14_cable_unlisted_no_pg": {"BUF005"}, "15_pfcwd_detect_lt_poll": {"QOS016"},
    "16_pfcwd_no_restore": {"QOS045"}, "17_profile_list_json": {"BUF029"}, "18_pool_missing": {"QOS020"},
    "19_dscp_missing": {"QOS052"}, "20_space_in_value": {"GEN030"},
    "21_pfc_enable_two": {"QOS039", "QOS063", "QOS014", "BUF058"}, "22_queue_range": set(),
    "23_static_on_dynamic_pool": {"BUF021"}, "24_hash_l3": {"ECMP023"}, "25_hash_bad_field": {"ECMP023", "ECMP060"},
    "26_weight_0": {"QOS057"}, "27_dynamic_th_9": {"BUF059"},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FAULTY))
def test_what_sonic_made_of_it(name: str, shared: Path) -> None:
    report = lint_paths([shared / "data" / "sonic-vs-202411" / "faulty" / f"{name}.json"])
    assert {f.rule for f in report.findings} == FAULTY[name]


def test_the_unchanged_one_is_clean(shared: Path) -> None:
    assert lint_paths([shared / "data" / "sonic-vs-202411" / "leaf4" / "config_db.json"]).findings == ()


#: SONiC's YANG models refuse these; what says so here.
NEGATIVE = {
    "neg_badref": "QOS020", "neg_dscp": "GEN061", "neg_ecn": "GEN061", "neg_len": "GEN061", "neg_minmax": "QOS054",
    "neg_pfcen": "GEN061", "neg_poll": "QOS016", "neg_port": "QOS028", "neg_field": "GEN062",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NEGATIVE))
def test_what_yang_refuses(name: str, shared: Path) -> None:
    report = lint_paths([shared / "data" / "sonic-yang" / "samples" / f"{name}.json"])
    assert NEGATIVE[name] in {f.rule for f in report.findings}


def test_public_configurations_are_read_without_a_crash(shared: Path) -> None:
    files = [
        *(shared / "data" / "config_db").glob("*.json"),
        *(shared / "data" / "sonic-yang" / "samples").glob("*.json"),
    ]
    assert len(files) > 15
    for file in files:
        try:
            report = lint_paths([file])
        except FileProblem as problem:
            assert str(file) in str(problem)
            continue
        for finding in report.findings:
            assert finding.line >= 1
            assert finding.what


# ------------------------------------------------------------------------------------- files that are none


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ":1:1: not JSON"),
        (b'{\n  "PORT": {\n', ":3:1: not JSON"),
        (b'{"PORT": {"Ethernet0": {"mtu": "9100",}}}', "not JSON"),
        (b"[1, 2]", "the top level is a list"),
        (b'"text"', "the top level is a text"),
        (b'{"PORT|Ethernet0": {"mtu": "9100"}}', "a flattened dump"),
        (b'{"a": "\xff"}', ":1: not UTF-8"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_what_cannot_be_read_says_where(raw: bytes, words: str) -> None:
    with pytest.raises(FileProblem) as caught:
        parse_config(Path("f.json"), raw)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "line", "words"),
    [
        (b'\xef\xbb\xbf{"PORT": {}}', 1, "byte order mark"),
        (b'{\n"PORT": {},\n"PORT": {}}', 3, "there twice"),
        (b'{"PORT": {"Ethernet0": {\n"mtu": 9100}}}', 2, "a number (9100)"),
        (b'{"PORT": {"Ethernet0": {\n"mtu": true}}}', 2, "a truth value (true)"),
        (b'{"PORT": {"Ethernet0": {\n"mtu": null}}}', 2, "null"),
        (b'{\n"PORT": []}', 2, "the table is a list"),
        (b'{"PORT": {\n"Ethernet0": "up"}}', 2, "the row is a text"),
        (b'{"PORT": {"Ethernet0": {\r\n"mtu": 9100}}}\r\n', 2, "a number"),
    ],
)
def test_faults_of_form_have_their_line(raw: bytes, line: int, words: str) -> None:
    faults = parse_config(Path("f.json"), raw).faults
    assert len(faults) == 1
    assert faults[0].line == line
    assert words in faults[0].what


def test_lines_are_of_the_object_itself() -> None:
    """Not of another one of the same name before it, nor of a value that reads alike."""
    raw = b"""{
    "NOTES": {"PORT": {"QUEUE": "PORT", "mtu": "\\"PORT\\": {"}},
    "FLEX_COUNTER_TABLE": {
        "PORT": {"POLL_INTERVAL": "1"},
        "QUEUE": {
            "POLL_INTERVAL": "1"}},
    "PORT" : {
        "Ethernet0": {"lanes": "1",
                      "alias": "mtu",
                      "mtu": ["9100", "mtu"]},
        "Ether\\u006eet4": {
            "m\\u0074u": "1"},
        "Ethernet0": {"lanes": "1"}},
    "LOOPBACK_INTERFACE": {
        "Loopback0": {},
        "Loopback0|10.0.0.1/32": {}}
}"""
    file = parse_config(Path("f.json"), raw)
    assert {where: file.line_of(where) for where in (
        "NOTES|PORT|QUEUE", "FLEX_COUNTER_TABLE|PORT", "FLEX_COUNTER_TABLE|QUEUE|POLL_INTERVAL", "PORT", "PORT|Ethernet0",
        "PORT|Ethernet0|mtu", "PORT|Ethernet4|mtu", "PORT|Ethernet4|fec", "PORT|Ethernet8|fec", "QUEUE|Ethernet0|3",
        "LOOPBACK_INTERFACE|Loopback0|10.0.0.1/32", "LOOPBACK_INTERFACE|Loopback0|nat_zone",
    )} == {
        "NOTES|PORT|QUEUE": 2, "FLEX_COUNTER_TABLE|PORT": 4, "FLEX_COUNTER_TABLE|QUEUE|POLL_INTERVAL": 6, "PORT": 7,
        "PORT|Ethernet0": 13, "PORT|Ethernet0|mtu": 10, "PORT|Ethernet4|mtu": 12, "PORT|Ethernet4|fec": 11,
        "PORT|Ethernet8|fec": 7, "QUEUE|Ethernet0|3": 1, "LOOPBACK_INTERFACE|Loopback0|10.0.0.1/32": 16,
        "LOOPBACK_INTERFACE|Loopback0|nat_zone": 15,
    }  # fmt: skip
    assert [(f.line, f.where) for f in file.faults] == [(13, "PORT|Ethernet0")]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_a_message_or_findings(raw: bytes) -> None:
    try:
        lint_files([parse_config(Path("f.json"), raw)])
    except FabtestError as error:
        assert "f.json" in str(error)


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(table=st.sampled_from(["PORT", "PORT_QOS_MAP", "WRED_PROFILE", "BUFFER_PG", "BUFFER_PROFILE", "PFC_WD", "QUEUE",
                              "SCHEDULER", "SWITCH_HASH", "BGP_NEIGHBOR", "CABLE_LENGTH", "DEVICE_METADATA", "INTERFACE"]),
       value=Json)  # fmt: skip
def test_any_json_in_a_table_gives_findings(table: str, value: Any) -> None:
    base = {"PORT_QOS_MAP": {"Ethernet0": {"pfc_enable": "3"}}, "PORT": {"Ethernet0": {"mtu": "9100"}}}
    lint_files([parse_config(Path("f.json"), json.dumps({**base, table: value}).encode())])


# ------------------------------------------------------------------------------------------------- the command


def run(*words: str) -> tuple[int, str, str]:
    program = str(Path(sys.executable).with_name("fabtest"))
    done = subprocess.run([program, "config-lint", *words], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_command(tmp_path: Path, leaf: Config) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(leaf, indent=2))
    broken = copy.deepcopy(leaf)
    no_enable(broken)
    bad.write_text(json.dumps(broken, indent=2))
    assert run(str(good))[:2] == (0, "")
    code, out, err = run(str(bad))
    assert code == 1
    assert out.startswith(f"{bad}:")
    assert "error QOS001: WRED_PROFILE|" in out
    assert "1 file: 1 errors, 0 warnings" in err
    line = int(out.split(":")[1])
    assert "ROCE" in bad.read_text().splitlines()[line - 1]
    assert run(str(bad), "--profile", "lossy")[0] == 0
    found = json.loads(run(str(bad), "--format", "json")[1])
    assert found["counts"]["error"] == 1
    sarif = json.loads(run(str(bad), "--format", "sarif")[1])
    assert sarif["runs"][0]["results"][0]["ruleId"] == "QOS001"
    assert 'type="QOS001"' in run(str(bad), "--format", "junit")[1]
    assert run(str(tmp_path / "none"))[0] == 2
    code, out, _ = run("--explain", "qos014")
    assert code == 0
    assert "pfcwd_sw_enable" in out
    assert run("--explain", "QOS999")[0] == 2


@pytest.mark.parametrize("rule", sorted(set(FIXES) - {FORM}))
def test_a_fix_makes_it_clean(rule: str, leaf: Config, tmp_path: Path) -> None:
    """The corrected copy has nothing left of what was broken, and the original is as it was."""
    broken = copy.deepcopy(leaf)
    MUTATIONS[rule][0](broken)
    path = tmp_path / "config_db.json"
    path.write_text(json.dumps(broken))
    code, _, err = run(str(path), "--fix")
    assert code == 1
    assert f"{path.with_name('config_db.fixed.json')} written\n" in err
    assert json.loads(path.read_text()) == broken
    assert rules_of(json.loads(path.with_name("config_db.fixed.json").read_text())) == []
    code, _, err = run(str(path), "--fix")
    assert code == 2
    assert "is there already" in err


def test_a_fix_of_form_and_what_is_left(tmp_path: Path, leaf: Config) -> None:
    broken = copy.deepcopy(leaf)
    broken["PORT"]["Ethernet0"]["mtu"] = 9100
    broken["WRED_PROFILE"]["x"] = {"colour": "red"}
    path = tmp_path / "config_db.json"
    path.write_text(json.dumps(broken))
    err = run(str(path), "--fix")[2]
    assert "for you to decide: QOS032" in err
    assert json.loads(path.with_name("config_db.fixed.json").read_text())["PORT"]["Ethernet0"]["mtu"] == "9100"


@pytest.mark.parametrize(
    "odd",
    [
        {"QUEUE": {"Ethernet0|\u00b2": {}}},
        {"QUEUE": {"Ethernet0|0-999999999": {}}},
        {"PORT": {"Ethernet0": {"speed": "1" + "0" * 400, "mtu": "9" * 5000}}},
        {"BUFFER_POOL": {"p": {"size": "1" + "0" * 400}}},
        {"PORT": {"Eth\ud800": {"fec": "none", "speed": "400000"}}},
        {"SCHEDULER": {"a\x01": {"type": "x"}}},
    ],
)
def test_odd_values_are_findings_or_nothing(odd: Config, leaf: Config, tmp_path: Path) -> None:
    config = copy.deepcopy(leaf)
    for table, rows in odd.items():
        for key, row in rows.items():
            config[table].setdefault(key, {}).update(row)
    path = tmp_path / "config_db.json"
    path.write_text(json.dumps(config))
    for form in ("text", "json", "junit"):
        code, out, _ = run(str(path), "--format", form)
        assert code in (0, 1)
        if form == "junit":
            ElementTree.fromstring(out)


def test_a_file_that_lost_something_is_not_written_again(tmp_path: Path, leaf: Config) -> None:
    path = tmp_path / "config_db.json"
    path.write_text(json.dumps({**leaf, "NOTES": {"a": {"x": None}, "b": "text"}, "LIST": ["a"]}))
    code, _, err = run(str(path), "--fix")
    assert code == 1
    assert "written" not in err
    assert not path.with_name("config_db.fixed.json").exists()


def test_what_the_facts_accept_is_no_error(leaf: Config) -> None:
    """A VRF in bgpcfgd's keys, a banner with its line breaks, aliases for ports."""
    fine = copy.deepcopy(leaf)
    fine["BGP_NEIGHBOR"]["Vrf_red|10.0.0.9"] = {"asn": "65000"}
    fine["BANNER_MESSAGE"] = {"global": {"motd": "You are on\nSONiC\n"}}
    fine["DEVICE_METADATA"]["localhost"] |= {"docker_routing_config_mode": "separated"}
    assert rules_of(fine) == []
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    configs = [json.loads(json.dumps(render_config_db(fabric, s))) for s in fabric.switches]
    for config in configs:
        for row in config["DEVICE_NEIGHBOR"].values():
            far = next((c for c in configs if c["DEVICE_METADATA"]["localhost"]["hostname"] == row["name"]), None)
            if far:
                row["port"] = far["PORT"][row["port"]]["alias"]
    assert rules_of(*configs) == []


def test_what_is_not_there_is_missed(leaf: Config) -> None:
    for table in ("WRED_PROFILE", "SCHEDULER", "DSCP_TO_TC_MAP"):
        less = {k: v for k, v in leaf.items() if k != table}
        assert "QOS020" in rules_of(less)
    bare = copy.deepcopy(leaf)
    del bare["PORT_QOS_MAP"]["Ethernet0"]["dscp_to_tc_map"]
    del bare["PORT_QOS_MAP"]["global"]
    assert "QOS010" in rules_of(bare)


def test_formats_of_an_empty_report() -> None:
    report = lint_paths([])
    assert as_sarif(report)["runs"][0]["results"] == []
    assert 'tests="0"' in as_junit(report)


def test_a_form_fault_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text('{"PORT": {"Ethernet0": {"mtu": 9100}}}')
    report = lint_paths([file])
    assert [(f.rule, f.severity) for f in report.findings] == [(FORM, Severity.ERROR)]


def test_a_hundred_switches_do_not_take_long(tmp_path: Path) -> None:
    """Not a bound of time (benchmarks hold those): a guard against a rule that grows with the square of ports."""
    fabric = load_fabric(shipped_topologies()["clos-32x8"])
    write_tree(iter_files(fabric), tmp_path)
    start = time.monotonic()
    assert lint_paths([tmp_path]).findings == ()
    assert time.monotonic() - start < 60


def test_the_documentation_is_generated() -> None:
    text = (ROOT / "docs" / "lint.md").read_text()
    assert documentation() in text
    for rule in every_rule().values():
        assert rule.why
        assert rule.remedy
        assert rule.source
