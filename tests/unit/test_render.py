"""Rendered files: the same bytes every time, valid for SONiC, loadable by FRR."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fabtest.errors import FileProblem
from fabtest.model import Tier
from fabtest.render import render_fabric, write_tree
from fabtest.render.files import diff_tree, iter_files
from fabtest.sonic.config_db import render_config_db
from fabtest.sonic.effective import port_qos
from fabtest.sonic.frr import render_frr
from fabtest.sonic.lite_frr import split_by_daemon
from fabtest.topology import load_fabric, load_fabric_text, shipped_topologies

SHIPPED = sorted(shipped_topologies())
SMALL = [n for n in SHIPPED if n not in ("rail-8192", "clos-112x16")]
RELEASES = ("202511", "202605")


@pytest.mark.parametrize("name", SMALL)
def test_two_renders_are_byte_identical(name: str, tmp_path: Path) -> None:
    """Also in another process with another hash seed."""
    first = render_fabric(load_fabric(shipped_topologies()[name]))
    script = (
        "import sys,hashlib;from fabtest.render import render_fabric;from fabtest.topology import *;"
        "t=render_fabric(load_fabric(shipped_topologies()[sys.argv[1]]));"
        "print({k:hashlib.sha256(v).hexdigest() for k,v in t.items()})"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", script, name], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert digests[0] == digests[1]
    assert len(first) == digests[0].count(": '")


def test_large_renders_are_byte_identical(tmp_path: Path) -> None:
    fabric = load_fabric(shipped_topologies()["rail-8192"])
    written, same = write_tree(iter_files(fabric), tmp_path)
    assert written == 3 + 3 * 640 + 2 * 1024
    assert same == 0
    again = load_fabric(shipped_topologies()["rail-8192"])
    assert write_tree(iter_files(again), tmp_path) == (0, written)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rendered")
    for name in SHIPPED:
        write_tree(iter_files(load_fabric(shipped_topologies()[name])), folder / name)
    return folder


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", SHIPPED)
def test_sonic_accepts_every_switch(shared: Path, rendered: Path, name: str, release: str) -> None:
    """SONiC's own YANG models, through the oracle."""
    files = sorted(str(p) for p in (rendered / name).glob("*/config_db.json"))
    assert len(files) == len(load_fabric(shipped_topologies()[name]).switches)
    oracle = str(shared / "tools" / "configdb_yang_oracle.py")

    def judge(part: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, oracle, release, *part], capture_output=True, text=True, check=False)

    parts = [files[i::2] for i in range(2) if files[i::2]]
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(judge, parts):
            wrong = [line for line in done.stdout.splitlines() if not line.endswith(": valid")]
            assert done.returncode == 0, wrong[:5] or done.stderr


