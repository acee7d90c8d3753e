"""Who sends what to whom, and after what: one function per pattern, from ranks to messages and streams.

Collectives follow nccl-tests' definitions (PERFORMANCE.md): ``size`` is the buffer of each rank, and the bus bandwidth
is the algorithm's times a factor that makes it comparable between numbers of ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fabtest.errors import UsageError
from fabtest.roce.transport import Verb
from fabtest.workload import schema as s
from fabtest.workload.units import parse_rate

#: Messages of a workload at most: they are all planned before it starts.
MOST_MESSAGES = 2_000_000


@dataclass(frozen=True, slots=True)
class Rank:
    """A GPU: its number over the fabric, its server, the NIC that serves it (1-based) and that NIC's rail and leaf."""

    number: int
    server: str
    nic: int
    rail: int
    leaf: str


@dataclass(frozen=True, slots=True)
class Send:
    """A message between ranks. ``after``: numbers of messages that must have arrived at, or been completed by, the
    server of ``src`` before. ``group``: what it belongs to; the slowest message of a group decides when it is over."""

    number: int
    src: Rank
    dst: Rank
    length: int
    verb: Verb
    after: tuple[int, ...] = ()
    at_ns: int = 0
    group: int = 0
    iteration: int = 0
    qps: int = 1


@dataclass(frozen=True, slots=True)
class Flow:
    """A stream between ranks: messages one after the other. ``rate`` is bit/s of payload per queue pair."""

    src: Rank
    dst: Rank
    length: int
    verb: Verb
    at_ns: int
    until_ns: int
    outstanding: int
    rate: float
    reliable: bool
    total: int
    qps: int


@dataclass(frozen=True, slots=True)
class Tcp:
    """iperf3 between two servers."""

    client: str
    server: str
    streams: int
    rate: float
    at_ns: int
    seconds: float


@dataclass
class Traffic:
    """What a job comes to. ``algorithm_bytes`` and ``bus_factor`` are those of nccl-tests; 0: not a collective."""

    pattern: str
    ranks: int = 0
    groups: int = 1
    sends: list[Send] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    tcp: list[Tcp] = field(default_factory=list)
    algorithm_bytes: int = 0
    bus_factor: float = 0.0
    iterations: int = 1


class _Build:
    """Numbers messages and remembers the pieces a step was cut into."""

    def __init__(self, traffic: Traffic, job: s.Job, first: int) -> None:
        self.traffic, self.job = traffic, job
        self.next = first

    def send(
        self, src: Rank, dst: Rank, length: int, after: Iterable[int] = (), *, group: int = 0, iteration: int = 0,
        at_ns: int = 0, verb: Verb | None = None,
    ) -> tuple[int, ...]:  # fmt: skip
        """A transfer cut into messages; their numbers."""
        if self.next + length // self.job.message_size > MOST_MESSAGES:
            raise UsageError(
                f"{self.traffic.pattern} comes to more than {MOST_MESSAGES} messages",
                hint="a larger `message_size`, fewer iterations or servers",
            )
        wanted = verb or Verb(self.job.verb)
        numbers = []
        waits = tuple(after)
        left = max(1, length)
        while left > 0:
            size = min(left, self.job.message_size)
            self.traffic.sends.append(
                Send(self.next, src, dst, size, wanted, waits, at_ns, group, iteration, self.job.qps)
            )
            numbers.append(self.next)
            self.next += 1
            left -= size
        return tuple(numbers)


def _start(job: s.Job, rank: int) -> int:
    return job.start + rank * job.stagger


def _rings(job: s._Collective, ranks: Sequence[Rank]) -> list[list[Rank]]:
    """The groups a collective runs in, each in the order of its ring."""
    if job.scope == "flat":
        return [list(ranks)]
    rails: dict[int, list[Rank]] = {}
    for rank in ranks:
        rails.setdefault(rank.rail, []).append(rank)
    return [rails[rail] for rail in sorted(rails)]


def _groups(
    traffic: Traffic, job: s._Collective, ranks: Sequence[Rank], factor: Callable[[int], float]
) -> list[list[Rank]]:
    groups = [g for g in _rings(job, ranks) if len(g) > 1]
    if not groups:
        raise UsageError(f"{traffic.pattern} needs two ranks in a group", hint="more servers, or `scope: flat`")
    traffic.algorithm_bytes, traffic.iterations = job.size, job.iterations
    traffic.groups = len(groups)
    traffic.ranks = sum(map(len, groups))
    traffic.bus_factor = factor(len(groups[0]))
    return groups


