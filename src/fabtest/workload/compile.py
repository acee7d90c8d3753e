"""From a workload and a fabric to what engine processes are told: ranks on NICs, messages on queue pairs.

Pure and deterministic: QPNs, first PSNs and everything drawn come from the workload's seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fabtest.errors import UsageError
from fabtest.model import Fabric, Nic, NicPort, Shape
from fabtest.roce.dcqcn import PROFILES
from fabtest.roce.entropy import PortPolicy, source_port
from fabtest.roce.plan import PathSpec, Planned, QpSpec, StreamSpec, TransportSpec
from fabtest.roce.transport import Verb
from fabtest.workload.patterns import Rank, Traffic, traffic_of
from fabtest.workload.schema import AnyJob, BackgroundTcp, Job, WorkloadSpec
from fabtest.workload.units import parse_rate

#: Says the MAC address a NIC port's frames go to.
GatewayMac = Callable[[str, NicPort], str]
MOST_QPS = 200_000


@dataclass(frozen=True, slots=True)
class Pair:
    """A queue pair's two ends: NIC of a server to NIC of another."""

    number: int
    src: tuple[str, int]
    dst: tuple[str, int]
    rail: int
    requester: QpSpec
    responder: QpSpec


@dataclass
class Compiled:
    """A whole workload on a fabric. ``jobs`` are in the file's order."""

    spec: WorkloadSpec
    family: int
    transport: TransportSpec
    jobs: list[Traffic]
    pairs: list[Pair] = field(default_factory=list)
    messages: list[Planned] = field(default_factory=list)
    streams: list[StreamSpec] = field(default_factory=list)
    #: The job of each message by its number, and of each queue pair.
    job_of_message: list[int] = field(default_factory=list)
    job_of_pair: dict[int, int] = field(default_factory=dict)

    @property
    def servers(self) -> list[str]:
        """Servers that send or receive, in the order of their first pair."""
        return list(dict.fromkeys(name for p in self.pairs for name in (p.src[0], p.dst[0])))


def ranks_of(fabric: Fabric, job: Job | BackgroundTcp) -> list[Rank]:
    """The GPUs that take part. Raises UsageError for servers or rails the fabric has not."""
    names = list(fabric.server)
    if isinstance(job, Job) and job.servers != "all":
        strange = [n for n in job.servers if n not in fabric.server]
        if strange:
            raise UsageError(
                f"no server {', '.join(strange)} in {fabric.name}",
                hint=f"servers: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}",
            )
        names = list(job.servers)
    if isinstance(job, Job) and job.first:
        names = names[: job.first]
    rails = None if not isinstance(job, Job) or job.rails == "all" else set(job.rails)
    known = {nic.rail or nic.number for s in fabric.servers for nic in s.nics}
    if rails is not None and rails - known:
        raise UsageError(
            f"no NIC on rail {', '.join(map(str, sorted(rails - known)))}", hint=f"rails: 1 to {max(known)}"
        )
    found: list[Rank] = []
    for name in names:
        for nic in fabric.server[name].nics:
            rail = nic.rail or nic.number
            if rails is None or rail in rails:
                for _ in range(max(1, nic.gpus)):
                    found.append(Rank(len(found), name, nic.number, rail, nic.ports[0].leaf.node))
    if len({r.server for r in found}) < 2:
        raise UsageError("a workload needs two servers at least")
    return found


def model_mac(fabric: Fabric) -> GatewayMac:
    """The gateway's MAC address as designed: that of the leaf."""
    return lambda _, port: fabric.switch[port.leaf.node].mac