def test_the_oracle_sees_faults(shared: Path, tmp_path: Path) -> None:
    """The judge is awake: a wrong value in one of our files is found."""
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    config = render_config_db(fabric, fabric.switches[0])
    config["PORT"]["Ethernet0"]["mtu"] = "70000"
    file = tmp_path / "config_db.json"
    file.write_text(json.dumps(config))
    oracle = str(shared / "tools" / "configdb_yang_oracle.py")
    done = subprocess.run([sys.executable, oracle, "202511", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 1


VARIANTS = {
    "vlan": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 3\nserver: {attachment: vlan}\n",
    "dual": "kind: rail\nrails: 2\nspines: 2\nservers_per_unit: 2\naddressing: {families: dual}\n",
    "ipv6": "kind: rail\nrails: 2\nspines: 2\nservers_per_unit: 2\naddressing: {families: ipv6}\n",
    "unnumbered": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\naddressing: {fabric_links: unnumbered}\n",
    "breakout": (
        "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 4\nswitches:\n  leaf: {port_speed: 800G, downlink_breakout: 2x400G}\n"
        "  spine: {port_speed: 800G}\n"
    ),
    "four-ways": (
        "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 4\nswitches:\n  leaf: {downlink_breakout: 4x100G, uplink_breakout: 2x200G}\n"
        "  spine: {downlink_breakout: 2x200G}\n"
    ),
    "lossy": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\nqos: lossy\n",
    "explicit": (
        "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\nqos:\n  roce_dscp: 24\n  roce_tc: 4\n  ecn: {kmin: 100000, kmax: 400000, pmax: 20}\n"
        "  watchdog: {action: forward, detection_time: 400, restoration_time: 400, poll_interval: 400}\n"
    ),
    "bfd": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\nbgp: {bfd: true}\n",
}  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", VARIANTS)
def test_sonic_accepts_every_variant(shared: Path, tmp_path: Path, name: str, release: str) -> None:
    write_tree(iter_files(load_fabric_text(VARIANTS[name], "f.yml", default_name="f")), tmp_path)
    files = sorted(str(p) for p in tmp_path.glob("*/config_db.json"))
    oracle = str(shared / "tools" / "configdb_yang_oracle.py")
    done = subprocess.run([sys.executable, oracle, release, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("vtysh") is None, reason="FRR is not installed")
@pytest.mark.parametrize("name", [*VARIANTS, "rail-4x4", "dual-plane", "clos-3tier"])
def test_frr_loads_without_a_warning(tmp_path: Path, name: str) -> None:
    if name in VARIANTS:
        fabric = load_fabric_text(VARIANTS[name], "f.yml", default_name="f")
    else:
        fabric = load_fabric(shipped_topologies()[name])
    for switch in fabric.switches[:: max(1, len(fabric.switches) // 4)]:
        file = tmp_path / f"{switch.name}.conf"
        file.write_text(render_frr(fabric, switch))
        done = subprocess.run(["vtysh", "-C", "-f", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout + done.stderr == ""


def test_every_line_of_frr_conf_reaches_a_daemon() -> None:
    fabric = load_fabric_text(VARIANTS["bfd"], "f.yml", default_name="f")
    text = render_frr(fabric, fabric.switches[0])
    parts = split_by_daemon(text)
    assert "router bgp" in parts["bgpd"]
    assert "router bgp" not in parts["zebra"]
    assert "no zebra nexthop kernel enable" in parts["zebra"]
    assert "profile FABRIC" in parts["bfdd"]
    together = "\n".join(parts.values())
    for line in text.splitlines():
        if line.strip() and not line.strip().startswith(("!", "log ")):
            assert line in together


# ------------------------------------------------------------------------------------------------------- content


def test_roce_lossless_in_the_words_of_an_operator() -> None:
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    for switch in fabric.switches:
        config = render_config_db(fabric, switch)
        for link in fabric.links_of[switch.name]:
            qos = port_qos(config, link.end(switch.name).port)
            assert qos.maps["DSCP 26 to TC"] == qos.maps["TC 3 to queue"] == qos.maps["TC 3 to priority group"] == "3"
            assert qos.maps["DSCP 48 to TC"] == qos.maps["TC 6 to queue"] == "6"
            assert qos.maps["DSCP 0 to TC"] == "0"
            assert qos.pfc == {"priority 3": "on"}
            assert qos.watchdog["watchdog of priority 3"] == "on"
            assert qos.ecn["queue 3 ecn"] == "ecn_all"
            assert all(qos.ecn[f"queue 3 wred_{c}_enable"] == "true" for c in ("green", "yellow", "red"))
            kmin, kmax = int(qos.ecn["queue 3 green_min_threshold"]), int(qos.ecn["queue 3 green_max_threshold"])
            assert kmin == 4 * 250_000
            assert kmax == 4 * 1_000_000
            assert qos.schedulers["queue 6 type"] == "STRICT"
            assert int(qos.buffers["priority group 3 xoff"]) > 0
            # ECN has marked everything before a priority group of four that share the pool is paused.
            pool = int(qos.buffers["priority group 3 pool size"])
            assert kmax < pool / 5


def test_lossy_has_neither_pfc_nor_ecn() -> None:
    fabric = load_fabric_text(VARIANTS["lossy"], "f.yml", default_name="f")
    config = render_config_db(fabric, fabric.switches[0])
    assert "WRED_PROFILE" not in config
    assert "PFC_WD" not in config
    qos = port_qos(config, "Ethernet0")
    assert qos.pfc == {}
    assert qos.ecn == {}


def test_thresholds_scale_with_speed_and_headroom_with_cable() -> None:
    base = "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\n"

    def first_port(extra: str) -> dict[str, int]:
        fabric = load_fabric_text(base + extra, "f.yml", default_name="f")
        qos = port_qos(render_config_db(fabric, fabric.switches[0]), "Ethernet0")
        return {"kmin": int(qos.ecn["queue 3 green_min_threshold"]), "xoff": int(qos.buffers["priority group 3 xoff"])}

    fast, slow = first_port(""), first_port("switches: {leaf: {port_speed: 100G}, spine: {port_speed: 100G}}\n")
    assert fast["kmin"] == 4 * slow["kmin"]
    assert fast["xoff"] > slow["xoff"]
    long = first_port("cables: {server: 300}\n")
    # 295 m more, both ways, at 198e6 m/s and 400 Gbit/s, in cells of 144 bytes for packets of 64 and 1024 bytes.
    assert long["xoff"] - fast["xoff"] == pytest.approx(2 * 295 / 198e6 * 400e9 / 8 * 1.0735, abs=1024)


def test_routing_mode_and_types_are_always_written() -> None:
    fabric = load_fabric(shipped_topologies()["clos-3tier"])
    kinds = {Tier.LEAF: "ToRRouter", Tier.SPINE: "LeafRouter", Tier.SUPERSPINE: "SpineRouter"}
    for switch in fabric.switches:
        row = render_config_db(fabric, switch)["DEVICE_METADATA"]["localhost"]
        assert row["docker_routing_config_mode"] == "split-unified"
        assert row["type"] == kinds[switch.tier]
        assert row["bgp_asn"] == str(switch.asn)


def test_cabling_lists_every_cable_once() -> None:
    fabric = load_fabric(shipped_topologies()["dual-plane"])
    tree = render_fabric(fabric)
    rows = list(csv.DictReader(io.StringIO(tree["cabling.csv"].decode())))
    assert len(rows) == len(fabric.links)
    assert len({(r["a"], r["a_port"]) for r in rows} | {(r["b"], r["b_port"]) for r in rows}) == 2 * len(rows)
    assert all(r["speed"] == "400G" and int(r["length_m"]) > 0 for r in rows)
    inventory = json.loads(tree["inventory.json"])
    assert set(inventory["hosts"]) == set(fabric.node_names)


def test_diff_shows_what_would_change(tmp_path: Path) -> None:
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    write_tree(iter_files(fabric), tmp_path)
    assert diff_tree(iter_files(fabric), tmp_path) == []
    file = tmp_path / "leaf1" / "config_db.json"
    file.write_text(file.read_text().replace('"ecn": "ecn_all"', '"ecn": "ecn_none"'))
    lines = diff_tree(iter_files(fabric), tmp_path)
    assert any(line.startswith("+") and "ecn_all" in line for line in lines)
    with pytest.raises(FileProblem):
        diff_tree(iter_files(fabric), tmp_path / "nowhere")


def test_a_users_file_is_not_lost(tmp_path: Path) -> None:
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    mine = tmp_path / "notes.txt"
    mine.write_text("keep")
    write_tree(iter_files(fabric), tmp_path)
    assert mine.read_text() == "keep"
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(FileProblem):
        write_tree(iter_files(fabric), blocked / "below")