def _ring(
    traffic: Traffic, build: _Build, job: s._Collective, ranks: Sequence[Rank], steps_of: Callable[[int], int],
    factor: Callable[[int], float],
) -> None:  # fmt: skip
    """Steps around a ring: in each, every rank passes on what came in the step before."""
    for group in _groups(traffic, job, ranks, factor):
        n = len(group)
        chunk = -(-job.size // n)
        came: list[tuple[int, ...]] = [()] * n
        for iteration in range(job.iterations):
            for step in range(steps_of(n)):
                sent = [
                    build.send(
                        group[r], group[(r + 1) % n], chunk, came[r], group=iteration * steps_of(n) + step,
                        iteration=iteration, at_ns=_start(job, r) if not came[r] else 0,
                    )
                    for r in range(n)
                ]  # fmt: skip
                came = [sent[(r - 1) % n] for r in range(n)]


def ring_allreduce(traffic: Traffic, build: _Build, job: s.RingAllreduce, ranks: Sequence[Rank]) -> None:
    """2(n-1) steps of size/n: reduce-scatter, then allgather."""
    _ring(traffic, build, job, ranks, lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n)


def allgather(traffic: Traffic, build: _Build, job: s.Allgather, ranks: Sequence[Rank]) -> None:
    """n-1 steps of size/n."""
    _ring(traffic, build, job, ranks, lambda n: n - 1, lambda n: (n - 1) / n)


def reduce_scatter(traffic: Traffic, build: _Build, job: s.ReduceScatter, ranks: Sequence[Rank]) -> None:
    """n-1 steps of size/n."""
    _ring(traffic, build, job, ranks, lambda n: n - 1, lambda n: (n - 1) / n)


def tree_allreduce(traffic: Traffic, build: _Build, job: s.TreeAllreduce, ranks: Sequence[Rank]) -> None:
    """Children send to their parent, which sends on when both have come; then the result goes down."""
    for group in _groups(traffic, job, ranks, lambda n: 2 * (n - 1) / n):
        n = len(group)
        had: list[tuple[int, ...]] = [()] * n
        for iteration in range(job.iterations):
            base = iteration * 2
            up: list[tuple[int, ...]] = [()] * n
            for r in range(n - 1, 0, -1):
                children = [up[c] for c in (2 * r + 1, 2 * r + 2) if c < n]
                waits = (*had[r], *(m for child in children for m in child))
                up[r] = build.send(
                    group[r], group[(r - 1) // 2], job.size, waits, group=base, iteration=iteration,
                    at_ns=_start(job, r) if not waits else 0,
                )  # fmt: skip
            down: list[tuple[int, ...]] = [()] * n
            for r in range(1, n):
                parent = (r - 1) // 2
                if parent:
                    waits = down[parent]
                else:
                    waits = (*had[0], *(m for c in (1, 2) if c < n for m in up[c]))
                down[r] = build.send(group[parent], group[r], job.size, waits, group=base + 1, iteration=iteration)
            had = [down[r] if r else tuple(m for c in (1, 2) if c < n for m in up[c]) for r in range(n)]


def butterfly_allreduce(traffic: Traffic, build: _Build, job: s.ButterflyAllreduce, ranks: Sequence[Rank]) -> None:
    """Recursive halving, then doubling, with partners at distances of powers of two."""
    for group in _groups(traffic, job, ranks, lambda n: 2 * (n - 1) / n):
        n = len(group)
        if n & (n - 1):
            raise UsageError(
                f"butterfly-allreduce needs a power of two of ranks, not {n}", hint="`first:` takes fewer servers"
            )
        rounds = n.bit_length() - 1
        came: list[tuple[int, ...]] = [()] * n
        for iteration in range(job.iterations):
            for step in range(2 * rounds):
                level = step if step < rounds else 2 * rounds - 1 - step
                distance, size = n >> (level + 1), max(1, job.size >> (level + 1))
                sent = [
                    build.send(
                        group[r], group[r ^ distance], size, came[r], group=iteration * 2 * rounds + step,
                        iteration=iteration, at_ns=_start(job, r) if not came[r] else 0,
                    )
                    for r in range(n)
                ]  # fmt: skip
                came = [sent[r ^ distance] for r in range(n)]


def all_to_all(traffic: Traffic, build: _Build, job: s.AllToAll, ranks: Sequence[Rank]) -> None:
    """Each rank to every other; staged: in step k to the k-th next."""
    for group in _groups(traffic, job, ranks, lambda n: (n - 1) / n):
        n = len(group)
        chunk = -(-job.size // n)
        came: list[tuple[int, ...]] = [()] * n
        for iteration in range(job.iterations):
            gathered: list[tuple[int, ...]] = [()] * n
            waits = came
            for step in range(1, n):
                sent = [
                    build.send(
                        group[r], group[(r + step) % n], chunk, waits[r], iteration=iteration,
                        group=iteration * (n - 1) + step - 1, at_ns=_start(job, r) if not waits[r] else 0,
                    )
                    for r in range(n)
                ]  # fmt: skip
                arrived = [sent[(r - step) % n] for r in range(n)]
                gathered = [(*gathered[r], *arrived[r]) for r in range(n)]
                if job.staged:
                    waits = arrived
            # The next iteration needs all of this one, not only its last step.
            came = gathered


def pipeline(traffic: Traffic, build: _Build, job: s.Pipeline, ranks: Sequence[Rank]) -> None:
    """Stages are servers; NIC r of a stage talks to NIC r of the next. One forward, one backward at a time."""
    traffic.ranks = len(ranks)
    lanes: dict[int, list[Rank]] = {}
    for rank in ranks:
        lanes.setdefault(rank.nic, []).append(rank)
    for stages in lanes.values():
        n = len(stages)
        if n < 2:
            raise UsageError("pipeline needs two servers")
        before: list[tuple[int, ...]] = [()] * n
        for batch in range(job.microbatches):
            came: tuple[int, ...] = ()
            for stage in range(n - 1):
                came = build.send(
                    stages[stage], stages[stage + 1], job.size, (*came, *before[stage]), group=batch * 2,
                    at_ns=_start(job, 0) if not (came or before[stage]) else 0,
                )  # fmt: skip
                # A stage has sent its last micro-batch before it starts the next.
                before[stage] = came
            for stage in range(n - 1, 0, -1):
                came = build.send(stages[stage], stages[stage - 1], job.size, came, group=batch * 2 + 1)


def parameter_server(traffic: Traffic, build: _Build, job: s.ParameterServer, ranks: Sequence[Rank]) -> None:
    """Gradients to every parameter server; each answers a worker when it has all workers' gradients."""
    servers = list(dict.fromkeys(r.server for r in ranks))
    if job.parameter_servers >= len(servers):
        raise UsageError("parameter-server needs a worker", hint="fewer `parameter_servers`, or more servers")
    holders = set(servers[: job.parameter_servers])
    traffic.ranks, traffic.iterations = len(ranks), job.iterations
    stores = [r for r in ranks if r.server in holders]
    workers = [r for r in ranks if r.server not in holders]
    part = -(-job.size // len(stores))
    had: dict[int, tuple[int, ...]] = {r.number: () for r in workers}
    for iteration in range(job.iterations):
        pushed: dict[int, list[int]] = {r.number: [] for r in stores}
        for n, worker in enumerate(workers):
            for store in stores:
                waits = had[worker.number]
                pushed[store.number] += build.send(
                    worker, store, part, waits, group=iteration * 2, iteration=iteration,
                    at_ns=_start(job, n) if not waits else 0,
                )  # fmt: skip
        had = {r.number: () for r in workers}
        for worker in workers:
            for store in stores:
                came = build.send(
                    store, worker, part, pushed[store.number], group=iteration * 2 + 1, iteration=iteration
                )
                had[worker.number] += came


def inference(traffic: Traffic, build: _Build, job: s.Inference, ranks: Sequence[Rank], rng: random.Random) -> None:
    """Requests at random times, a response to each."""
    names = job.clients or [ranks[0].server]
    clients, servers = _split(ranks, names, "clients")
    traffic.ranks = len(ranks)
    for n, client in enumerate(clients):
        for server in servers:
            at = float(_start(job, n))
            for _ in range(job.requests):
                at += rng.expovariate(1 / job.arrival) if job.arrival else 0
                asked = build.send(client, server, job.request_size, at_ns=max(1, round(at)), verb=Verb.SEND)
                build.send(server, client, job.response_size, asked, group=1, verb=Verb.SEND)


def fine_tune(traffic: Traffic, build: _Build, job: s.FineTune, ranks: Sequence[Rank]) -> None:
    """Per step: read a batch from storage, reduce among the server's GPUs; at the end write a checkpoint."""
    last = list(dict.fromkeys(r.server for r in ranks))[-1]
    stores, workers = _split(ranks, job.storage or [last], "storage")
    traffic.ranks = len(ranks)
    by_server: dict[str, list[Rank]] = {}
    for rank in workers:
        by_server.setdefault(rank.server, []).append(rank)
    for n, gpus in enumerate(by_server.values()):
        store = stores[n % len(stores)]
        done: tuple[int, ...] = ()
        for step in range(job.steps):
            read = build.send(
                gpus[0], store, job.batch_size, done, group=step * 2, verb=Verb.READ,
                at_ns=_start(job, n) if not done else 0,
            )  # fmt: skip
            done = read
            for k in range(len(gpus) - 1):
                done = build.send(gpus[k], gpus[k + 1], job.gradient_size, done, group=step * 2 + 1)
        build.send(gpus[0], store, job.checkpoint_size, done, group=job.steps * 2)


def _split(ranks: Sequence[Rank], names: Sequence[str], what: str) -> tuple[list[Rank], list[Rank]]:
    known = {r.server for r in ranks}
    strange = [n for n in names if n not in known]
    if strange:
        raise UsageError(
            f"{what}: {', '.join(strange)} does not take part", hint=f"servers: {', '.join(sorted(known))}"
        )
    chosen = [r for r in ranks if r.server in names]
    others = [r for r in ranks if r.server not in names]
    if not others:
        raise UsageError(f"all servers are {what}: nobody is left for the other side")
    return chosen, others


def _flow(job: s._Stream, src: Rank, dst: Rank, n: int, mtu: int, verb: Verb | None = None) -> Flow:
    begin = _start(job, n)
    length = min(job.message_size, job.size or job.message_size)
    # An unreliable stream is of single packets.
    packet = min(length, mtu) if job.service == "uc" else length
    return Flow(
        src, dst, length, verb or Verb(job.verb), begin,
        begin + job.duration if job.size is None else 1 << 62, job.outstanding,
        parse_rate(job.rate, packet) if job.rate else 0.0, job.service == "rc",
        job.size or 0, job.qps,
    )  # fmt: skip


def _same_nic(ranks: Sequence[Rank], a: str, b: str) -> list[tuple[Rank, Rank]]:
    there = {r.nic: r for r in ranks if r.server == b}
    return [(r, there[r.nic]) for r in ranks if r.server == a and r.nic in there]


def point_to_point(traffic: Traffic, job: s.PointToPoint, ranks: Sequence[Rank], mtu: int) -> None:
    """NIC r to NIC r of the pairs named."""
    names = list(dict.fromkeys(r.server for r in ranks))
    pairs = job.pairs or ([[names[0], names[-1]]] if len(names) > 1 else [])
    _known(names, [n for pair in pairs for n in pair])
    for a, b in pairs:
        for src, dst in _same_nic(ranks, a, b):
            traffic.flows.append(_flow(job, src, dst, len(traffic.flows), mtu))
            if job.bidirectional:
                traffic.flows.append(_flow(job, dst, src, len(traffic.flows), mtu))


def _known(names: Sequence[str], wanted: Sequence[str]) -> None:
    strange = sorted(set(wanted) - set(names))
    if strange:
        raise UsageError(f"{', '.join(strange)}: no such server takes part", hint=f"servers: {', '.join(names[:20])}")


def _star(traffic: Traffic, job: s._Stream, ranks: Sequence[Rank], hub: str, mtu: int, *, inward: bool) -> None:
    names = list(dict.fromkeys(r.server for r in ranks))
    centre = hub or names[0]
    _known(names, [centre])
    for other in names:
        if other == centre:
            continue
        a, b = (other, centre) if inward else (centre, other)
        for src, dst in _same_nic(ranks, a, b):
            traffic.flows.append(_flow(job, src, dst, len(traffic.flows), mtu))


def permutation(traffic: Traffic, job: s.Permutation, ranks: Sequence[Rank], rng: random.Random, mtu: int) -> None:
    """A random derangement of the NICs, to other servers, behind other leaves where that can be."""
    nics = list({(r.server, r.nic): r for r in ranks}.values())
    if len({r.server for r in nics}) < 2:
        raise UsageError("permutation needs two servers")

    def apart(a: Rank, b: Rank) -> int:
        """0: as wanted; 1: behind one leaf; 2: in one server, which is no traffic at all."""
        return 2 if a.server == b.server else int(job.across and a.leaf == b.leaf)

    targets = list(nics)
    rng.shuffle(targets)
    # Exchange targets until nobody is worse off than need be.
    for _ in range(50):
        bad = [i for i, a in enumerate(nics) if apart(a, targets[i])]
        if not bad:
            break
        for i in bad:
            for j in rng.sample(range(len(nics)), min(len(nics), 64)):
                now = apart(nics[i], targets[i]) + apart(nics[j], targets[j])
                then = apart(nics[i], targets[j]) + apart(nics[j], targets[i])
                if then < now:
                    targets[i], targets[j] = targets[j], targets[i]
                    break
    for src, dst in zip(nics, targets, strict=True):
        if src.server != dst.server:
            traffic.flows.append(_flow(job, src, dst, len(traffic.flows), mtu))


def storage_read(traffic: Traffic, job: s.StorageRead, ranks: Sequence[Rank], mtu: int) -> None:
    """Every client NIC reads from a storage server's."""
    last = list(dict.fromkeys(r.server for r in ranks))[-1]
    stores, clients = _split(ranks, job.storage or [last], "storage")
    for n, client in enumerate(clients):
        same = [r for r in stores if r.rail == client.rail] or stores
        traffic.flows.append(_flow(job, client, same[n % len(same)], n, mtu, Verb.READ))


def traffic_of(job: s.AnyJob, ranks: Sequence[Rank], seed: int, first: int = 0, mtu: int = 4096) -> Traffic:
    """The messages of a job, numbered from ``first`` on. Raises UsageError where ranks do not fit the pattern."""
    traffic = Traffic(job.pattern, len(ranks))
    rng = random.Random(f"{seed}/{job.pattern}/{first}")
    if isinstance(job, s.BackgroundTcp):
        names = list(dict.fromkeys(r.server for r in ranks))
        pairs = job.pairs or [[names[0], names[-1]]]
        _known(names, [n for pair in pairs for n in pair])
        rate = parse_rate(job.rate, 1500) if job.rate else 0.0
        traffic.tcp = [Tcp(a, b, job.streams, rate, job.start, job.duration / 1e9) for a, b in pairs]
        return traffic
    build = _Build(traffic, job, first)
    match job:
        case s.RingAllreduce():
            ring_allreduce(traffic, build, job, ranks)
        case s.TreeAllreduce():
            tree_allreduce(traffic, build, job, ranks)
        case s.ButterflyAllreduce():
            butterfly_allreduce(traffic, build, job, ranks)
        case s.Allgather():
            allgather(traffic, build, job, ranks)
        case s.ReduceScatter():
            reduce_scatter(traffic, build, job, ranks)
        case s.AllToAll():
            all_to_all(traffic, build, job, ranks)
        case s.Pipeline():
            pipeline(traffic, build, job, ranks)
        case s.ParameterServer():
            parameter_server(traffic, build, job, ranks)
        case s.Inference():
            inference(traffic, build, job, ranks, rng)
        case s.FineTune():
            fine_tune(traffic, build, job, ranks)
        case s.PointToPoint():
            point_to_point(traffic, job, ranks, mtu)
        case s.Incast():
            _star(traffic, job, ranks, job.to, mtu, inward=True)
        case s.Outcast():
            _star(traffic, job, ranks, job.sender, mtu, inward=False)
        case s.Permutation():
            permutation(traffic, job, ranks, rng, mtu)
        case s.StorageRead():
            storage_read(traffic, job, ranks, mtu)
    return traffic
