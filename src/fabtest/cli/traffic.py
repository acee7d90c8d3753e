"""traffic-*: RoCEv2 flows and whole workloads in a lab, captures written and read without one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit
from rich.progress import BarColumn, Progress, TextColumn

from fabtest.cli.common import JSON, LAB, err, fabtest_task, out, print_json, print_table, the_lab
from fabtest.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from fabtest.checks.entropy import Entropy
    from fabtest.checks.verdict import Verdict
    from fabtest.roce.decode import Line
    from fabtest.workload.results import RunResult
    from fabtest.workload.run import Progressed
    from fabtest.workload.schema import WorkloadSpec


@fabtest_task(
    positional=["src", "dst"],
    help={
        "src": "server, or SERVER:PORT for another than its first NIC port",
        "dst": "the same, of the receiver",
        "count": "packets in all",
        "flows": "flows, which differ in UDP source port and destination QP",
        "pps": "packets per second in all; 0: as fast as it goes",
        "size": "payload in bytes",
        "dscp": "DSCP of the packets",
        "ipv6": "use IPv6",
        "lab": LAB,
        "json": JSON,
    },
)
def traffic_send(
    c: Any, src: str, dst: str, count: int = 1000, flows: int = 1, pps: int = 1000, size: int = 64, dscp: int = 26,
    ipv6: bool = False, lab: str = "", json: bool = False,
) -> None:  # fmt: skip
    """Send RoCEv2 packets from one server to another and count what arrives: traffic-send SRC DST.

    Exit code 1 if anything was lost or arrived damaged.
    """
    from fabtest.roce.send import nic_named
    from fabtest.roce.transfer import transfer

    live = the_lab(lab)
    family = 6 if ipv6 else live.fabric.families[0]
    result = transfer(
        live, nic_named(live, src, family), nic_named(live, dst, family), count=count, flows=flows, pps=pps,
        payload=size, dscp=dscp,
    )  # fmt: skip
    if json:
        print_json(result.as_json())
    else:
        out.print(result.sentence())
    if result.lost or result.bad_icrc:
        raise Exit(code=1)


@fabtest_task(
    positional=["node"],
    help={
        "node": "server or switch",
        "seconds": "how long",
        "count": "stop after so many packets",
        "lab": LAB,
        "json": JSON,
    },
)
def traffic_receive(
    c: Any, node: str, seconds: float = 10.0, count: int = 0, lab: str = "", json: bool = False
) -> None:
    """Watch RoCEv2 packets arrive at a node, flow by flow: traffic-receive NODE."""
    from fabtest.roce.capture import Capture
    from fabtest.roce.transfer import Tally

    live = the_lab(lab)
    switch = live.node(node).role == "switch"
    tally = Tally()
    end = time.monotonic() + seconds
    err.print(f"receiving at {node} for {seconds:g} s")
    with Capture(live.node(node).netns, whole=True) as capture:
        while time.monotonic() < end and not (count and tally.packets >= count):
            for frame, port in capture.frames():
                # A frame for an SVI is seen twice: on the port it came in by, and on the VLAN.
                if not switch or not port.startswith("Vlan"):
                    tally.add(frame, port)
            time.sleep(0.005)
        dropped = capture.dropped()
    if dropped:
        err.print(f"this machine lost {dropped} more that were captured")
    rows = tally.rows()
    if json:
        print_json(rows)
    else:
        heads = ["SOURCE", "DESTINATION", "SPORT", "IN", "DSCP", "PACKETS", "CE", "BAD ICRC"]
        print_table(heads, [[str(v) for v in row.values()] for row in rows])
        err.print(f"{tally.packets} packets")


@fabtest_task(help={"json": JSON})
def traffic_list(c: Any, json: bool = False) -> None:
    """Workloads that come with fabtest."""
    from fabtest.workload import load_workload, shipped_workloads

    rows: list[dict[str, Any]] = []
    for name, path in shipped_workloads().items():
        spec = load_workload(path)
        rows.append({"name": name, "patterns": [j.pattern for j in spec.jobs], "description": spec.description})
    if json:
        print_json(rows)
    else:
        print_table(
            ["NAME", "PATTERNS", "DESCRIPTION"], [[r["name"], ", ".join(r["patterns"]), r["description"]] for r in rows]
        )
        err.print("run one in a lab: traffic-run NAME")


@fabtest_task(help={"out": "file to write; default: standard output"})
def traffic_schema(c: Any, out: str = "") -> None:
    """JSON Schema of workload files, for editors (yaml-language-server: $schema=...)."""
    import json

    from fabtest.workload.schema import json_schema

    text = json.dumps(json_schema(), indent=2) + "\n"
    if out:
        _write(Path(out), text)
    else:
        print(text, end="")


@fabtest_task(
    positional=["file"],
    help={
        "file": "workload file, or the name of a shipped one",
        "duration": "of its streams, as 10s, instead of the file's",
        "check": "judge the spread of its queue pairs over equal paths first; exit code 1 if it is not fair",
        "pcap": "folder for a capture of every NIC port that takes part",
        "html": "write a page with plots",
        "csv": "write a line per queue pair",
        "parquet": "the same as Parquet (needs pyarrow)",
        "processes": "engine processes; default: one per CPU",
        "ipv6": "use IPv6",
        "lab": LAB,
        "json": JSON,
    },
)
def traffic_run(
    c: Any, file: str, lab: str = "", duration: str = "", check: bool = False, pcap: str = "", html: str = "",
    csv: str = "", parquet: str = "", processes: int = 0, ipv6: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Run a workload in a lab: traffic-run FILE. Real queue pairs, real frames; collectives in dependent steps.

    Exit code 0: every message arrived; 1: one did not (or --check failed); 3: --check was inconclusive.
    """
    from fabtest.checks.entropy import advice, measure_entropy, workload_spread
    from fabtest.checks.verdict import NotApplicable
    from fabtest.report.traffic import traffic_page
    from fabtest.workload.run import Captures, compile_for, run_workload, uplinks

    spec = _workload(file, duration)
    for target in filter(None, (html, csv, parquet)):
        if not Path(target).absolute().parent.is_dir():
            raise FileProblem(f"cannot write {target}: no such folder")
    folder = Path(pcap) if pcap else None
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileProblem(f"cannot make {folder}: {error.strerror}") from None
    if parquet:
        _need_pyarrow()
    if processes < 0:
        raise UsageError(f"{processes} engine processes", hint="0: one per CPU")
    live = the_lab(lab)
    compiled = compile_for(spec, live, 6 if ipv6 else 0)
    entropy, verdict = None, None
    if compiled.pairs and (check or html or json):
        entropy = measure_entropy(live, compiled)
    if check and entropy is not None:
        try:
            verdict = workload_spread(live, compiled, entropy)
        except NotApplicable as reason:
            err.print(f"ecmp.workload: not applicable: {reason}")
    captures = Captures(live, compiled, folder) if folder is not None else None
    try:
        with _Live() as shown:
            result = run_workload(live, compiled, watch=shown.update, processes=processes, visible=captures is not None)
    finally:
        if captures is not None:
            captures.close()
    result.lab = live.name
    result.ecmp = entropy.as_json() if entropy is not None else []
    if csv:
        _write(Path(csv), result.as_csv())
    if parquet:
        _write_parquet(result, Path(parquet))
    if html:
        sentences = [c.sentence() for c in entropy.choices[:1]] + advice(entropy) if entropy is not None else []
        _write(Path(html), traffic_page(result, uplinks(live), sentences))
        err.print(f"{html} written")
    if json:
        print_json({**result.as_json(), "check": verdict.as_json() if verdict else None})
    else:
        _show(result, verdict, entropy)
    if folder is not None and captures is not None:
        err.print(f"{len(captures.files)} captures in {folder}")
    if not result.ok or (verdict is not None and verdict.outcome == "fail"):
        raise Exit(code=1)
    if verdict is not None and verdict.outcome == "inconclusive":
        raise Exit(code=3)


