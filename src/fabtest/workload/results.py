"""What came of a run: per queue pair, per job, per port, in the Open Traffic Generator's words.

Bandwidths are bit/s of payload. ``algbw`` and ``busbw`` follow nccl-tests (PERFORMANCE.md): size over time, and that
times the factor of the collective. The time lost to the slowest flow is how much longer the chain of a collective's
steps took than if every message had been as quick as the median of its step.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from fabtest.roce.engine import QpResult, WorkerResult
from fabtest.workload.compile import Compiled


@dataclass(frozen=True, slots=True)
class PortLoad:
    """What a switch port sent during the run."""

    switch: str
    port: str
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TcpResult:
    """iperf3's verdict."""

    client: str
    server: str
    bits_per_second: float
    retransmits: int
    error: str


@dataclass(frozen=True, slots=True)
class Times:
    """Of many durations, in milliseconds."""

    count: int
    min: float
    avg: float
    p50: float
    p99: float
    max: float


def times_of(values_ns: Any) -> Times | None:
    """None if there are none."""
    data = np.asarray(values_ns, float) / 1e6
    if not len(data):
        return None
    p50, p99 = np.percentile(data, (50, 99))
    return Times(len(data), *(round(float(v), 4) for v in (data.min(), data.mean(), p50, p99, data.max())))


