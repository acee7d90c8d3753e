"""The engine on live labs: real queue pairs over real switches, with links cut, planes lost, noise and bad hashing."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fabtest.checks.entropy import measure_entropy, workload_spread
from fabtest.roce.capture import Capture
from fabtest.roce.compose import Composer, Port
from fabtest.roce.frames import read
from fabtest.roce.send import nic_named, resolve
from fabtest.runtime.base import Fault, Lab
from fabtest.runtime.namespaces import inside
from fabtest.workload.load import load_workload_text
from fabtest.workload.results import RunResult
from fabtest.workload.run import compile_for, run_workload
from tests.lab.conftest import FABTEST, fabtest, running


def go(lab: Lab, text: str, meanwhile: Callable[[], None] | None = None, **transport: Any) -> RunResult:
    compiled = compile_for(load_workload_text(text, "t.yml"), lab)
    if transport:
        compiled.transport = replace(compiled.transport, **transport)
    started = (lambda: threading.Thread(target=meanwhile).start()) if meanwhile else None
    return run_workload(lab, compiled, started=started)


@pytest.fixture(scope="module")
def rails() -> Iterator[Lab]:
    with running("rail-8x8", "t-rails") as lab:
        yield lab


RING = """
jobs:
- {pattern: ring-allreduce, scope: per-rail, size: 4MB, iterations: 2, qps: 2}
- {pattern: ring-allreduce, scope: flat, size: 32MB, iterations: 3, qps: 8}
"""


def test_an_allreduce_completes_and_counts_add_up(rails: Lab) -> None:
    result = go(rails, RING)
    assert result.ok
    assert result.failed_messages == 0
    assert result.foreign == result.ring_drops == result.never_started == 0
    assert result.icrc_checked > 100
    assert result.icrc_wrong == 0
    per_rail, flat = result.jobs
    assert per_rail.bytes == 2 * 8 * 8 * 14 * 500_000
    assert flat.bytes == 3 * 8 * 126 * 500_000, "eight of 64 hops leave their server"
    assert result.nvlink_bytes == 3 * 56 * 126 * 500_000
    for job in result.jobs:
        assert job.busbw == pytest.approx(job.algbw * 2 * (1 - 1 / (8 if job is per_rail else 64)))
        assert len(job.iteration_seconds) == job.iterations
        assert sum(job.iteration_seconds) == pytest.approx(job.seconds, rel=0.01)
        assert job.lost_to_slowest_ms > 0
        assert job.fct is not None
        assert job.fct.min <= job.fct.p50 <= job.fct.p99 <= job.fct.max
    for qp in result.qps:
        assert qp.rx_bytes == qp.tx_bytes
        assert qp.data_frames_rx + qp.duplicates >= qp.data_frames_tx - qp.data_frames_retransmitted
        assert qp.nak_tx == qp.nak_rx
    # What the leaves' ports sent is what the messages weigh, and headers.
    sent = sum(p.bytes for p in result.ports if p.switch.startswith("leaf"))
    assert sent > per_rail.bytes + flat.bytes


def test_a_cut_link_is_healed_by_retransmission(rails: Lab) -> None:
    cut: list[str] = []

    def meanwhile() -> None:
        time.sleep(0.7)
        cut.extend(rails.fail_link("leaf1", "spine1", Fault.CARRIER))
        time.sleep(1.5)
        rails.repair_link("leaf1", "spine1")

    result = go(rails, RING.replace("size: 32MB, iterations: 3", "size: 64MB, iterations: 8"), meanwhile)
    assert cut
    assert result.seconds > 1.0, "it was over before the cut"
    assert result.retransmits > 0
    assert result.failed_messages == 0
    assert result.ok
    assert 5 < result.outage_ms < 1400, "longer than a packet, shorter than the retry limit"
    # A packet that is sent again counts neither with its first nor its second time.
    assert max(q.latency.max for q in result.qps if q.latency is not None) < result.outage_ms + 100


def test_a_path_lost_for_good_fails_and_says_so(rails: Lab) -> None:
    text = "pattern: point-to-point\npairs: [[gpu1, gpu2]]\nrails: [3]\nduration: 20s\ntransport: {timeout: 50ms, retries: 3}\n"

    def meanwhile() -> None:
        time.sleep(0.4)
        rails.fail_link("gpu2:eth3", "leaf3", Fault.SILENT)

    start = time.monotonic()
    try:
        result = go(rails, text, meanwhile)
    finally:
        rails.repair_link("gpu2:eth3", "leaf3")
    assert time.monotonic() - start < 10, "it does not wait for the end of a stream that is dead"
    assert not result.ok
    assert result.failed_messages > 0
    assert len(result.failures) == 1
    assert result.failures[0].startswith("gpu1 -> gpu2, QP ")
    assert result.failures[0].endswith("retries exceeded")
    assert result.qps[0].timeouts == 4


def test_congestion_marks_make_cnps_and_rates_fall(rails: Lab) -> None:
    """Every packet leaves marked: receivers answer with CNPs, at most one per interval, and senders slow down."""
    text = "pattern: point-to-point\npairs: [[gpu1, gpu2]]\nrails: [1]\nduration: 1s\nmessage_size: 64KB\ntransport: {line_rate: 2Gbps}\n"
    free = go(rails, text)
    slowed = go(rails, text, ecn=3, congestion_control="dcqcn-2015", dilation=100.0, cnp_interval_ns=5_000_000)
    qp = slowed.qps[0]
    assert free.qps[0].cnp_rx == 0
    assert qp.ecn_ce_rx > 0
    assert 0 < qp.cnp_rx == qp.cnp_tx <= 1.3 * slowed.seconds / 0.005
    assert slowed.jobs[0].goodput < 0.2 * free.jobs[0].goodput
    assert slowed.ok


def test_marked_read_responses_slow_their_responder(rails: Lab) -> None:
    """The data of a READ comes from the responder: it gets the CNPs, and its rate falls."""
    text = "pattern: storage-read\nservers: [gpu1, gpu2]\nrails: [1]\nduration: 1s\nmessage_size: 64KB\ntransport: {line_rate: 2Gbps}\n"
    free = go(rails, text)
    slowed = go(rails, text, ecn=3, congestion_control="dcqcn-2015", dilation=100.0, cnp_interval_ns=5_000_000)
    assert free.qps[0].cnp_rx == 0
    assert slowed.qps[0].cnp_rx > 10
    assert 0 < slowed.jobs[0].goodput < 0.2 * free.jobs[0].goodput
    assert slowed.ok


def test_rates_are_kept(rails: Lab) -> None:
    text = "pattern: point-to-point\npairs: [[gpu3, gpu4]]\nrails: [1, 2]\nduration: 2s\nrate: 80Mbps\nmessage_size: 4096\n"
    closed = go(rails, text)
    for qp in closed.qps:
        assert qp.rx_bytes * 8 / 2 == pytest.approx(80e6, rel=0.05)
    open_loop = go(rails, text + "service: uc\n")
    for qp in (*closed.qps, *open_loop.qps):
        assert qp.latency is not None
        # Every sixteenth packet.
        assert qp.latency.count == pytest.approx(qp.data_frames_tx / 16, abs=2)
        assert 0 < qp.latency.min <= qp.latency.p50 <= qp.latency.p99 <= qp.latency.max < 1000
    for qp in closed.qps:
        assert qp.rtt is not None
        assert qp.latency is not None
        assert qp.latency.p50 < qp.rtt.p50, "one way is shorter than both"
    for qp in open_loop.qps:
        assert qp.data_frames_tx == pytest.approx(2 * 80e6 / 8 / 4096, abs=3)
        assert (qp.lost, qp.reordered, qp.ack_rx) == (0, 0, 0)
        assert qp.data_frames_rx == qp.data_frames_tx


def test_streams_of_so_many_bytes_are_waited_for(rails: Lab) -> None:
    """Also when they begin later, and beside a job that is over at once."""
    text = """