def _workload(file: str, duration: str) -> WorkloadSpec:
    """A workload by file or name, its streams of another duration if one is given. Raises UsageError."""
    from fabtest.workload import load_workload, workload_path
    from fabtest.workload.compile import shorten
    from fabtest.workload.units import parse_time

    spec = load_workload(workload_path(file))
    if not duration:
        return spec
    try:
        return shorten(spec, parse_time(duration))
    except ValueError as error:
        raise UsageError(str(error)) from None


class _Live:
    """One line that changes, on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"), console=err,
            transient=True, disable=not err.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("traffic", total=None, text="starting")

    def __enter__(self) -> _Live:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def update(self, p: Progressed) -> None:
        """Rate, packets, what went wrong, and the rails."""
        rails = (
            " ".join(f"r{rail} {bits / 1e9:.2f}" for rail, bits in list(p.rails.items())[:8])
            if len(p.rails) > 1
            else ""
        )
        trouble = f"  {p.retransmits} again" if p.retransmits else ""
        trouble += f"  {p.cnp} CNP" if p.cnp else ""
        trouble += f"  {p.failed} QPs failed" if p.failed else ""
        rate = f"{p.bits_per_second / 1e9:.2f} Gbit/s  {p.packets_per_second / 1e3:.0f} kpps"
        text = f"{p.seconds:5.1f} s  {rate}{trouble}  {rails}"
        self._bar.update(self._task, completed=p.messages, total=p.total_messages or None, text=text)


def _show(result: RunResult, verdict: Verdict | None, entropy: Entropy | None) -> None:
    from fabtest.checks.entropy import advice
    from fabtest.workload.units import format_rate, format_size

    heads = [
        "JOB", "RANKS", "MESSAGES", "FAILED", "DATA", "TIME", "ALGBW", "BUSBW", "GOODPUT", "P50", "P99",
        "LOST TO SLOWEST",
    ]  # fmt: skip
    rows = [
        [
            j.pattern, str(j.ranks), str(j.messages), str(j.failed_messages), format_size(j.bytes), 
            f"{j.seconds:.3f} s", format_rate(j.algbw) if j.algbw else "-",
            format_rate(j.busbw) if j.busbw else "-", format_rate(j.goodput),
            f"{j.fct.p50:.2f} ms" if j.fct else "-", f"{j.fct.p99:.2f} ms" if j.fct else "-",
            f"{j.lost_to_slowest_ms:.1f} ms" if j.lost_to_slowest_ms else "-",
        ]
        for j in result.jobs
        if j.messages
    ]  # fmt: skip
    print_table(heads, rows)
    for t in result.tcp:
        what = t.error or f"{format_rate(t.bits_per_second)}, {t.retransmits} retransmissions"
        out.print(f"TCP {t.client} -> {t.server}: {what}")
    parts = [f"{result.failed_messages} failed messages", f"{result.retransmits} packets sent again"]
    if result.lost:
        parts.append(f"{result.lost} packets lost")
    ce, cnp = sum(q.ecn_ce_rx for q in result.qps), sum(q.cnp_rx for q in result.qps)
    if ce or cnp:
        parts.append(f"{ce} marked CE, {cnp} CNPs")
    if result.retransmits or result.lost or result.outage_ms > 50:
        parts.append(f"longest outage of a queue pair {result.outage_ms:.0f} ms")
    out.print(f"{result.workload} on {result.lab}: {', '.join(parts)} in {result.seconds:.2f} s")
    if result.icrc_wrong:
        out.print(f"  {result.icrc_wrong} of {result.icrc_checked} packets whose ICRC was checked had a wrong one")
    if result.cut:
        out.print("  the workload's time limit ended the run before it was done (`limit:`)")
    for failure in result.failures[:10]:
        out.print(f"  {failure}")
    if verdict is not None:
        out.print(f"{verdict.check}: {verdict.outcome}: {verdict.sentence}")
        for sentence in advice(entropy) if entropy is not None else []:
            out.print(f"  advice: {sentence}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}") from None


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError("--parquet needs pyarrow", hint="pip install 'fabtest[parquet]'") from None


def _write_parquet(result: RunResult, path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    try:
        parquet.write_table(pyarrow.Table.from_pylist(result.flat_qps()), str(path))
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error}") from None


@fabtest_task(
    positional=["file"],
    help={
        "file": "workload file, or the name of a shipped one",
        "out": "file to write",
        "topology": "topology file, or the name of a shipped one",
        "format": "pcap: the packets; otg: Open Traffic Generator JSON, for a hardware tester",
        "limit": "packets at most",
        "duration": "of its streams, as 10ms, instead of the file's",
        "ipv6": "use IPv6",
    },
)
def traffic_pcap(
    c: Any, file: str, out: str = "", topology: str = "rail-4x4", format: str = "pcap", limit: int = 1_000_000,
    duration: str = "", ipv6: bool = False,
) -> None:  # fmt: skip
    """Write a workload as a capture, without a lab: traffic-pcap FILE --out x.pcap.

    The same for a seed, to the byte.
    """
    import json

    from fabtest.topology.load import load_fabric, topology_path
    from fabtest.workload.compile import compile_workload
    from fabtest.workload.otg import otg_config
    from fabtest.workload.schedule import Schedule, write_pcap

    if format not in ("pcap", "otg"):
        raise UsageError(f"no format {format!r}", hint="pcap or otg")
    if limit < 1:
        raise UsageError(f"a limit of {limit} packets", hint="1 or more")
    target = Path(out)
    if not out or target.is_dir():
        raise UsageError("no file to write", hint="give one with --out")
    spec = _workload(file, duration)
    fabric = load_fabric(topology_path(topology))
    compiled = compile_workload(spec, fabric, family=6 if ipv6 else 0)
    if format == "otg":
        _write(target, json.dumps(otg_config(compiled, fabric), indent=2) + "\n")
        err.print(f"{out}: {len(compiled.pairs)} queue pairs")
        return
    schedule = Schedule(compiled, fabric, limit)
    # A file appears whole or not at all; a device or a pipe is written to as it is.
    special = target.exists() and not target.is_file()
    scratch = target if special else target.with_name(target.name + ".part")
    try:
        with scratch.open("wb") as handle:
            count, last = write_pcap(schedule, handle)
        if not special:
            scratch.replace(target)
    except OSError as error:
        raise FileProblem(f"cannot write {out}: {error.strerror}") from None
    finally:
        if not special:
            scratch.unlink(missing_ok=True)
    err.print(f"{out}: {count} packets, {last / 1e6:.3f} ms" + (" (cut at --limit)" if schedule.truncated else ""))


@fabtest_task(
    positional=["file"],
    help={
        "file": "pcap or pcapng file",
        "packets": "print at most so many packets before the queue pairs; 0: none",
        "odd": "print only packets with something odd: gaps, retransmissions, NAKs, CE, CNPs, wrong ICRCs",
        "json": JSON,
    },
)
def traffic_decode(c: Any, file: str, packets: int = 40, odd: bool = False, json: bool = False) -> None:
    """Read the RoCE packets of a capture: traffic-decode FILE.pcap. No lab, no root.

    Exit code 1 if a packet has a wrong ICRC.
    """
    from fabtest.roce.decode import Decoded, decode, frames_of

    decoded = Decoded()
    shown: list[Line] = []
    for line in decode(frames_of(Path(file)), decoded):
        if len(shown) < packets and (not odd or _odd(line)):
            shown.append(line)
    if json:
        from dataclasses import asdict

        print_json({**decoded.as_json(), "packets": [asdict(line) for line in shown]})
    else:
        if shown:
            heads = [
                "NO",
                "TIME",
                "SOURCE",
                "DESTINATION",
                "SPORT",
                "OPCODE",
                "QP",
                "PSN",
                "A",
                "BYTES",
                "DETAIL",
                "ICRC",
            ]
            print_table(heads, [
                [
                    str(p.number), f"{p.seconds:.6f}", p.src, p.dst, str(p.src_port), p.opcode, f"{p.dqpn:#x}",
                    str(p.psn), "A" if p.ack_request else "", str(p.length), p.detail, p.icrc,
                ]
                for p in shown
            ])  # fmt: skip
            if decoded.roce > len(shown) and not odd:
                out.print(f"... {decoded.roce - len(shown)} more (--packets, --odd)")
            out.print("")
        heads = [
            "SOURCE", "DESTINATION", "QP", "TYPE", "PACKETS", "BYTES", "FIRST PSN", "NEXT PSN", "MESSAGES", "GAPS",
            "AGAIN", "ACK", "NAK", "CNP", "CE", "BAD ICRC",
        ]  # fmt: skip
        print_table(heads, [
            [
                q.src, q.dst, f"{q.dqpn:#x}", q.transport, str(q.packets), str(q.bytes),
                str(q.first_psn) if q.first_psn >= 0 else "-", str(q.next_psn) if q.next_psn >= 0 else "-",
                str(q.messages), str(q.gaps), str(q.retransmissions), str(q.acks), str(q.naks), str(q.cnp), str(q.ce),
                str(q.bad_icrc),
            ]
            for q in decoded.qps.values()
        ])  # fmt: skip
        cut = f", {decoded.cut} cut short" if decoded.cut else ""
        out.print(
            f"{decoded.frames} frames, {decoded.roce} RoCE, {decoded.bad_icrc} ICRC errors{cut}, {decoded.ce} marked "
            f"CE, {decoded.cnp} CNPs"
        )
    if decoded.bad_icrc:
        raise Exit(code=1)


def _odd(line: Line) -> bool:
    words = ("gap", "again", "retransmission", "NAK", "CE", "CNP", "out of order", "wrong")
    return line.icrc == "WRONG" or any(word in line.detail for word in words) or line.opcode == "CNP"
