"""Workload files, patterns, and what they compile to."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fabtest.errors import UsageError, WorkloadError
from fabtest.model import Fabric
from fabtest.roce.decode import Decoded, decode, frames_of
from fabtest.roce.transport import Verb
from fabtest.topology.load import load_fabric, topology_path
from fabtest.workload.compile import Compiled, compile_workload, ranks_of, shorten
from fabtest.workload.load import load_workload, load_workload_text, shipped_workloads
from fabtest.workload.otg import otg_config
from fabtest.workload.patterns import traffic_of
from fabtest.workload.results import times_of
from fabtest.workload.schedule import Schedule, write_pcap
from fabtest.workload.schema import PATTERNS, TransportOptions, WorkloadSpec, json_schema
from fabtest.workload.units import parse_rate, parse_size, parse_time


@pytest.fixture(scope="module")
def rail() -> Fabric:
    return load_fabric(topology_path("rail-4x4"))


@pytest.fixture(scope="module")
def clos() -> Fabric:
    return load_fabric(topology_path("clos-32x8"))


def spec(text: str) -> WorkloadSpec:
    return load_workload_text(text, "t.yml")


def compiled(text: str, fabric: Fabric) -> Compiled:
    return compile_workload(spec(text), fabric)


# ------------------------------------------------------------------------------------------------ files


def test_every_pattern_is_shipped() -> None:
    shipped = {job.pattern for path in shipped_workloads().values() for job in load_workload(path).jobs}
    assert shipped == set(PATTERNS)


def test_every_fault_is_told_at_once_with_its_place() -> None:
    text = """\
seed: -1
transport: {mtu: 1500, retry: 3}
jobs:
  - pattern: ring-alreduce
  - pattern: incast
