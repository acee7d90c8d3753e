"""Running a workload on a lab: engine processes side by side, watched until all is done."""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fabtest.errors import FabtestError, TrafficError
from fabtest.model import NicPort, Tier
from fabtest.roce.engine import Snapshot, WorkerResult
from fabtest.roce.plan import WorkerPlan
from fabtest.roce.receiver import remove_orphans
from fabtest.roce.send import nic_addresses, resolve
from fabtest.roce.worker import get, put
from fabtest.runtime.base import Lab
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import NetlinkSocket
from fabtest.runtime.processes import MARK, program
from fabtest.workload.compile import Compiled, GatewayMac, compile_workload
from fabtest.workload.results import PortLoad, RunResult, TcpResult, summarise
from fabtest.workload.schema import WorkloadSpec

#: From the order to start to the start: every process must have it by then.
LEAD_NS = 100_000_000
#: After a queue pair failed, the rest may go on for so long without any progress.
PATIENCE_S = 2.0
TCP_PATIENCE_S = 15.0

Watch = Callable[["Progressed"], None]


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a run is. Rates are since the last time; ``rails``: received bit/s per rail."""

    seconds: float
    bits_per_second: float
    packets_per_second: float
    retransmits: int
    cnp: int
    messages: int
    total_messages: int
    failed: int
    rails: dict[int, float]


def real_macs(lab: Lab, family: int) -> GatewayMac:
    """The MAC addresses the lab's leaves really have, asked for as they are needed."""
    known: dict[tuple[str, str], str] = {}

    def mac(server: str, port: NicPort) -> str:
        if (server, port.name) not in known:
            gateway = next(n.gateway for n in nic_addresses(lab, server, family) if n.port.name == port.name)
            try:
                known[server, port.name] = resolve(lab.node(server), port.name, gateway)
            except TrafficError:
                # A link that is down now may be up later; leaves answer with the address they were given.
                known[server, port.name] = lab.fabric.switch[port.leaf.node].mac
        return known[server, port.name]

    return mac


def compile_for(spec: WorkloadSpec, lab: Lab, family: int = 0) -> Compiled:
    """Compile with the MAC addresses of a live lab. Raises UsageError where the workload does not fit the fabric."""
    family = family or lab.fabric.families[0]
    return compile_workload(spec, lab.fabric, gateway_mac=real_macs(lab, family), family=family)


@dataclass
class _Worker:
    child: subprocess.Popen[bytes]
    servers: list[str]
    snapshot: Snapshot | None = None
    result: WorkerResult | None = None
    done: bool = False

    @property
    def source(self) -> int:
        assert self.child.stdout is not None
        return self.child.stdout.fileno()

    @property
    def sink(self) -> int:
        assert self.child.stdin is not None
        return self.child.stdin.fileno()