def compile_workload(
    spec: WorkloadSpec, fabric: Fabric, *, gateway_mac: GatewayMac | None = None, family: int = 0
) -> Compiled:
    """Raises UsageError where the workload does not fit the fabric."""
    family = family or fabric.families[0]
    gateway_mac = gateway_mac or model_mac(fabric)
    compiled = Compiled(spec, family, transport_of(spec, fabric, family), [])
    nvlink = spec.transport.cross_rail == "nvlink" or (
        spec.transport.cross_rail == "auto" and fabric.shape is Shape.RAIL_ONLY
    )
    book = _Book(compiled, fabric, gateway_mac, family, nvlink)
    for index, job in enumerate(spec.jobs):
        ranks = ranks_of(fabric, job)
        first = len(compiled.messages)
        made = traffic_of(job, ranks, spec.seed, first, spec.transport.mtu)
        compiled.jobs.append(made)
        turns: dict[tuple[str, int, str, int], int] = {}
        for send in made.sends:
            pair = -1
            if send.src.server != send.dst.server:
                key = book.ends(send.src, send.dst)
                qps = book.pairs(key, send.qps, index)
                pair = qps[turns.get(key, 0) % len(qps)]
                turns[key] = turns.get(key, 0) + 1
            compiled.messages.append(Planned(
                send.number, send.src.server, send.length, send.verb, pair, send.after, send.at_ns,
                send.group, send.iteration,
            ))  # fmt: skip
            compiled.job_of_message.append(index)
        for flow in made.flows:
            if flow.src.server == flow.dst.server:
                continue
            key = book.ends(flow.src, flow.dst)
            for pair in book.fresh(key, flow.qps, index):
                compiled.streams.append(StreamSpec(
                    pair, flow.length, flow.verb, flow.at_ns, flow.until_ns, flow.outstanding, flow.rate, flow.reliable,
                    flow.total,
                ))  # fmt: skip
        if len(compiled.pairs) > MOST_QPS:
            raise UsageError(
                f"{len(compiled.pairs)} queue pairs are too many", hint=f"at most {MOST_QPS}: fewer `qps` or servers"
            )
    if not compiled.pairs and not any(made.tcp for made in compiled.jobs):
        raise UsageError("nothing of this workload crosses the network", hint="source and destination are one server?")
    return compiled


def compile_streams(
    spec: WorkloadSpec, fabric: Fabric, ends: Sequence[tuple[str, int, str, int]], *, qps: int, length: int,
    duration_ns: int, rate: float, gateway_mac: GatewayMac | None = None,
) -> Compiled:  # fmt: skip
    """Streams between NICs given one by one, (server, NIC, server, NIC), with the transport of ``spec``."""
    family = fabric.families[0]
    compiled = Compiled(spec, family, transport_of(spec, fabric, family), [Traffic("streams")])
    book = _Book(compiled, fabric, gateway_mac or model_mac(fabric), family, nvlink=False)
    for key in ends:
        for pair in book.fresh(key, qps, 0):
            compiled.streams.append(StreamSpec(pair, length, Verb.WRITE, 0, duration_ns, 2, rate))
    return compiled


def transport_of(spec: WorkloadSpec, fabric: Fabric, family: int) -> TransportSpec:
    """The transport's parameters. Raises UsageError if the path MTU does not fit the links."""
    options = spec.transport
    # IP, UDP, BTH, RETH, immediate data and ICRC beside the payload.
    need = options.mtu + (20 if family == 4 else 40) + 8 + 12 + 16 + 4 + 4
    if need > fabric.mtu:
        raise UsageError(
            f"packets of {options.mtu} bytes make IP packets of {need}, the fabric's MTU is {fabric.mtu}",
            hint="a smaller `transport: mtu:`",
        )
    profile = PROFILES.get(options.congestion_control)
    cnp_interval = profile.cnp_interval_ns if profile else 50_000
    return TransportSpec(
        mtu=options.mtu, window=options.window, ack_every=options.ack_every, timeout_ns=options.timeout,
        retry_limit=options.retries, dscp=fabric.qos.roce_dscp if options.dscp is None else options.dscp,
        ecn=2 if options.ecn else 0, cnp_dscp=fabric.qos.cnp_dscp, congestion_control=options.congestion_control,
        cnp_interval_ns=round(cnp_interval * options.dilation), line_rate=parse_rate(options.line_rate, options.mtu),
        dilation=options.dilation,
    )  # fmt: skip