"""
    with pytest.raises(WorkloadError) as caught:
        spec(text)
    assert "t.yml:4:14: jobs[0].pattern: 'ring-alreduce' is not a pattern (did you mean ring-allreduce?)" in str(
        caught.value
    )
    with pytest.raises(WorkloadError) as caught:
        spec(text.replace("ring-alreduce", "ring-allreduce\n    size: 4 apples\n    qp: 3\n    rate: 3Gbps"))
    message = str(caught.value)
    for part in (
        "t.yml:1:7: seed:", "t.yml:2:18: transport.mtu:", "t.yml:2:24: transport.retry: unknown key (did you mean retries?)",
        "t.yml:5:11: jobs[0].size: '4 apples' is not a size", "t.yml:6:5: jobs[0].qp: unknown key (did you mean qps?)",
        "t.yml:7:5: jobs[0].rate: unknown key",
    ):  # fmt: skip
        assert part in message, message


def test_a_single_job_needs_no_list() -> None:
    short = spec("pattern: incast\nsize: 1MB\nqps: 2\nseed: 9\n")
    assert short.seed == 9
    assert short.jobs[0].pattern == "incast"
    with pytest.raises(WorkloadError, match=r"t.yml:3:1: jobs\[0\].quality: unknown key"):
        spec("pattern: incast\nsize: 1MB\nquality: 3\n")


def test_unreliable_streams_need_a_rate() -> None:
    with pytest.raises(WorkloadError, match="give it a `rate:`"):
        spec("pattern: incast\nservice: uc\n")
    assert spec("pattern: incast\nservice: uc\nrate: 10Mbps\n").jobs


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["incast", "4MB", "all"]),
        lambda c: (
            st.lists(c, max_size=3)
            | st.dictionaries(
                st.sampled_from(["jobs", "pattern", "size", "transport", "mtu", "servers", "seed", "pairs", "x"]),
                c,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_no_file_gives_a_traceback(data: Any) -> None:
    try:
        spec(yaml.safe_dump(data))
    except WorkloadError as error:
        assert "t.yml" in str(error)


def test_units() -> None:
    assert [parse_size(x) for x in ("64KB", "1MiB", "4096", 7)] == [64000, 1 << 20, 4096, 7]
    assert [parse_time(x) for x in ("5us", "1.5ms", "2s")] == [5000, 1_500_000, 2 * 10**9]
    assert [parse_rate(x, 1000) for x in ("2Gbps", "10kpps")] == [2e9, 80e6]
    for bad in ("", "4", "fast", "-1s"):
        with pytest.raises(ValueError, match="is not a"):
            parse_time(bad)


def test_schema_is_one_and_the_docs_name_every_key() -> None:
    import jsonschema

    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for path in shipped_workloads().values():
        data = yaml.safe_load(path.read_text())
        jsonschema.validate(data, schema)
    mistakes: list[dict[str, Any]] = [{"pattern": "incast", "sizes": 3}, {"jobs": []}, {"seed": 1}]
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    docs = (Path(__file__).parents[2] / "docs" / "traffic.md").read_text()
    models: list[Any] = [*PATTERNS.values(), WorkloadSpec, TransportOptions]
    missing = {key for model in models for key in model.model_fields if f"`{key}`" not in docs}
    assert missing <= {"pattern"}


# ------------------------------------------------------------------------------------------------ patterns


@pytest.mark.parametrize("name", sorted(shipped_workloads()))
@pytest.mark.parametrize("topology", ["rail-4x4", "clos-2x2", "rail-only", "dual-plane"])
def test_messages_wait_for_what_their_server_sees(name: str, topology: str) -> None:
    """A message waits only for messages that reach, or leave, its own server, and there is no circle."""
    fabric = load_fabric(topology_path(topology))
    plan = compile_workload(load_workload(shipped_workloads()[name]), fabric)
    done: set[int] = set()
    ends: dict[int, set[str]] = {}
    for m in plan.messages:
        assert m.number == len(ends), "numbers are in order"
        pair = plan.pairs[m.pair] if m.pair >= 0 else None
        ends[m.number] = {m.server, pair.dst[0] if pair else m.server}
        for n in m.after:
            assert n in done, "only for earlier ones"
            assert m.server in ends[n]
        done.add(m.number)
    again = compile_workload(load_workload(shipped_workloads()[name]), fabric)
    assert again.pairs == plan.pairs
    assert again.messages == plan.messages
    assert again.streams == plan.streams
    qpns = Counter((e.server, e.qpn) for p in plan.pairs for e in (p.requester, p.responder))
    assert all(count == 1 for count in qpns.values())


def test_ring_counts(rail: Fabric) -> None:
    """2(n-1) steps of size/n per rank; with a ring per rail nothing crosses rails."""
    text = "pattern: ring-allreduce\nscope: {}\nsize: 16MB\niterations: 3\n"
    per_rail = compiled(text.format("per-rail"), rail)
    assert len(per_rail.messages) == 3 * 4 * 4 * 2 * 3 * 4  # iterations, rails, ranks, steps 2(n-1), messages of 1 MiB
    assert {m.length for m in per_rail.messages} == {1 << 20, 4_000_000 - 3 * (1 << 20)}
    assert per_rail.jobs[0].bus_factor == 2 * 3 / 4
    assert all(p.src[1] == p.dst[1] for p in per_rail.pairs)
    flat = compiled(text.format("flat"), rail)
    assert flat.jobs[0].bus_factor == 2 * 15 / 16
    crossing = [m for m in flat.messages if m.pair >= 0]
    assert len(crossing) * 4 == len(flat.messages), "three of four hops stay in a server"


def test_butterfly_and_tree(rail: Fabric) -> None:
    b = compiled("pattern: butterfly-allreduce\nscope: per-rail\nsize: 4096\nmessage_size: 1MB\n", rail)
    assert Counter(m.length for m in b.messages) == {2048: 2 * 16, 1024: 2 * 16}
    with pytest.raises(UsageError, match="power of two"):
        compiled("pattern: butterfly-allreduce\nscope: per-rail\nfirst: 3\n", rail)
    t = compiled("pattern: tree-allreduce\nscope: per-rail\nsize: 1000\n", rail)
    assert len(t.messages) == 4 * 2 * 3
    assert len(compiled("pattern: all-to-all\nsize: 1600\n", rail).messages) == 16 * 15


def test_rail_only_changes_rails_inside_the_server() -> None:
    fabric = load_fabric(topology_path("rail-only"))
    plan = compiled("pattern: all-to-all\n", fabric)
    assert all(p.src[1] == p.dst[1] for p in plan.pairs)
    spines = compiled("pattern: all-to-all\n", load_fabric(topology_path("rail-4x4")))
    assert any(p.src[1] != p.dst[1] for p in spines.pairs)


def test_permutation_is_one_to_one_and_leaves_the_leaf(clos: Fabric) -> None:
    plan = compiled("pattern: permutation\nqps: 8\n", clos)
    assert len(plan.pairs) == 1024
    pairs = {(p.src, p.dst) for p in plan.pairs}
    assert len(pairs) == 128
    assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 128
    leaf = {s.name: s.ports[0].leaf.node for s in clos.servers}
    assert all(leaf[a[0]] != leaf[b[0]] for a, b in pairs)
    assert len({p.requester.src_port for p in plan.pairs}) == 1024
    other = compiled("pattern: permutation\nqps: 8\nseed: 2\n", clos)
    assert {(p.src, p.dst) for p in other.pairs} != pairs


def test_dual_plane_pairs_have_a_path_per_plane() -> None:
    plan = compiled("pattern: permutation\n", load_fabric(topology_path("dual-plane")))
    for pair in plan.pairs:
        assert len(pair.requester.paths) == 2
        for there, back in zip(pair.requester.paths, pair.responder.paths, strict=True):
            assert (there.src, there.dst) == (back.dst, back.src)


def test_inference_is_requests_and_responses(rail: Fabric) -> None:
    job = spec("pattern: inference\nrequests: 10\narrival: 1ms\n").jobs[0]
    made = traffic_of(job, ranks_of(rail, job), seed=3)
    asked = [s for s in made.sends if s.length == 4 << 10]
    assert len(asked) == 10 * 4 * 12
    assert {s.after for s in made.sends if s.length == 64 << 10} == {(s.number,) for s in asked}
    mean = max(s.at_ns for s in asked) / 10
    assert 0.3e6 < mean < 4e6


def test_storage_reads_pull(rail: Fabric) -> None:
    plan = compiled("pattern: storage-read\nstorage: [gpu2]\n", rail)
    assert {s.verb for s in plan.streams} == {Verb.READ}
    assert {p.dst[0] for p in plan.pairs} == {"gpu2"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("pattern: incast\nto: gpu9\n", "no such server takes part"),
        ("pattern: incast\nservers: [gpu1, gpu77]\n", "no server gpu77"),
        ("pattern: incast\nservers: [gpu1]\n", "two servers"),
        ("pattern: incast\nrails: [9]\n", "no NIC on rail 9"),
        ("pattern: storage-read\nstorage: [gpu1, gpu2, gpu3, gpu4]\n", "nobody is left"),
        ("pattern: parameter-server\nparameter_servers: 4\n", "needs a worker"),
        ("pattern: all-to-all\nsize: 100GB\nmessage_size: 1KB\nscope: per-rail\n", "more than 2000000 messages"),
    ],
)
def test_what_does_not_fit_is_said(rail: Fabric, text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        compiled(text, rail)


def test_packets_must_fit_the_links(rail: Fabric) -> None:
    from dataclasses import replace

    with pytest.raises(UsageError, match="MTU is 1500"):
        compile_workload(spec("pattern: incast\n"), replace(rail, mtu=1500))


# ------------------------------------------------------------------------------------------------ without a lab


@pytest.mark.parametrize("name", sorted(shipped_workloads()))
def test_schedules_are_whole_and_the_same_again(rail: Fabric, name: str, tmp_path: Path) -> None:
    plan = compile_workload(load_workload(shipped_workloads()[name]), rail)
    first, second = io.BytesIO(), io.BytesIO()
    write_pcap(Schedule(plan, rail, 4000), first)
    write_pcap(Schedule(compile_workload(load_workload(shipped_workloads()[name]), rail), rail, 4000), second)
    assert first.getvalue() == second.getvalue()
    file = tmp_path / "x.pcap"
    file.write_bytes(first.getvalue())
    decoded = Decoded()
    lines = list(decode(frames_of(file), decoded))
    assert decoded.frames == decoded.roce == len(lines) > 100
    assert (decoded.bad_icrc, decoded.cut, decoded.ce) == (0, 0, 0)
    assert sum(q.gaps + q.retransmissions for q in decoded.qps.values()) == 0
    assert [line.seconds for line in lines] == sorted(line.seconds for line in lines)


def test_a_schedule_ends_when_all_is_done(rail: Fabric) -> None:
    plan = compiled("pattern: ring-allreduce\nsize: 64KB\nmessage_size: 4KB\n", rail)
    schedule = Schedule(plan, rail)
    packets = sum(1 for _ in schedule)
    assert not schedule.truncated
    # 16 KB a step and rank in messages of 4,000 bytes, a packet and its acknowledgement each.
    assert packets == 2 * len(plan.messages)


def test_tshark_reads_our_captures(rail: Fabric, tmp_path: Path) -> None:
    import shutil
    import subprocess

    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark is not installed")
    file = tmp_path / "x.pcap"
    plan = compiled("pattern: ring-allreduce\nsize: 64KB\nmessage_size: 20KB\ntransport: {mtu: 1024}\n", rail)
    with file.open("wb") as out:
        count, _ = write_pcap(Schedule(plan, rail), out)
    fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.bth.a",
        "_ws.malformed",
    ]
    argv = [tshark, "-r", str(file), "-T", "fields", *(x for f in fields for x in ("-e", f))]
    rows = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(rows) == count
    ours = list(decode(frames_of(file), Decoded()))
    for row, line in zip(rows, ours, strict=True):
        opcode, qp, psn, ask, malformed = row.split("\t")
        assert not malformed
        assert (int(qp, 16), int(psn), ask in ("1", "True")) == (line.dqpn, line.psn, line.ack_request)
        assert (
            int(opcode)
            == {
                "RC_RDMA_WRITE_FIRST": 6,
                "RC_RDMA_WRITE_MIDDLE": 7,
                "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE": 9,
                "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE": 11,
                "RC_ACKNOWLEDGE": 17,
            }[line.opcode]
        )


def test_otg_is_what_snappi_takes(rail: Fabric) -> None:
    snappi = pytest.importorskip("snappi")
    plan = compiled("jobs:\n- {pattern: ring-allreduce, size: 4MB}\n- {pattern: incast, message_size: 200KB}\n", rail)
    config = otg_config(plan, rail)
    loaded = snappi.Api().config() if hasattr(snappi, "Api") else snappi.api().config()
    loaded.deserialize(json.dumps(config))
    again = json.loads(loaded.serialize())
    flows = [
        f
        for t in again["stateful_flows"]["rocev2"][0]["tx_ports"]
        for f in t["transmit_type"]["target_line_rate"]["flows"]
    ]
    assert len(flows) == len(plan.pairs)
    names = {
        q["qp_name"]
        for d in config["devices"]
        for i in d["rocev2"]["ipv4_interfaces"]
        for p in i["peers"]
        for q in p["qps"]
    }
    assert {f["tx_endpoint"] for f in flows} | {f["rx_endpoint"] for f in flows} == names


def test_unreliable_streams_are_packets(rail: Fabric) -> None:
    text = "pattern: point-to-point\nrails: [1]\nservice: uc\nrate: 10kpps\n"
    by_time = compiled(text + "duration: 10ms\n", rail)
    assert by_time.streams[0].rate == 10_000 * 4096 * 8
    assert sum(1 for _ in Schedule(by_time, rail)) == 100
    by_size = compiled(text + "size: 409600\n", rail)
    assert sum(1 for _ in Schedule(by_size, rail)) == 100
    for wrong, what in (
        ("rate: 0Gbps", "no rate to send at"),
        ("rate: 1Gbps\nservers: [gpu1, gpu1]", "stands there twice"),
    ):
        with pytest.raises(WorkloadError, match=what):
            spec(f"pattern: incast\nservice: uc\n{wrong}\n")
    with pytest.raises(WorkloadError, match="needs the reliable service"):
        spec("pattern: storage-read\nservice: uc\nrate: 1Gbps\n")


def test_small_streams_and_other_durations(rail: Fabric) -> None:
    small = compiled("pattern: point-to-point\nrails: [1]\nsize: 64KB\n", rail)
    assert small.streams[0].length == 64_000
    longer = shorten(spec("pattern: incast\nsize: 1MB\nlimit: 5s\n"), 20 * 10**9)
    assert longer.limit >= 30 * 10**9
    plan = compile_workload(longer, rail)
    assert {(s.total, s.until_ns) for s in plan.streams} == {(0, 20 * 10**9)}
    with pytest.raises(UsageError, match="less than a millisecond"):
        shorten(longer, 0)
    with pytest.raises(UsageError, match="nothing of this workload"):
        compiled("pattern: point-to-point\npairs: [[gpu1, gpu1]]\n", rail)
    with pytest.raises(UsageError, match="no NIC on rail 99"):
        compiled("pattern: incast\nrails: [1, 99]\n", rail)


def test_captures_that_are_not_whole_or_not_ethernet(rail: Fabric, tmp_path: Path) -> None:
    from fabtest.errors import FileProblem

    whole = io.BytesIO()
    write_pcap(Schedule(compiled("pattern: incast\n", rail), rail, 10), whole)
    file = tmp_path / "x.pcap"
    file.write_bytes(whole.getvalue()[:-100])
    with pytest.raises(FileProblem, match="breaks off"):
        list(decode(frames_of(file), Decoded()))
    cooked = bytearray(whole.getvalue())
    cooked[20] = 113
    file.write_bytes(cooked)
    with pytest.raises(FileProblem, match="link type 113"):
        list(decode(frames_of(file), Decoded()))


def test_a_capture_goes_where_it_is_told(tmp_path: Path) -> None:
    import subprocess
    import sys

    fabtest = str(Path(sys.executable).with_name("fabtest"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    argv = [fabtest, "traffic-pcap", "incast", "--limit", "5", "--out"]
    with subprocess.Popen([*argv, str(pipe)], stderr=subprocess.DEVNULL) as child:
        data = pipe.read_bytes()
        assert child.wait() == 0
    assert data[:4] == bytes.fromhex("4d3cb2a1")
    assert pipe.is_fifo()
    for wrong in ([*argv, str(tmp_path)], argv[:-1]):
        done = subprocess.run(wrong, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_times() -> None:
    assert times_of([]) is None
    times = times_of([1_000_000, 2_000_000, 3_000_000])
    assert times is not None
    assert (times.min, times.avg, times.p50, times.max) == (1, 2, 2, 3)