jobs:
- {pattern: incast, servers: [gpu1, gpu2], rails: [1], size: 1MB, message_size: 256KB, start: 1s}
- {pattern: incast, servers: [gpu3, gpu4, gpu5], rails: [2], size: 1MB, message_size: 250KB, stagger: 300ms}
- {pattern: incast, servers: [gpu6, gpu7], rails: [3], size: 400KB, message_size: 4KB, service: uc, rate: 10Mbps}
- {pattern: all-to-all, servers: [gpu1, gpu2], rails: [1, 2], size: 64KB}
"""
    result = go(rails, text)
    assert result.ok
    assert [q.rx_bytes for q in result.qps if q.job == 0] == [1024 * 1000]
    assert [q.rx_bytes for q in result.qps if q.job == 1] == [1_000_000] * 2
    assert [q.rx_bytes for q in result.qps if q.job == 2] == [400_000]
    assert result.seconds > 1
    assert result.jobs[0].seconds < 0.5, "a job's time counts from its own start"
    assert result.jobs[3].seconds < 0.5


def test_what_a_dead_path_loses_is_counted(rails: Lab) -> None:
    rails.fail_link("gpu2:eth4", "leaf4", Fault.SILENT)
    try:
        text = "pattern: point-to-point\npairs: [[gpu1, gpu2]]\nrails: [4]\nduration: 1s\nservice: uc\nrate: 8Mbps\nmessage_size: 1000\n"
        result = go(rails, text)
    finally:
        rails.repair_link("gpu2:eth4", "leaf4")
    assert not result.ok
    assert result.lost == result.qps[0].data_frames_tx == pytest.approx(1000, abs=3)
    assert result.outage_ms == pytest.approx(1000, abs=100)
    assert result.qps[0].latency is None, "nothing arrived"


def test_a_limit_is_not_a_success(rails: Lab) -> None:
    result = go(rails, "pattern: point-to-point\nduration: 60s\nlimit: 1s\n")
    assert result.cut
    assert not result.ok


def test_tcp_of_half_a_second_ends(rails: Lab) -> None:
    result = go(rails, "pattern: background-tcp\nduration: 300ms\n")
    assert [t.error for t in result.tcp] == [""]
    assert result.tcp[0].bits_per_second > 1e6


def test_noise_is_counted_and_never_answered(rails: Lab) -> None:
    """Frames to the right port that make no sense, among a stream that does: the stream loses nothing."""
    rng = np.random.default_rng(7)
    src = nic_named(rails, "gpu5", 4)
    dst = nic_named(rails, "gpu6", 4)
    gateway = bytes.fromhex(resolve(rails.node("gpu5"), src.port.name, src.gateway).replace(":", ""))
    own = bytes.fromhex(src.port.mac.replace(":", ""))
    base = bytearray(own_frame(src, dst, own, gateway))
    port = Port(rails.node("gpu5").netns)
    with inside(rails.node("gpu5").netns):
        port.socket.bind((src.port.name, 0))
    sent = 0

    def meanwhile() -> None:
        nonlocal sent
        end = time.monotonic() + 2
        while time.monotonic() < end:
            frame = bytearray(base)
            # From the BTH on anything goes: opcodes, queue pairs, PSNs, lengths.
            for at in rng.integers(42, len(frame), rng.integers(1, 8)):
                frame[at] = rng.integers(0, 256)
            port.socket.send(bytes(frame[: rng.integers(46, len(frame) + 1)] if rng.random() < 0.2 else frame))
            sent += 1

    text = "pattern: point-to-point\npairs: [[gpu7, gpu6]]\nrails: [1]\nduration: 2s\n"
    with Capture(rails.node("gpu5").netns, whole=True) as answers:
        result = go(rails, text, meanwhile)
        time.sleep(0.2)
        heard = [p for frame, _ in answers.frames() if (p := read(frame))]
    port.close()
    assert sent > 5000
    assert heard == [], "nothing that is not for a queue pair is answered"
    assert result.foreign > 0.5 * sent
    assert result.ok
    assert result.jobs[0].failed_messages == 0


def own_frame(src: Any, dst: Any, own: bytes, gateway: bytes) -> bytes:
    from fabtest.roce.frames import Flow, finish, header

    flow = Flow(src.address, dst.address, 0xD000, 0x55)
    return finish(header(flow, own, gateway, 4, 64, ack=True), bytes(64))


def test_a_plane_lost_moves_queue_pairs_to_the_other() -> None:
    with running("dual-plane", "t-planes") as lab:
        server = lab.fabric.servers[0]
        port = server.nics[0].ports[0]

        def meanwhile() -> None:
            time.sleep(0.5)
            lab.fail_link(f"{server.name}:{port.name}", port.leaf.node, Fault.SILENT)

        text = f"pattern: outcast\nsender: {server.name}\nduration: 2500ms\nqps: 2\ntransport: {{timeout: 50ms}}\n"
        result = go(lab, text, meanwhile)
        assert result.ok
        assert sum(q.migrations for q in result.qps) >= 1
        assert {q.migrations for q in result.qps if q.src == f"{server.name}:2"} <= {0}, (
            "other NICs stay where they are"
        )
        assert 90 < result.outage_ms < 1000


def test_ipv6_and_reads() -> None:
    topology = "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\naddressing: {families: dual}\n"
    with running(topology, "t-six") as lab:
        for family in (4, 6):
            for text in ("pattern: storage-read\nsize: 2MB\n", "pattern: all-to-all\nsize: 400KB\nverb: send\n"):
                compiled = compile_for(load_workload_text(text, "t.yml"), lab, family)
                result = run_workload(lab, compiled)
                assert result.ok
                assert result.foreign == 0
                assert all(q.rx_bytes == q.tx_bytes > 0 for q in result.qps)


# ------------------------------------------------------------------------------------------------ entropy


PERMUTATION = "pattern: permutation\nqps: 8\nsize: 64KB\nmessage_size: 64KB\n"
CLOS = "kind: clos\nleaves: 32\nspines: 8\nservers_per_leaf: 4\n"


@pytest.fixture(scope="module")
def clos() -> Iterator[Lab]:
    with running("clos-32x8", "t-clos") as lab:
        yield lab


def judged(lab: Lab, text: str) -> Any:
    compiled = compile_for(load_workload_text(text, "t.yml"), lab)
    assert len(compiled.pairs) == 1024
    measured = measure_entropy(lab, compiled)
    return workload_spread(lab, compiled, measured), measured


def test_a_permutation_of_1024_flows_spreads(clos: Lab) -> None:
    verdict, measured = judged(clos, PERMUTATION)
    assert verdict.outcome == "pass", verdict.sentence
    assert sum(c.flows for c in measured.choices if c.tier == "leaf") == 1024, "every flow leaves its leaf"
    assert all(abs(c.expected_max - 1.76) < 0.03 for c in measured.choices)
    assert "32 QPs over 8 uplinks" in verdict.sentence


def test_one_source_port_does_not(clos: Lab) -> None:
    verdict, _ = judged(clos, PERMUTATION + "transport: {source_port: fixed}\n")
    assert verdict.outcome == "fail"
    assert "1024 queue pairs have 128 different source ports and addresses" in verdict.sentence


def test_addresses_alone_do_not() -> None:
    with running(CLOS + "hash: {fields: [SRC_IP, DST_IP, IP_PROTOCOL]}\n", "t-l3") as lab:
        verdict, _ = judged(lab, PERMUTATION)
        assert verdict.outcome == "fail"
        assert "switches hash addresses only" in verdict.sentence


def test_hashing_the_queue_pair_does() -> None:
    """E-ECMP: with one UDP source port and many queue pairs the spread goes from one path to all."""
    with running(CLOS + "emulation: {qp_hash: true}\n", "t-qp") as lab:
        verdict, measured = judged(lab, PERMUTATION + "transport: {source_port: fixed}\n")
        assert verdict.outcome == "pass", verdict.sentence
        assert measured.source_ports == 128
        result = go(lab, PERMUTATION + "transport: {source_port: fixed}\n")
        assert result.ok


def test_equal_seeds_polarise_and_are_named() -> None:
    text = (
        "kind: clos\npods: 2\nleaves: 4\nspines: 2\nsuperspines: 4\nservers_per_leaf: 8\n"
        "hash: {seed: 42}\n"
    )  # fmt: skip
    with running(text, "t-seed") as lab:
        compiled = compile_for(load_workload_text("pattern: permutation\nqps: 16\nsize: 64KB\n", "t.yml"), lab)
        verdict = workload_spread(lab, compiled)
        assert verdict.outcome == "fail"
        assert "same seed" in verdict.sentence
        assert "spine" in verdict.sentence


# ------------------------------------------------------------------------------------------------ the command line


def test_run_from_the_command_line(small: Lab, tmp_path: Path) -> None:
    page, table, captures = tmp_path / "x.html", tmp_path / "x.csv", tmp_path / "pcaps"
    done = fabtest(
        "traffic-run", "permutation", "--lab", "t-small", "--check", "--html", str(page), "--csv", str(table), "--pcap", str(captures),
        "--parquet", str(tmp_path / "x.parquet"), "--json",
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["ok"]
    assert result["check"]["check"] == "ecmp.workload"
    assert result["check"]["outcome"] == "pass"
    text = page.read_text()
    assert text.count("<svg") >= 3
    assert "permutation on t-small" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "https://matplotlib.org", ""
    ).replace("http://creativecommons.org", "")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 32
    assert all(row["message_fail"] == "0" for row in rows)
    files = sorted(captures.glob("*.pcap"))
    assert len(files) == 4
    decoded = fabtest("traffic-decode", str(files[0]), "--packets", "3")
    assert "0 ICRC errors" in decoded.stdout
    assert "RC_RDMA_WRITE" in decoded.stdout
    both = json.loads(fabtest("traffic-decode", str(files[0]), "--json").stdout)
    assert {q["src"] for q in both["qps"]} >= {"10.0.1.1"}, "what it sends is in the capture as well as what it gets"


def test_mistakes_are_told(small: Lab, tmp_path: Path) -> None:
    assert "did you mean permutation?" in fabtest("traffic-run", "permutations", ok=False).stderr
    bad = tmp_path / "bad.yml"
    bad.write_text("pattern: incast\nsize: 4 apples\n")
    done = fabtest("traffic-run", str(bad), ok=False)
    assert done.returncode == 2
    assert "bad.yml:2:7: jobs[0].size" in done.stderr
    assert "no such folder" in fabtest("traffic-run", "incast", "--html", "/nowhere/x.html", ok=False).stderr
    assert "is not a time" in fabtest("traffic-run", "incast", "--duration", "soon", ok=False).stderr
    junk = tmp_path / "junk.pcap"
    junk.write_text("this is no capture at all, not even a little")
    done = fabtest("traffic-decode", str(junk), ok=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_killed_run_leaves_no_engine(small: Lab) -> None:
    child = subprocess.Popen(
        [*FABTEST, "traffic-run", "point-to-point", "--lab", "t-small", "--duration", "60s"], stderr=subprocess.DEVNULL
    )
    workers: list[int] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(workers) < 2:
        workers = _children(child.pid)
        time.sleep(0.05)
    assert workers
    time.sleep(0.5)
    child.send_signal(signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(_runs(pid) for pid in workers):
        time.sleep(0.05)
    assert not [pid for pid in workers if _runs(pid)]
    # And the servers' kernels see RoCE again: nothing is left on their ports.
    shown = small.node("gpu1").exec(["cat", "/proc/net/ptype"]).stdout
    assert "tpacket" not in shown


def _runs(pid: int) -> bool:
    """Whether a process has not ended: a dead one nobody waits for (the first process of a container need not) keeps
    its number only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(f"/proc/{entry.name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def test_composed_frames_of_every_kind_are_right(small: Lab) -> None:
    """Templates patched in bulk, captured at the other end: every ICRC is right, whatever stands in the words."""
    from fabtest.roce.frames import Flow, header
    from fabtest.roce.opcodes import EXTENSION_BYTES, NAMES

    src, dst = nic_named(small, "gpu1", 4), nic_named(small, "gpu2", 4)
    gateway = bytes.fromhex(resolve(small.node("gpu1"), src.port.name, src.gateway).replace(":", ""))
    own = bytes.fromhex(src.port.mac.replace(":", ""))
    composer = Composer(4)
    port = Port(small.node("gpu1").netns)
    number = composer.add_port(port)
    with inside(small.node("gpu1").netns):
        import socket

        index = socket.if_nametoindex(src.port.name)
    rng = np.random.default_rng(2)
    wanted = []
    templates, words, seconds = [], [], []
    for opcode in sorted(NAMES):
        for length in (0, 3, 1024):
            size = EXTENSION_BYTES[opcode]
            head = header(Flow(src.address, dst.address, 0xC123, 7), own, gateway, opcode, length, extended=bytes(size))
            template = composer.template(head, length, number, index)
            for _ in range(3):
                word, second = (
                    int(rng.integers(0, 1 << 24)) | int(rng.integers(0, 2)) << 31,
                    int(rng.integers(0, 1 << 32)) if size else 0,
                )
                templates.append(template)
                words.append(word)
                seconds.append(second)
                wanted.append((opcode, word & 0xFFFFFF, bool(word >> 31)))
    with Capture(small.node("gpu2").netns, whole=True) as capture:
        composer.send(templates, words, seconds)
        time.sleep(0.3)
        got = [p for frame, _ in capture.frames() if (p := read(frame))]
    port.close()
    assert [(p.opcode, p.psn, p.ack_request) for p in got] == wanted
    assert all(p.icrc_ok for p in got)