def run_workload(
    lab: Lab, compiled: Compiled, *, watch: Watch | None = None, processes: int = 0, visible: bool = False,
    started: Callable[[], None] | None = None,
) -> RunResult:  # fmt: skip
    """Run it to its end. ``started`` is called when traffic begins; ``watch`` about five times a second.

    Raises TrafficError if an engine process fails or cannot start.
    """
    servers = compiled.servers
    workers: list[_Worker] = []
    tcp = _Tcp(lab, compiled)
    loads = _loads(lab)
    try:
        if servers:
            count = min(processes or os.cpu_count() or 1, len(servers))
            shares = [servers[n * len(servers) // count : (n + 1) * len(servers) // count] for n in range(count)]
            for share in shares:
                workers.append(_start(lab, compiled, share, visible))
            for worker in workers:
                answer = get(worker.source)
                if isinstance(answer, FabtestError):
                    raise answer
                if answer != "ready":
                    raise TrafficError("an engine process ended before it began", hint=_last_words(worker))
        start_ns = time.monotonic_ns() + LEAD_NS
        begun = time.time() + LEAD_NS / 1e9
        for worker in workers:
            put(worker.sink, start_ns)
        tcp.start()
        if started is not None:
            started()
        _attend(compiled, workers, start_ns, watch)
        tcp.join()
        results = [w.result for w in workers if w.result is not None]
        return summarise(compiled, results, start_ns, _difference(loads, _loads(lab)), tcp.results, begun)
    finally:
        for worker in workers:
            _end(lab, worker)
        tcp.stop()


def _start(lab: Lab, compiled: Compiled, share: list[str], visible: bool) -> _Worker:
    inside_share = set(share)
    qps = [end for p in compiled.pairs for end in (p.requester, p.responder) if end.server in inside_share]
    requester = {p.number: p.src[0] for p in compiled.pairs}
    messages = tuple(m for m in compiled.messages if m.server in inside_share)
    expected = sum(
        1 for m in compiled.messages
        if m.pair >= 0 and m.verb.value != "read" and compiled.pairs[m.pair].dst[0] in inside_share
    )  # fmt: skip
    interfaces: dict[str, tuple[str, ...]] = {}
    rails: dict[str, dict[str, int]] = {}
    for name in share:
        server = lab.fabric.server[name]
        node = lab.node(name)
        interfaces[name] = tuple(node.interface(p.name) for p in server.ports)
        rails[name] = {node.interface(p.name): nic.rail or nic.number for nic in server.nics for p in nic.ports}
    plan = WorkerPlan(
        lab=lab.name, family=compiled.family, transport=compiled.transport,
        netns={name: str(lab.node(name).netns) for name in share}, interfaces=interfaces, qps=tuple(qps),
        messages=messages, streams=tuple(s for s in compiled.streams if requester[s.pair] in inside_share),
        expected=expected, limit_ns=compiled.spec.limit, visible=visible, rails=rails,
        unreliable=tuple((s.pair, s.at_ns, s.until_ns) for s in compiled.streams if not s.reliable),
    )  # fmt: skip
    environment = {**os.environ, MARK: lab.name}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "fabtest.roce.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip
    worker = _Worker(child, share)
    put(worker.sink, plan)
    return worker


def _last_words(worker: _Worker) -> str:
    assert worker.child.stderr is not None
    worker.child.kill()
    lines = worker.child.stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _attend(compiled: Compiled, workers: list[_Worker], start_ns: int, watch: Watch | None) -> None:
    """Read what the processes say until all have given their result."""
    selector = selectors.DefaultSelector()
    for worker in workers:
        selector.register(worker.source, selectors.EVENT_READ, worker)
    total = sum(m.pair >= 0 for m in compiled.messages)
    before: tuple[float, int, int, dict[int, int]] = (0.0, 0, 0, {})
    moved, moved_at = -1, time.monotonic()
    stopping = False
    shown = 0.0
    while any(w.result is None for w in workers):
        for key, _ in selector.select(0.2):
            worker = key.data
            said = get(worker.source)
            if isinstance(said, Snapshot):
                worker.snapshot, worker.done = said, said.done
            elif isinstance(said, WorkerResult):
                worker.result = said
                selector.unregister(worker.source)
            elif isinstance(said, FabtestError):
                raise said
            else:
                raise TrafficError("an engine process ended early", hint=_last_words(worker))
        now = time.monotonic()
        snapshots = [w.snapshot for w in workers if w.snapshot is not None]
        received = sum(s.bytes_rx for s in snapshots)
        if received != moved:
            moved, moved_at = received, now
        failed = sum(s.failed for s in snapshots)
        if not stopping and (all(w.done for w in workers) or (failed and now - moved_at > PATIENCE_S)):
            stopping = True
            for worker in workers:
                if worker.result is None:
                    put(worker.sink, "stop")
        if watch is not None and snapshots and now - shown >= 0.2:
            shown = now
            before = _tell(watch, snapshots, before, (time.monotonic_ns() - start_ns) / 1e9, total)
    selector.close()


def _tell(
    watch: Watch, snapshots: list[Snapshot], before: tuple[float, int, int, dict[int, int]], seconds: float, total: int
) -> tuple[float, int, int, dict[int, int]]:
    rails: dict[int, int] = {}
    for s in snapshots:
        for rail, count in s.rails.items():
            rails[rail] = rails.get(rail, 0) + count
    received, packets = sum(rails.values()), sum(s.received for s in snapshots)
    passed = max(1e-3, seconds - before[0])
    watch(Progressed(
        seconds, (received - before[1]) * 8 / passed, (packets - before[2]) / passed,
        sum(s.retransmits for s in snapshots), sum(s.cnp for s in snapshots), sum(s.messages for s in snapshots), total,
        sum(s.failed for s in snapshots),
        {rail: (count - before[3].get(rail, 0)) * 8 / passed for rail, count in sorted(rails.items())},
    ))  # fmt: skip
    return seconds, received, packets, rails


def _end(lab: Lab, worker: _Worker) -> None:
    """Its standard input closes, and it ends; if it does not, it is ended. One that did not end as it should may have
    left its classifiers on the servers' ports."""
    for pipe in (worker.child.stdin, worker.child.stdout, worker.child.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass
    try:
        worker.child.wait(5)
    except subprocess.TimeoutExpired:
        worker.child.kill()
        worker.child.wait()
    if worker.child.returncode:
        for name in worker.servers:
            node = lab.node(name)
            try:
                remove_orphans(node.netns, [node.interface(p.name) for p in lab.fabric.server[name].ports])
            except FabtestError:
                continue


# ------------------------------------------------------------------------------------------------ port counters


def _loads(lab: Lab) -> dict[tuple[str, str], tuple[int, int]]:
    """(switch, port) -> packets and bytes sent by its fabric ports, from the kernel."""
    found = {}
    for switch in lab.fabric.switches:
        node = lab.node(switch.name)
        try:
            with inside(node.netns), NetlinkSocket() as kernel:
                links = kernel.links()
        except (OSError, FabtestError):
            continue  # powered off
        for link in lab.fabric.links_of[switch.name]:
            port = link.end(switch.name).port
            info = links.get(node.interface(port))
            if info is not None and len(info.stats) >= 4:
                found[switch.name, port] = (info.stats[1], info.stats[3])
    return found


def _difference(
    before: dict[tuple[str, str], tuple[int, int]], after: dict[tuple[str, str], tuple[int, int]]
) -> list[PortLoad]:
    return [
        PortLoad(switch, port, packets - before[switch, port][0], count - before[switch, port][1])
        for (switch, port), (packets, count) in after.items()
        if (switch, port) in before
    ]


def uplinks(lab: Lab) -> dict[str, list[str]]:
    """Leaf -> its ports towards spines."""
    return {
        s.name: [link.end(s.name).port for link in lab.fabric.links_of[s.name] if link.tier is Tier.LEAF]
        for s in lab.fabric.switches
        if s.tier is Tier.LEAF
    }


# ------------------------------------------------------------------------------------------------ iperf3


@dataclass
class _Tcp:
    """iperf3 servers and clients of a workload's background traffic."""

    lab: Lab
    compiled: Compiled
    results: list[TcpResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._servers: list[subprocess.Popen[bytes]] = []
        self._clients: list[subprocess.Popen[bytes]] = []
        self._wanted = [t for job in self.compiled.jobs for t in job.tcp]
        if self._wanted:
            self._program = program("iperf3", "iperf3")

    def start(self) -> None:
        """Servers listen; clients start when their time comes."""
        for n, wanted in enumerate(self._wanted):
            address = str(nic_addresses(self.lab, wanted.server, self.compiled.family)[0].address)
            port = 5201 + n
            with inside(self.lab.node(wanted.server).netns):
                argv = [self._program, "-s", "-1", "-B", address, "-p", str(port)]
                server = subprocess.Popen(
                    argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, MARK: self.lab.name}
                )
            self._servers.append(server)
            thread = threading.Thread(target=self._client, args=(n, address, port), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _client(self, n: int, address: str, port: int) -> None:
        wanted = self._wanted[n]
        time.sleep(LEAD_NS / 1e9 + wanted.at_ns / 1e9 + 0.2)
        argv = [
            self._program,
            "-c",
            address,
            "-p",
            str(port),
            "-t",
            str(max(1, math.ceil(wanted.seconds))),
            "-P",
            str(wanted.streams),
            "-J",
        ]
        if wanted.rate:
            argv += ["-b", f"{wanted.rate:.0f}"]
        with inside(self.lab.node(wanted.client).netns):
            client = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, MARK: self.lab.name}
            )
        self._clients.append(client)
        out, _ = client.communicate()
        try:
            end = json.loads(out)["end"]
            self.results.append(TcpResult(
                wanted.client, wanted.server, end["sum_received"]["bits_per_second"],
                int(end["sum_sent"].get("retransmits", 0)), "",
            ))  # fmt: skip
        except (ValueError, KeyError):
            self.results.append(TcpResult(wanted.client, wanted.server, 0.0, 0, "iperf3 gave no result"))

    def join(self) -> None:
        """Wait for the clients: until each should have ended, and a little more."""
        for thread, wanted in zip(self._threads, self._wanted, strict=True):
            thread.join(wanted.at_ns / 1e9 + wanted.seconds + TCP_PATIENCE_S)
            if thread.is_alive():
                self.results.append(TcpResult(wanted.client, wanted.server, 0.0, 0, "iperf3 does not end"))

    def stop(self) -> None:
        """End what still runs."""
        for child in (*self._clients, *self._servers):
            if child.poll() is None:
                child.kill()
            child.wait()


# ------------------------------------------------------------------------------------------------ captures


class Captures:
    """tcpdump on every NIC port that takes part, one pcap file each."""

    def __init__(self, lab: Lab, compiled: Compiled, folder: Path) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self.files: list[Path] = []
        argv = [program("tcpdump", "tcpdump"), "-n", "-U", "-s", "0", "-Z", "root"]
        ports = sorted(
            {(e.server, p.interface) for c in compiled.pairs for e in (c.requester, c.responder) for p in e.paths}
        )
        for server, port in ports:
            file = folder / f"{server}-{port}.pcap"
            with inside(lab.node(server).netns):
                child = subprocess.Popen(
                    [*argv, "-i", lab.node(server).interface(port), "-w", str(file), "udp port 4791"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, MARK: lab.name},
                )  # fmt: skip
            self._children.append(child)
            self.files.append(file)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not all(f.exists() for f in self.files):
            time.sleep(0.02)

    def close(self) -> None:
        """End them; the files are whole."""
        time.sleep(0.2)
        for child in self._children:
            child.terminate()
        for child in self._children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
