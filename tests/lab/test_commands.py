"""The command line against a running lab, as people and scripts use it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fabtest.runtime.base import Lab
from tests.lab.conftest import FABTEST, fabtest, running


@pytest.fixture(autouse=True)
def _lab(small: Lab) -> None:
    """All of these run against the small lab."""


def test_list_and_status() -> None:
    labs = json.loads(fabtest("lab-list", "--json").stdout)
    assert [lab["name"] for lab in labs if lab["state"] == "up"] == ["t-small"]
    assert "t-small" in fabtest("lab-list").stdout
    start = time.monotonic()
    status = json.loads(fabtest("lab-status", "--json").stdout)
    assert time.monotonic() - start < 2
    assert status["ok"]
    assert status["links"] == {"total": 8, "up": 8, "down": []}
    assert status["sessions"] == {"total": 8, "established": 8}
    text = fabtest("lab-status", "t-small").stdout
    assert "everything is as designed" in text
    assert "\x1b[" not in text


def test_status_says_what_is_wrong() -> None:
    fabtest("link-down", "leaf1", "spine1")
    try:
        done = fabtest("lab-status", ok=False)
        assert done.returncode == 1
        assert "leaf1:Ethernet240 -- spine1:Ethernet0: leaf1:Ethernet240 has no carrier" in done.stdout
        assert "spine1:Ethernet0 was cut (link-down)" in done.stdout
    finally:
        fabtest("link-up", "leaf1", "spine1")
    for _ in range(100):
        if fabtest("lab-status", ok=False).returncode == 0:
            return
    pytest.fail("not as designed again")


def test_exec_keeps_quotes_and_exit_codes() -> None:
    assert fabtest("lab-exec", "gpu1", "--", "sh", "-c", "echo 'a  b'; exit 0").stdout == "a  b\n"
    assert fabtest("lab-exec", "gpu1", "--", "sh", "-c", "exit 7", ok=False).returncode == 7
    missing = fabtest("lab-exec", "gpu1", "--", "no-such-program", ok=False)
    assert missing.returncode == 127
    assert "no-such-program" in missing.stderr
    none = fabtest("lab-exec", "gpu1", ok=False)
    assert none.returncode == 2
    unknown = fabtest("lab-exec", "leef1", "--", "true", ok=False)
    assert unknown.returncode == 2
    assert "did you mean leaf1" in unknown.stderr


def test_exec_sees_the_switch_as_sonic() -> None:
    assert "leaf1" in fabtest("lab-exec", "leaf1", "--", "vtysh", "-c", "show running-config").stdout
    assert "ToRRouter" in fabtest("lab-exec", "leaf1", "--", "cat", "/etc/sonic/config_db.json").stdout
    redis = ["redis-cli", "-s", "/run/redis/redis.sock", "-n", "4", "HGET", "DEVICE_METADATA|localhost", "hostname"]
    assert fabtest("lab-exec", "leaf1", "--", *redis).stdout.strip() == "leaf1"
    assert "eth1" in fabtest("lab-exec", "gpu1", "--", "ip", "-br", "link").stdout
    assert "Ethernet0" in fabtest("lab-exec", "leaf1", "--", "ls", "/sys/class/net").stdout


@pytest.mark.parametrize(
    ("words", "headings"),
    [
        ("interfaces status", ["Interface", "Lanes", "Speed", "MTU", "FEC", "Alias", "Vlan", "Oper", "Admin", "Type", "Asym", "PFC"]),
        ("interfaces counters", ["IFACE", "STATE", "RX_OK", "RX_BPS", "RX_UTIL", "RX_ERR", "RX_DRP", "RX_OVR", "TX_OK", "TX_BPS", "TX_UTIL", "TX_ERR", "TX_DRP", "TX_OVR"]),
        ("ip bgp summary", ["Neighbhor", "V", "AS", "MsgRcvd", "MsgSent", "TblVer", "InQ", "OutQ", "Up/Down", "State/PfxRcd", "NeighborName"]),
        ("lldp table", ["LocalPort", "RemoteDevice", "RemotePortID", "Capability", "RemotePortDescr"]),
        ("ip route", ["Prefix", "Protocol", "Nexthop", "Interface"]),
    ],
)  # fmt: skip
def test_show(words: str, headings: list[str]) -> None:
    lines = fabtest("show", "leaf1", *words.split()).stdout.splitlines()
    assert lines[0].split() == headings
    assert set(lines[1].replace(" ", "")) == {"-"}
    rows = json.loads(fabtest("show", "leaf1", *words.split(), "--json").stdout)
    assert [h for head in rows[0] for h in head.split()] == headings
    assert len(rows) == len(lines) - 2


def test_show_what_there_is_not() -> None:
    done = fabtest("show", "leaf1", "weather", ok=False)
    assert done.returncode == 2
    assert "interfaces status" in done.stderr
    assert fabtest("show", "gpu1", "ip", "route", ok=False).returncode == 2


def test_capture(tmp_path: Path) -> None:
    file = tmp_path / "x.pcap"
    capture = subprocess.Popen(
        [*FABTEST, "lab-capture", "gpu3", "eth1", "--out", str(file), "--count", "5", "--filter", "udp port 4791", "--seconds", "20"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert capture.stderr is not None
    while "listening on" not in capture.stderr.readline():
        assert capture.poll() is None
    fabtest("traffic-send", "gpu1", "gpu3", "--count", "10")
    capture.wait(timeout=20)
    from scapy.contrib.roce import BTH
    from scapy.utils import rdpcap

    packets = rdpcap(str(file))
    assert len(packets) == 5
    assert all(BTH in p for p in packets)
    bad = fabtest("lab-capture", "gpu3", "eth9", ok=False)
    assert bad.returncode == 2
    assert "ports: eth1" in bad.stderr


def test_traffic() -> None:
    done = json.loads(
        fabtest("traffic-send", "gpu1", "gpu4", "--count", "2000", "--flows", "20", "--pps", "0", "--json").stdout
    )
    assert (done["sent"], done["received"], done["lost"], done["bad_icrc"], done["out_of_order"]) == (
        2000,
        2000,
        0,
        0,
        0,
    )
    fabtest("link-down", "gpu4", "leaf2", "--silent")
    try:
        lost = fabtest("traffic-send", "gpu1", "gpu4", "--count", "100", ok=False)
        assert lost.returncode == 1
        assert "100 lost" in lost.stdout
    finally:
        fabtest("link-up", "gpu4", "leaf2")
    receive = subprocess.Popen(
        [*FABTEST, "traffic-receive", "gpu2", "--count", "50", "--seconds", "20", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert receive.stderr is not None
    assert "receiving" in receive.stderr.readline()
    time.sleep(0.3)
    fabtest("traffic-send", "gpu1", "gpu2", "--count", "50", "--flows", "5")
    rows = json.loads(receive.communicate(timeout=20)[0])
    assert len(rows) == 5
    assert sum(row["packets"] for row in rows) == 50
    assert {row["dscp"] for row in rows} == {26}
    assert fabtest("traffic-send", "leaf1", "gpu2", ok=False).returncode == 2


def test_graph(tmp_path: Path) -> None:
    fabtest("link-down", "leaf2", "spine2")
    try:
        for kind in ("svg", "html", "png"):
            fabtest("lab-graph", "--out", str(tmp_path / f"x.{kind}"))
        svg = ElementTree.parse(tmp_path / "x.svg")
        titles = [t.text or "" for t in svg.iter("{http://www.w3.org/2000/svg}title")]
        assert any("leaf2" in t and "was cut" in t for t in titles)
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
        assert "was cut" in (tmp_path / "x.html").read_text()
        assert fabtest("lab-graph", "--out", str(tmp_path / "x.gif"), ok=False).returncode == 2
    finally:
        fabtest("link-up", "leaf2", "spine2")


def test_logs() -> None:
    assert "BGP" in fabtest("lab-logs", "leaf1").stdout
    assert "agent of t-small" in fabtest("lab-logs").stdout
    assert fabtest("lab-logs", "gpu1").returncode == 0


def test_suites_report(tmp_path: Path) -> None:
    junit, html = tmp_path / "j.xml", tmp_path / "r.html"
    for _ in range(100):
        if fabtest("lab-status", ok=False).returncode == 0:
            break
    fabtest("lab-test", "underlay", "qos-config", "--junit", str(junit), "--html", str(html))
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "0"
    assert "qos-config.ecn" in html.read_text()
    assert "<svg" in html.read_text()
    fabtest(
        "lab-exec",
        "leaf1",
        "--",
        "redis-cli",
        "-s",
        "/run/redis/redis.sock",
        "-n",
        "4",
        "HDEL",
        "WRED_PROFILE|ROCE_400G",
        "ecn",
    )
    try:
        broken = fabtest("lab-test", "qos-config", "--json", "--junit", str(junit), ok=False)
        assert broken.returncode == 1
        verdicts = {v["check"]: v for v in json.loads(broken.stdout)["verdicts"]}
        assert [c for c, v in verdicts.items() if v["outcome"] != "pass"] == ["qos-config.ecn"]
        assert "leaf1:Ethernet0" in verdicts["qos-config.ecn"]["where"]
        suite = ElementTree.parse(junit).getroot().find("testsuite")
        assert suite is not None
        assert suite.get("failures") == "1"
    finally:
        fabtest(
            "lab-exec",
            "leaf1",
            "--",
            "redis-cli",
            "-s",
            "/run/redis/redis.sock",
            "-n",
            "4",
            "HSET",
            "WRED_PROFILE|ROCE_400G",
            "ecn",
            "ecn_all",
        )
    assert fabtest("lab-test", "no-such", ok=False).returncode == 2


def test_users_own_tests(tmp_path: Path) -> None:
    """The plugin's fixtures, as docs/writing-tests.md shows them."""
    (tmp_path / "test_mine.py").write_text(
        "def test_flows(lab, fabric, switches, servers, flows):\n"
        "    assert len(switches) == len(fabric.switches) == 4\n"
        "    assert flows.send('gpu1', 'gpu4', count=200, flows=10).lost == 0\n"
        "    assert servers[0].exec(['true']).returncode == 0\n"
    )
    done = subprocess.run(
        [str(Path(FABTEST[0]).with_name("pytest")), "-q", "--fabtest-lab", "t-small", "-c", "/dev/null", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_inconclusive_is_an_exit_code_of_its_own() -> None:
    """A lab that is not whole leaves failover undecided, and the command says so with 3."""
    fabtest("link-down", "leaf1", "spine2")
    try:
        done = fabtest("lab-test", "failover", "--json", ok=False)
        report = json.loads(done.stdout)
        assert done.returncode == 3, report
        assert {v["outcome"] for v in report["verdicts"]} == {"inconclusive"}
    finally:
        fabtest("link-up", "leaf1", "spine2")


def test_which_lab_when_there_are_two() -> None:
    with running("clos-2x2", "t-second"):
        done = fabtest("lab-status", ok=False)
        assert done.returncode == 5
        assert "several labs are up: t-second, t-small" in done.stderr
        assert fabtest("lab-exec", "gpu1", "--lab", "t-second", "--", "true").returncode == 0


def test_already_up() -> None:
    done = fabtest("lab-up", "clos-2x2", "--name", "t-small", ok=False)
    assert done.returncode == 5
    assert "already up" in done.stderr
    assert fabtest("lab-list", "--json").stdout.count("t-small") == 1


def test_convergence_that_does_not_come(tmp_path: Path) -> None:
    """The node and session that are missing are named, and the end of the node's log: of a fabric in which one session
    cannot come up, since each end waits for the other to call."""
    files = tmp_path / "prod"
    fabtest("config-render", "clos-2x2", "--out", str(files))
    for node, peer in (("leaf1", "spine1"), ("spine1", "leaf1")):
        conf = next(files.rglob(f"{node}/frr.conf"))
        said = f" description {peer}:"
        named = next(line.split()[1] for line in conf.read_text().splitlines() if said in line)
        conf.write_text(
            conf.read_text().replace(" !\n address-family", f" neighbor {named} passive\n !\n address-family")
        )
    done = fabtest("lab-up", str(files), "--name", "t-never", "--timeout", "2", ok=False)
    try:
        assert done.returncode == 6
        assert "has not converged within 2 s" in done.stderr
        assert re.search(r"leaf1: session with spine1 \(\S+ on \S+\) is Active", done.stderr)
        assert "last lines of leaf1's log" in done.stderr
    finally:
        fabtest("lab-down", "t-never")