@dataclass(frozen=True, slots=True)
class QpRow:
    """A queue pair, from its requester (data, retransmissions) and its responder (what arrived). Names are those of the
    Open Traffic Generator's per-QP metrics, where it has one."""

    pair: int
    job: int
    src: str
    dst: str
    rail: int
    src_qp: int
    dest_qp: int
    udp_source_port: int
    data_frames_tx: int
    data_frames_rx: int
    tx_bytes: int
    rx_bytes: int
    ack_tx: int
    ack_rx: int
    nak_tx: int
    nak_rx: int
    cnp_tx: int
    cnp_rx: int
    ecn_ce_rx: int
    data_frames_retransmitted: int
    frame_sequence_error: int
    duplicates: int
    timeouts: int
    message_complete_rx: int
    message_fail: int
    lost: int
    reordered: int
    fct: Times | None
    rtt: Times | None
    latency: Times | None
    outage_ms: float
    migrations: int


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job. ``seconds`` from the start to the last completion; bandwidths are 0 where they mean nothing."""

    pattern: str
    ranks: int
    groups: int
    iterations: int
    messages: int
    failed_messages: int
    bytes: int
    seconds: float
    iteration_seconds: tuple[float, ...]
    algbw: float
    busbw: float
    goodput: float
    fct: Times | None
    lost_to_slowest_ms: float
    slowest: str


@dataclass
class RunResult:
    """All of it."""

    workload: str
    lab: str
    seconds: float
    jobs: list[JobRow]
    qps: list[QpRow]
    ports: list[PortLoad]
    tcp: list[TcpResult]
    failures: list[str]
    timeline: list[tuple[float, int, float]]
    bin_seconds: float
    foreign: int
    ring_drops: int
    never_started: int
    nvlink_bytes: int
    starved_ms: float
    began: float = 0.0
    fct_ns: dict[int, list[int]] = field(default_factory=dict)
    icrc_checked: int = 0
    icrc_wrong: int = 0
    #: The workload's time limit ended the run.
    cut: bool = False
    ecmp: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failed_messages(self) -> int:
        """Messages that were not delivered."""
        return sum(j.failed_messages for j in self.jobs)

    @property
    def retransmits(self) -> int:
        """Packets sent again."""
        return sum(q.data_frames_retransmitted for q in self.qps)

    @property
    def lost(self) -> int:
        """Packets of unreliable streams that never arrived."""
        return sum(q.lost for q in self.qps)

    @property
    def outage_ms(self) -> float:
        """The longest time any queue pair had packets on their way and nothing acknowledged."""
        return max((q.outage_ms for q in self.qps), default=0.0)

    @property
    def ok(self) -> bool:
        """Whether everything arrived."""
        return not (self.failed_messages or self.failures or self.lost or any(t.error for t in self.tcp) or self.cut)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "workload": self.workload, "lab": self.lab, "seconds": round(self.seconds, 4), "ok": self.ok,
            "failed_messages": self.failed_messages, "retransmits": self.retransmits, "lost": self.lost,
            "outage_ms": round(self.outage_ms, 3), "failures": self.failures,
            "jobs": [asdict(j) for j in self.jobs], "qps": [asdict(q) for q in self.qps],
            "ports": [asdict(p) for p in self.ports], "tcp": [asdict(t) for t in self.tcp], "ecmp": self.ecmp,
            "timeline": {"bin_seconds": self.bin_seconds, "rows": [list(row) for row in self.timeline]},
            "foreign_packets": self.foreign, "receive_overruns": self.ring_drops,
            "messages_never_started": self.never_started, "nvlink_bytes": self.nvlink_bytes,
            "cut_by_limit": self.cut, "icrc_checked": self.icrc_checked, "icrc_wrong": self.icrc_wrong,
            "engine_longest_turn_ms": round(self.starved_ms, 3),
        }  # fmt: skip

    def flat_qps(self) -> list[dict[str, Any]]:
        """Queue pairs as flat rows, for CSV and Parquet."""
        rows = []
        for qp in self.qps:
            row = asdict(qp)
            for name in ("fct", "rtt", "latency"):
                times = row.pop(name) or {}
                for key in ("min", "avg", "p50", "p99", "max"):
                    row[f"{name}_{key}_ms"] = times.get(key)
            rows.append(row)
        return rows

    def as_csv(self) -> str:
        """A line per queue pair."""
        rows = self.flat_qps()
        out = io.StringIO()
        writer = csv.DictWriter(out, list(rows[0]) if rows else ["pair"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()


def summarise(
    compiled: Compiled, results: list[WorkerResult], start_ns: int, ports: list[PortLoad], tcp: list[TcpResult],
    began: float,
) -> RunResult:  # fmt: skip
    """Put together what the engine processes counted."""
    ends: dict[tuple[int, str], QpResult] = {(q.pair, q.server): q for r in results for q in r.qps}
    records: dict[int, tuple[int, int]] = {}
    for r in results:
        records |= r.records
    qps = [row for pair in compiled.pairs if (row := _qp_row(compiled, pair.number, ends)) is not None]
    fcts: dict[int, list[int]] = defaultdict(list)
    for pair in compiled.pairs:
        end = ends.get((pair.number, pair.src[0]))
        if end is not None:
            fcts[compiled.job_of_pair[pair.number]].extend(end.fcts)
    jobs = []
    for index in range(len(compiled.jobs)):
        jobs.append(_job_row(compiled, index, records, start_ns, qps, fcts, results))
    bins: dict[tuple[int, int], int] = defaultdict(int)
    bin_ns = 100_000_000
    for r in results:
        for node in r.bins.values():
            for key, count in node.items():
                bins[key] += count
    finished = max((done for _, done in records.values()), default=start_ns)
    finished = max(finished, max((start_ns + r.done_ns for r in results), default=start_ns))
    return RunResult(
        compiled.spec.name, "", (finished - start_ns) / 1e9, jobs, qps, ports, tcp,
        [f for r in results for f in r.failures],
        [(slot * bin_ns / 1e9, rail, count * 8e9 / bin_ns) for (slot, rail), count in sorted(bins.items())],
        bin_ns / 1e9, sum(r.foreign for r in results), sum(r.ring_drops for r in results),
        sum(r.never_started for r in results), sum(r.local_bytes for r in results),
        max((r.starved_ns for r in results), default=0) / 1e6, began, dict(fcts),
        sum(r.icrc_checked for r in results), sum(r.icrc_wrong for r in results),
        any(r.cut for r in results),
    )  # fmt: skip


def _qp_row(compiled: Compiled, number: int, ends: dict[tuple[int, str], QpResult]) -> QpRow | None:
    pair = compiled.pairs[number]
    near, far = ends.get((number, pair.src[0])), ends.get((number, pair.dst[0]))
    if near is None or far is None:
        return None
    a, b = near.counters, far.counters
    # A READ's data comes back: its responder sends, its requester receives.
    flight = far.flight
    lost = max(0, a["data_tx"] - flight["received"]) if flight else 0
    # Each packet of an unreliable stream is a message of its own.
    arrived = flight["received"] if flight else a["messages_success"]
    outage = near.longest_gap_ns if not flight else flight["longest_gap_ns"]
    return QpRow(
        number, compiled.job_of_pair[number], f"{pair.src[0]}:{pair.src[1]}", f"{pair.dst[0]}:{pair.dst[1]}", pair.rail,
        pair.requester.qpn, pair.requester.peer_qpn, pair.requester.src_port, a["data_tx"], b["data_rx"],
        a["bytes_tx"] + b["bytes_tx"], a["bytes_rx"] + b["bytes_rx"], b["ack_tx"], a["ack_rx"], b["nak_tx"],
        a["nak_rx"], b["cnp_tx"] + a["cnp_tx"], a["cnp_rx"] + b["cnp_rx"], b["ecn_ce_rx"] + a["ecn_ce_rx"],
        a["retransmits"], b["sequence_errors"] + a["sequence_errors"],
        b["duplicates"] + a["duplicates"], a["timeouts"], arrived, a["messages_failed"] + lost, lost,
        flight["reordered"] if flight else 0, times_of(near.fcts) if len(near.fcts) else None, times_of(near.rtts),
        times_of([came - near.left[psn] for psn, came in far.came.items() if psn in near.left]),
        round(outage / 1e6, 3), a["migrations"],
    )  # fmt: skip


def _job_row(
    compiled: Compiled, index: int, records: dict[int, tuple[int, int]], start_ns: int, qps: list[QpRow],
    fcts: dict[int, list[int]], results: list[WorkerResult],
) -> JobRow:  # fmt: skip
    job = compiled.jobs[index]
    mine = [m for m in compiled.messages if compiled.job_of_message[m.number] == index and m.pair >= 0]
    done = [(m, records[m.number]) for m in mine if m.number in records]
    own = [q for q in qps if q.job == index]

    def own_pair(pair: int) -> bool:
        return compiled.job_of_pair[pair] == index

    arrivals = {number: when for r in results for number, when in r.arrivals.items()}
    durations = [end - begin for _, (begin, end) in done]
    fcts[index] = [*fcts.get(index, []), *durations]
    iterations: dict[int, int] = {}
    spent: dict[int, int] = {}
    for m, (begin, acknowledged) in done:
        iterations[m.iteration] = max(iterations.get(m.iteration, 0), acknowledged)
        spent[m.number] = arrivals.get(m.number, acknowledged) - begin
    begin_ns = start_ns + min((s.at_ns for s in job.sends if not s.after), default=0)
    ends = [begin_ns, *(iterations[i] for i in sorted(iterations))]
    per_iteration = tuple(round((b - a) / 1e9, 6) for a, b in itertools.pairwise(ends))
    if job.flows:
        begun = start_ns + min(f.at_ns for f in job.flows)
        finished = [end.done_ns for r in results for end in r.qps if end.done_ns and own_pair(end.pair)]
        seconds = max(0, max(finished, default=begun) - begun) / 1e9
        moved = sum(q.rx_bytes for q in own)
    else:
        begun = start_ns + min((s.at_ns for s in job.sends if not s.after), default=0)
        seconds = max(0, max((end for _, (_, end) in done), default=begun) - begun) / 1e9
        moved = sum(m.length for m, _ in done)
    size = job.algorithm_bytes * job.iterations
    algbw = size * 8 / seconds if size and seconds else 0.0
    failed = len(mine) - len(done) if not job.flows else sum(q.message_fail for q in own)
    lost, slowest = _lost(compiled, index, spent) if job.bus_factor and not failed else (0.0, "")
    return JobRow(
        job.pattern, job.ranks, job.groups, job.iterations,
        len(mine) if not job.flows else sum(q.message_complete_rx + q.message_fail for q in own), failed, moved,
        seconds, per_iteration if job.bus_factor else (), algbw, algbw * job.bus_factor,
        moved * 8 / seconds if seconds else 0.0,
        times_of(fcts[index]), round(lost * 1e3, 3), slowest,
    )  # fmt: skip


def _lost(compiled: Compiled, index: int, spent: dict[int, int]) -> tuple[float, str]:
    """(seconds the longest chain of dependent messages took longer than if every message had been as quick as the
    median of its step, the flow that was most often the slowest of a step). ``spent``: message -> ns from post to
    arrival."""
    mine = [m for m in compiled.messages if compiled.job_of_message[m.number] == index]
    steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for m in mine:
        if m.number in spent:
            steps[m.group].append((spent[m.number], m.pair))
    usual = {group: median(d for d, _ in some) for group, some in steps.items()}
    actual_end: dict[int, float] = {}
    usual_end: dict[int, float] = {}
    for m in mine:  # each comes after those it waits for
        begin = max((actual_end[n] for n in m.after), default=0.0)
        even = max((usual_end[n] for n in m.after), default=0.0)
        actual_end[m.number] = max(begin, m.at_ns) + spent.get(m.number, 0)
        usual_end[m.number] = max(even, m.at_ns) + (usual[m.group] if m.number in spent else 0)
    worst: dict[int, int] = defaultdict(int)
    for some in steps.values():
        worst[max(some)[1]] += 1
    name = ""
    if worst:
        pair = compiled.pairs[max(worst, key=lambda n: worst[n])]
        name = f"{pair.src[0]}:{pair.src[1]} -> {pair.dst[0]}:{pair.dst[1]}"
    lost = max(actual_end.values(), default=0.0) - max(usual_end.values(), default=0.0)
    return max(0.0, lost) / 1e9, name