class _Book:
    """Queue pairs as they are asked for."""

    def __init__(self, compiled: Compiled, fabric: Fabric, mac: GatewayMac, family: int, nvlink: bool) -> None:
        self.compiled, self.fabric, self.mac, self.family, self.nvlink = compiled, fabric, mac, family, nvlink
        rng = random.Random(compiled.spec.seed)
        self._next_qpn = {name: rng.randrange(0x100, 0x10000) for name in fabric.server}
        self._rng = rng
        self._known: dict[tuple[str, int, str, int, int], list[int]] = {}
        self._nics = {(srv.name, nic.number): nic for srv in fabric.servers for nic in srv.nics}
        self._policy = PortPolicy(compiled.spec.transport.source_port)

    def ends(self, src: Rank, dst: Rank) -> tuple[str, int, str, int]:
        """The NICs a message goes between: with NVLink, data changes rails inside the source's server."""
        nic = src.nic
        if self.nvlink and src.rail != dst.rail:
            other = next(
                (n for n in self.fabric.server[src.server].nics if (n.rail or n.number) == dst.rail), None
            )  # fmt: skip
            nic = other.number if other else nic
        return src.server, nic, dst.server, dst.nic

    def pairs(self, key: tuple[str, int, str, int], count: int, job: int) -> list[int]:
        """The queue pairs of a job between two NICs, made on the first call."""
        found = self._known.get((*key, job))
        if found is None or len(found) < count:
            found = self._known[(*key, job)] = (found or []) + self.fresh(key, count - len(found or []), job)
        return found

    def fresh(self, key: tuple[str, int, str, int], count: int, job: int) -> list[int]:
        """New queue pairs between two NICs."""
        src, src_nic, dst, dst_nic = key
        near, far = self._nics[src, src_nic], self._nics[dst, dst_nic]
        there, back = self._paths(near, far, src), self._paths(far, near, dst)
        if not there:
            raise UsageError(f"{src} NIC {src_nic} and {dst} NIC {dst_nic} share no plane with IPv{self.family}")
        rail = near.rail or near.number
        numbers = []
        for _ in range(count):
            number = len(self.compiled.pairs)
            a, b = self._qpn(src), self._qpn(dst)
            port = source_port(self._policy, number, a, b, self.compiled.spec.seed)
            psn, peer_psn = self._rng.getrandbits(24), self._rng.getrandbits(24)
            requester = QpSpec(number, src, dst, a, b, psn, peer_psn, port, there, True, rail)
            responder = QpSpec(number, dst, src, b, a, peer_psn, psn, port, back, False, rail)
            self.compiled.pairs.append(Pair(number, (src, src_nic), (dst, dst_nic), rail, requester, responder))
            self.compiled.job_of_pair[number] = job
            numbers.append(number)
        return numbers

    def _qpn(self, server: str) -> int:
        qpn = self._next_qpn[server]
        self._next_qpn[server] = qpn + 1
        return qpn & 0xFFFFFF

    def _paths(self, near: Nic, far: Nic, server: str) -> tuple[PathSpec, ...]:
        ends = {p.plane: p for p in far.ports}
        found = []
        for port in near.ports:
            peer = ends.get(port.plane)
            if peer is None:
                continue
            src = next((a.ip for a in port.addresses if a.version == self.family), None)
            dst = next((a.ip for a in peer.addresses if a.version == self.family), None)
            if src is not None and dst is not None:
                found.append(PathSpec(port.name, src, dst, port.mac, self.mac(server, port)))
        return tuple(found)


def shorten(spec: WorkloadSpec, duration_ns: int) -> WorkloadSpec:
    """The same workload with its streams by time, of another duration. Raises UsageError for none."""
    if duration_ns < 1_000_000:
        raise UsageError("a duration of less than a millisecond")
    jobs = [_for_so_long(j, duration_ns) for j in spec.jobs]
    needed = max((getattr(j, "start", 0) + duration_ns + 10**10 for j in jobs if hasattr(j, "duration")), default=0)
    return spec.model_copy(update={"jobs": jobs, "limit": max(spec.limit, needed)})


def _for_so_long(job: AnyJob, duration_ns: int) -> AnyJob:
    if not hasattr(job, "duration"):
        return job
    update: dict[str, object] = {"duration": duration_ns}
    if hasattr(job, "size"):
        update["size"] = None
    return job.model_copy(update=update)
