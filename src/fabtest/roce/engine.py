"""The engine: queue pairs of some servers in one event loop, over rings and raw sockets in the servers' namespaces.

One turn: take what arrived at each server, let the transport answer it, take what queue pairs may send, compose all
frames together and send them. Nothing in a node takes part; a namespace is entered only to open sockets.
"""

from __future__ import annotations

import heapq
import select
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from fabtest.errors import FabtestError
from fabtest.roce.compose import Composer, Port
from fabtest.roce.dcqcn import PROFILES, RateController
from fabtest.roce.frames import Flow, header, icrc_is_right, parse
from fabtest.roce.opcodes import CNP, EXTENSION_BYTES, Op, Transport
from fabtest.roce.plan import Planned, QpSpec, StreamSpec, TransportSpec, WorkerPlan
from fabtest.roce.receiver import Receiver
from fabtest.roce.ring import NETWORK, Received
from fabtest.roce.transport import Arrived, Counters, Message, Packet, Reply, Requester, Responder, Verb
from fabtest.runtime.namespaces import inside

#: Packets a queue pair may put on the wire in one turn; a reply to a READ counts as well.
QUANTUM = 32
#: Frames of one turn, about: then what arrived is looked at again.
TURN = 1024
#: After the order to stop, for so long what is on its way is taken in.
SETTLE_NS = 100_000_000
#: One in so many frames, at random, is kept whole and has its ICRC checked.
ICRC_SAMPLE = 64
#: Packets with every so many-th PSN have their latency taken, the first so many of a queue pair.
LATENCY_EVERY, MOST_LATENCIES = 16, 4096
#: Timers are looked at this often.
TICK_NS = 2_000_000
#: A queue pair with another path moves to it after so many timeouts without progress (automatic path migration).
MIGRATE_AFTER = 2
_A = 1 << 31
_READ_RESPONSES = frozenset(range(Op.RDMA_READ_RESPONSE_FIRST, Op.RDMA_READ_RESPONSE_ONLY + 1))
_REQUESTS = frozenset(range(Op.RDMA_READ_REQUEST))
_MIDDLES = frozenset({int(Op.SEND_MIDDLE), int(Op.RDMA_WRITE_MIDDLE)})
_UC = int(Transport.UC)


@dataclass(slots=True)
class Flight:
    """Unreliable connected service as its receiver sees it. Reordering after RFC 4737: a PSN below the next one."""

    expected: int
    received: int = 0
    reordered: int = 0
    duplicates: int = 0
    highest: int = -1
    missing: set[int] = field(default_factory=set)
    last_ns: int = 0
    longest_gap_ns: int = 0


class QueuePair:
    """One end of a queue pair, with what the engine keeps about it."""

    __slots__ = (
        "acked_ns", "came", "cnp_due_ns", "counters", "done_ns", "fcts", "flight", "in_ready", "left",
        "longest_gap_ns", "next_ns",
        "node", "path", "path_of", "rate", "remote", "replies", "requester", "responder", "rtt_ns", "rtt_sequence",
        "rtts", "spec", "stream", "templates", "uc_next",
    )  # fmt: skip

    def __init__(self, spec: QpSpec, node: Node, transport: TransportSpec) -> None:
        self.spec = spec
        self.node = node
        self.counters = Counters()
        self.requester = Requester(
            first_psn=spec.psn, mtu=transport.mtu, window=transport.window, ack_every=transport.ack_every,
            timeout_ns=transport.timeout_ns, retry_limit=transport.retry_limit, counters=self.counters,
        )  # fmt: skip
        self.responder = Responder(spec.peer_psn, transport.mtu, counters=self.counters)
        self.path = spec.pair % len(spec.paths)
        self.path_of = {node.index[p.interface]: n for n, p in enumerate(spec.paths)}
        self.remote = frozenset(int.from_bytes(p.dst.packed[-4:], "big") for p in spec.paths)
        self.templates: dict[tuple[int, ...], int] = {}
        self.replies: deque[tuple[int, Reply]] = deque()
        self.rate: RateController | None = None
        self.stream: Stream | None = None
        self.next_ns = 0
        self.cnp_due_ns = 0
        self.acked_ns = 0
        self.longest_gap_ns = 0
        self.rtt_sequence = -1
        self.rtt_ns = 0
        self.rtts = array("q")
        #: PSN -> when it left for the first time, and when it arrived for the first time.
        self.left: dict[int, int] = {}
        self.came: dict[int, int] = {}
        self.in_ready = False
        self.uc_next = spec.psn
        self.flight: Flight | None = None
        self.fcts = array("q")
        self.done_ns = 0


@dataclass(slots=True)
class Stream:
    """A stream in progress."""

    spec: StreamSpec
    posted: int = 0
    done: int = 0


class Node:
    """A server: its ring, its socket, its interfaces."""

    def __init__(self, plan: WorkerPlan, name: str, composer: Composer, slots: int) -> None:
        self.name = name
        netns = plan.netns[name]
        names = list(plan.interfaces[name])
        with inside(netns):
            self.index = {n: socket.if_nametoindex(n) for n in names}
        self.port = composer.add_port(Port(netns, visible=plan.visible))
        self.receiver = Receiver(netns, names, slots=slots, sample=ICRC_SAMPLE)
        self.qps: dict[int, QueuePair] = {}
        self.foreign = 0
        self.received = 0
        self.icrc_wrong = 0
        self.icrc_checked = 0
        self.rail_of = {self.index[i]: rail for i, rail in plan.rails.get(name, {}).items()}
        #: (bin, rail) -> bytes received
        self.bins: dict[tuple[int, int], int] = {}


@dataclass(slots=True)
class Snapshot:
    """How far it is, for those who watch."""

    elapsed_ns: int
    received: int
    bytes_rx: int
    retransmits: int
    cnp: int
    messages: int
    failed: int
    rails: dict[int, int]
    done: bool = False


class Engine:
    """Runs a plan. ``clock`` is CLOCK_MONOTONIC in nanoseconds, the same in every process."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan
        self.composer = Composer(plan.family)
        self.nodes: dict[str, Node] = {}
        slots = max(2048, min(16384, (1 << 18) // max(1, len(plan.netns))))
        try:
            for name in plan.netns:
                self.nodes[name] = Node(plan, name, self.composer, slots)
        except BaseException:
            self.close()
            raise
        self._overhead = (20 if plan.family == 4 else 40) + 8 + 12 + 4
        self.by_pair: dict[tuple[int, str], QueuePair] = {}
        profile = PROFILES.get(plan.transport.congestion_control)
        for spec in plan.qps:
            node = self.nodes[spec.server]
            qp = QueuePair(spec, node, plan.transport)
            if profile is not None:  # of a responder: for its READ responses
                tuned = profile.at(plan.transport.line_rate * plan.transport.dilation, plan.transport.dilation)
                qp.rate = RateController(tuned, plan.transport.line_rate)
            node.qps[spec.qpn] = qp
            self.by_pair[spec.pair, spec.server] = qp
        self._requesting = [qp for qp in self.by_pair.values() if qp.spec.requester]
        self._templates: list[int] = []
        self._words: list[int] = []
        self._seconds: list[int] = []
        self._leaving: list[tuple[QueuePair, int]] = []
        self._ready: deque[QueuePair] = deque()
        self._paced: list[tuple[int, int, QueuePair]] = []
        self._later: list[tuple[int, int, Planned]] = []
        self._order = 0
        self._waiting: dict[int, int] = {}
        self._waiters: dict[int, list[Planned]] = {}
        self._events: set[int] = set()
        self.arrived = 0
        self.local_bytes = 0
        self.records: dict[int, tuple[int, int]] = {}
        self.arrivals: dict[int, int] = {}
        self._open_messages = 0
        #: Queue pairs whose stream of so many bytes is not through.
        self._sized: set[QueuePair] = set()
        self._next_tick = 0
        self.start_ns = 0
        self.done_ns = 0
        #: Whether the plan's limit ended the run.
        self.cut = False
        self.failures: list[str] = []
        self.starved_ns = 0
        self._poll = select.poll()
        for node in self.nodes.values():
            self._poll.register(node.receiver.ring.fileno(), select.POLLIN)

    # ------------------------------------------------------------------------------------------------ templates

    def _template(
        self, qp: QueuePair, path: int, opcode: int, payload: int, extra: tuple[int, ...] = (), second: int = 12,
        dscp: int = -1, ecn: int = -1,
    ) -> int:  # fmt: skip
        key = (path, opcode, payload, *extra)
        found = qp.templates.get(key)
        if found is not None:
            return found
        t = self.plan.transport
        way = qp.spec.paths[path]
        flow = Flow(way.src, way.dst, qp.spec.src_port, qp.spec.peer_qpn, t.dscp if dscp < 0 else dscp)
        size = 16 if opcode == CNP else EXTENSION_BYTES[opcode]  # a CNP has 16 reserved bytes
        if size >= 16 and extra:
            va, dma = extra
            body = struct.pack("!QII", va, 1, dma) + bytes(size - 16)
        else:
            body = bytes(size)
        head = header(
            flow, _mac(way.src_mac), _mac(way.dst_mac), opcode, payload, extended=body,
            ecn=t.ecn if ecn < 0 else ecn, becn=opcode == CNP,
        )  # fmt: skip
        number = self.composer.template(head, payload, qp.node.port, qp.node.index[way.interface], second)
        qp.templates[key] = number
        return number

    def _put(self, template: int, word: int, second: int = 0) -> None:
        self._templates.append(template)
        self._words.append(word)
        self._seconds.append(second)

    def _flush(self) -> None:
        if self._templates:
            if self._leaving:
                now = time.monotonic_ns()
                for qp, psn in self._leaving:
                    qp.left[psn] = now
                self._leaving.clear()
            self.composer.send(self._templates, self._words, self._seconds)
            self._templates.clear()
            self._words.clear()
            self._seconds.clear()

    # ------------------------------------------------------------------------------------------------ receiving

    def _receive(self, node: Node, batch: Received, now: int) -> None:
        ops, qpns, psns = batch.opcode.tolist(), batch.dqpn.tolist(), batch.psn.tolist()
        asks, words, lengths = batch.ack_request.tolist(), batch.aeth.tolist(), batch.length.tolist()
        tos, sources, indexes = batch.tos.tolist(), batch.src.tolist(), batch.ifindex.tolist()
        flags = batch.flags.tolist()
        qps, overhead = node.qps, self._overhead
        node.received += len(ops)
        for i, op in enumerate(ops):
            qp = qps.get(qpns[i])
            if qp is None or sources[i] not in qp.remote:
                node.foreign += 1
                continue
            if op == 0x11:
                self._acknowledged(qp, psns[i], words[i] >> 24, now)
                continue
            if op == CNP:
                qp.counters.cnp_rx += 1
                if qp.rate is not None:
                    qp.rate.cnp(now)
                continue
            if op not in EXTENSION_BYTES:
                node.foreign += 1
                continue
            pad = flags[i] >> 4 & 3
            length = lengths[i] - overhead - EXTENSION_BYTES[op] - pad
            if length < 0:
                node.foreign += 1
                continue
            if tos[i] & 3 == 3:
                qp.counters.ecn_ce_rx += 1
                if now >= qp.cnp_due_ns:
                    qp.cnp_due_ns = now + self.plan.transport.cnp_interval_ns
                    qp.counters.cnp_tx += 1
                    path = qp.path_of.get(indexes[i], 0)
                    t = self.plan.transport
                    self._put(self._template(qp, path, CNP, 0, dscp=t.cnp_dscp, ecn=0), 0)
            if op in _READ_RESPONSES or op == Op.ATOMIC_ACKNOWLEDGE:
                if qp.requester.respond(op, psns[i], now):
                    qp.counters.bytes_rx += length
                    self._progressed(qp, now)
                self._wake(qp)
                continue
            if op & 0xE0 == _UC:
                self._unreliable(qp, op, psns[i], length, now)
                continue
            responder = qp.responder
            if op in _MIDDLES and not asks[i] and responder.takes_middle(psns[i], length):
                responder.run(1, length)
                continue
            packet = Arrived(op, psns[i], asks[i], length)
            if EXTENSION_BYTES[op] >= 16:
                row = batch.rows[i]
                at = NETWORK + self._overhead - 4
                packet.va, packet.rkey, packet.dma_length = struct.unpack("!QII", row[at : at + 16].tobytes())
                if EXTENSION_BYTES[op] == 20:
                    packet.immediate = int.from_bytes(row[at + 16 : at + 20].tobytes(), "big")
            else:
                packet.immediate = words[i]
            replies = responder.receive(packet)
            if replies:
                path = qp.path_of.get(indexes[i], 0)
                for reply in replies:
                    # An acknowledgement must not overtake the responses of a READ before it.
                    if reply.opcode == Op.ACKNOWLEDGE and not qp.replies:
                        template = self._template(qp, path, Op.ACKNOWLEDGE, 0)
                        self._put(template, reply.psn, reply.syndrome << 24 | reply.msn)
                    else:
                        qp.replies.append((path, reply))
                if qp.replies:
                    self._wake(qp)
            if responder.delivered:
                for number in responder.delivered:
                    if number >= 0:
                        self._event(number, now, arrival=True)
                responder.delivered.clear()
        for i in np.flatnonzero(batch.psn % LATENCY_EVERY == 0).tolist():
            qp = qps.get(qpns[i])
            ours = qp is not None and sources[i] in qp.remote and ops[i] & 0x1F in _REQUESTS and ops[i] != CNP
            if qp is not None and ours and len(qp.came) < MOST_LATENCIES:
                qp.came.setdefault(psns[i], int(batch.time_ns[i]))
        for frame in node.receiver.ring.sampled():
            sampled = parse(frame)
            known = qps.get(sampled.dqpn) if sampled is not None else None
            if sampled is not None and known is not None and int.from_bytes(sampled.src[-4:], "big") in known.remote:
                node.icrc_checked += 1
                node.icrc_wrong += not icrc_is_right(frame)
        rails: dict[int, int] = {}
        for index, length in zip(indexes, lengths, strict=True):
            rails[index] = rails.get(index, 0) + length
        slot = (now - self.start_ns) // self.plan.bin_ns
        for index, total in rails.items():
            key = (slot, node.rail_of.get(index, 0))
            node.bins[key] = node.bins.get(key, 0) + total

    def _unreliable(self, qp: QueuePair, op: int, psn: int, length: int, now: int) -> None:
        flight = qp.flight
        if flight is None:
            flight = qp.flight = Flight(qp.spec.peer_psn)
        ahead = (psn - flight.expected) & 0xFFFFFF
        qp.counters.data_rx += 1
        qp.counters.bytes_rx += length
        if ahead < 0x800000:
            if ahead:
                qp.counters.sequence_errors += 1
                if ahead < 65536:
                    flight.missing.update((flight.expected + n) & 0xFFFFFF for n in range(ahead))
            flight.expected = (psn + 1) & 0xFFFFFF
            flight.received += 1
        elif psn in flight.missing:
            flight.missing.discard(psn)
            flight.received += 1
            flight.reordered += 1
        else:
            flight.duplicates += 1
        if flight.last_ns:
            flight.longest_gap_ns = max(flight.longest_gap_ns, now - flight.last_ns)
        flight.last_ns = now

    def _acknowledged(self, qp: QueuePair, psn: int, syndrome: int, now: int) -> None:
        requester = qp.requester
        before = requester.unacknowledged
        requester.acknowledge(psn, syndrome, now)
        if requester.unacknowledged != before:
            self._progressed(qp, now)
        if requester.failed:
            self._failed(qp)
        self._wake(qp)

    def _progressed(self, qp: QueuePair, now: int) -> None:
        requester = qp.requester
        if qp.acked_ns:
            qp.longest_gap_ns = max(qp.longest_gap_ns, now - qp.acked_ns)
        qp.acked_ns = now if requester.unacknowledged < requester.next else 0
        if qp.rtt_sequence >= 0 and requester.unacknowledged > qp.rtt_sequence:
            qp.rtts.append(now - qp.rtt_ns)
            qp.rtt_sequence = -1
        for message in requester.completed:
            self._open_messages -= 1
            if qp.stream is not None:
                qp.fcts.append(now - message.posted_ns)
                qp.stream.done += 1
                qp.done_ns = now
                self._feed(qp, now)
                if qp in self._sized and qp.stream.done * qp.stream.spec.length >= qp.stream.spec.total:
                    self._sized.discard(qp)
            else:
                self.records[message.number] = (message.posted_ns, now)
                self._event(message.number, now, arrival=False)
        requester.completed.clear()

    def _failed(self, qp: QueuePair) -> None:
        text = f"{qp.spec.server} -> {qp.spec.peer}, QP {qp.spec.qpn:#x}: {qp.requester.failed}"
        if text not in self.failures:
            self.failures.append(text)
            self._open_messages -= len(qp.requester.pending())
            self._sized.discard(qp)
            if qp.acked_ns:
                qp.longest_gap_ns = max(qp.longest_gap_ns, time.monotonic_ns() - qp.acked_ns)

    # ------------------------------------------------------------------------------------------------ sending

    def _wake(self, qp: QueuePair) -> None:
        if not qp.in_ready:
            qp.in_ready = True
            self._ready.append(qp)

    def _send_ready(self, now: int) -> None:
        for _ in range(len(self._ready)):
            if len(self._templates) >= TURN:
                break
            qp = self._ready.popleft()
            qp.in_ready = False
            again = self._send_replies(qp, now)
            if self._send_requests(qp, now) or again:
                self._wake(qp)

    def _send_replies(self, qp: QueuePair, now: int) -> bool:
        """Whether there are more that may go at once. READ responses keep to the rate of congestion control."""
        if not qp.replies:
            return False
        paced = qp.rate is not None and not qp.spec.requester
        quantum, rate, size = min(QUANTUM, len(qp.replies)), 0.0, 0
        if paced and qp.replies[0][1].opcode in _READ_RESPONSES:
            rate = self._rate(qp, now)
            if qp.next_ns > now:
                self._pace(qp, qp.next_ns)
                return False
            gap = self.plan.transport.mtu * 8e9 / rate
            quantum = max(1, min(quantum, int((now - qp.next_ns) / gap) + 1))
        for _ in range(quantum):
            path, reply = qp.replies.popleft()
            size += reply.length
            second = reply.syndrome << 24 | reply.msn if reply.opcode != Op.RDMA_READ_RESPONSE_MIDDLE else 0
            template = self._template(qp, path, reply.opcode, reply.length)
            self._put(template, reply.psn, second)
            qp.counters.bytes_tx += reply.length
        if rate and qp.rate is not None:
            qp.rate.sent(size)
            most = int(QUANTUM * self.plan.transport.mtu * 8e9 / rate)
            qp.next_ns = max(qp.next_ns, now - most) + int(size * 8e9 / rate)
            if qp.replies and qp.next_ns > now:
                self._pace(qp, qp.next_ns)
                return False
        return bool(qp.replies)

    def _send_requests(self, qp: QueuePair, now: int) -> bool:
        """Whether it may send more at once."""
        stream = qp.stream
        if stream is not None and not stream.spec.reliable:
            return self._send_unreliable(qp, stream, now)
        requester = qp.requester
        if not requester.ready(now):
            if requester.not_before > now and requester.next < requester.end:
                self._pace(qp, requester.not_before)
            return False
        rate = self._rate(qp, now)
        quantum = QUANTUM
        if rate:
            if qp.next_ns > now:
                self._pace(qp, qp.next_ns)
                return False
            # What has come due since; after a pause no more than a quantum.
            gap = requester.mtu * 8e9 / rate
            quantum = max(1, min(QUANTUM, int((now - qp.next_ns) / gap) + 1))
        first, fresh = requester.next, requester.highest
        packets = requester.take(quantum, now)
        if not packets:
            return False
        self._sample(qp, first, fresh, requester.next)
        for packet in packets:
            self._request(qp, packet)
        if qp.rtt_sequence < 0:
            qp.rtt_sequence, qp.rtt_ns = requester.next - 1, now
        if not qp.acked_ns:
            qp.acked_ns = now
        if rate and packets[0][0] == Op.RDMA_READ_REQUEST:
            # Its data is the responder's: congestion control of that end paces it.
            rate = stream.spec.rate if stream is not None else 0.0
        if rate:
            size = sum(p[3] for p in packets)
            if qp.rate is not None:
                qp.rate.sent(size)
            step = int(size * 8e9 / rate)
            qp.next_ns = max(qp.next_ns, now - int(QUANTUM * requester.mtu * 8e9 / rate)) + step
            if qp.next_ns > now:
                if requester.ready(now):
                    self._pace(qp, qp.next_ns)
                return False
        return requester.ready(now)

    def _sample(self, qp: QueuePair, first: int, fresh: int, stop: int) -> None:
        """Packets ``first`` to ``stop`` leave; those from ``fresh`` on do so for the first time. Of a packet that is
        sent again it is not known which one arrived."""
        for sequence in range(first + -first % LATENCY_EVERY, stop, LATENCY_EVERY):
            if sequence < fresh:
                qp.left.pop(sequence & 0xFFFFFF, None)
            elif len(qp.left) < MOST_LATENCIES:
                self._leaving.append((qp, sequence & 0xFFFFFF))

    def _rate(self, qp: QueuePair, now: int) -> float:
        limit = qp.stream.spec.rate if qp.stream is not None else 0.0
        if qp.rate is not None:
            qp.rate.advance(now)
            limit = min(limit, qp.rate.rate) if limit else qp.rate.rate
        return limit

    def _request(self, qp: QueuePair, packet: Packet) -> None:
        opcode, psn, ask, length, offset, message = packet
        word = psn | _A if ask else psn
        if opcode in (0x0A, 0x0B, 0x06):
            template = self._template(
                qp, qp.path, opcode, length, (message.va, message.length), 28 if opcode == 0x0B else 12
            )
            self._put(template, word, message.immediate or 0 if opcode == 0x0B else 0)
        elif opcode == Op.RDMA_READ_REQUEST:
            self._put(self._template(qp, qp.path, opcode, 0, (message.va + offset, length)), word)
        elif opcode in (0x03, 0x05, 0x09):
            self._put(self._template(qp, qp.path, opcode, length), word, message.immediate or 0)
        else:
            self._put(self._template(qp, qp.path, opcode, length), word)

    def _send_unreliable(self, qp: QueuePair, stream: Stream, now: int) -> bool:
        spec, mtu = stream.spec, self.plan.transport.mtu
        elapsed = now - self.start_ns
        if elapsed < spec.at_ns:
            self._pace(qp, self.start_ns + spec.at_ns)
            return False
        if elapsed >= spec.until_ns or (spec.total and qp.counters.bytes_tx >= spec.total):
            self._sized.discard(qp)
            qp.done_ns = qp.done_ns or now
            return False
        size = min(spec.length, mtu)
        gap = size * 8e9 / spec.rate if spec.rate else 0.0
        sent = qp.counters.data_tx
        due = int((elapsed - spec.at_ns) / gap) + 1 - sent if gap else QUANTUM
        template = self._template(qp, qp.path, _UC | Op.SEND_ONLY, size)
        first = qp.uc_next
        for _ in range(min(due, QUANTUM)):
            self._put(template, qp.uc_next & 0xFFFFFF)
            qp.uc_next += 1
        self._sample(qp, first, first, qp.uc_next)
        count = max(0, min(due, QUANTUM))
        qp.counters.data_tx += count
        qp.counters.bytes_tx += count * size
        if gap and due <= QUANTUM:
            self._pace(qp, self.start_ns + spec.at_ns + int((sent + count) * gap))
            return False
        return True

    def _pace(self, qp: QueuePair, when: int) -> None:
        self._order += 1
        heapq.heappush(self._paced, (when, self._order, qp))

    # ------------------------------------------------------------------------------------------------ messages

    def _event(self, number: int, now: int, *, arrival: bool) -> None:
        """A message arrived at, or was completed by, one of our servers: those that wait for it may go."""
        if arrival:
            if number in self.arrivals:
                return
            self.arrivals[number] = now
            self.arrived += 1
        for message in self._waiters.pop(number, ()):
            self._waiting[message.number] -= 1
            if not self._waiting[message.number]:
                del self._waiting[message.number]
                self._post(message, now)
        self._events.add(number)

    def _post(self, message: Planned, now: int) -> None:
        if message.pair < 0:
            self.local_bytes += message.length
            self.records[message.number] = (now, now)
            self._event(message.number, now, arrival=False)
            return
        server = self._server[message.pair]
        qp = self.by_pair[message.pair, server]
        if qp.requester.failed:
            qp.counters.messages_failed += 1
            return
        immediate = message.number if message.verb is not Verb.READ else None
        qp.requester.post(Message(message.number, message.verb, message.length, immediate, posted_ns=now))
        self._open_messages += 1
        self._wake(qp)

    def _feed(self, qp: QueuePair, now: int) -> None:
        """The next messages of a stream."""
        stream = qp.stream
        if stream is None or not stream.spec.reliable or qp.requester.failed:
            return
        spec = stream.spec
        while stream.posted - stream.done < spec.outstanding and now - self.start_ns < spec.until_ns:
            if spec.total and stream.posted * spec.length >= spec.total:
                break
            qp.requester.post(Message(-1 - stream.posted, spec.verb, spec.length, None, posted_ns=now))
            stream.posted += 1
            self._open_messages += 1
        self._wake(qp)

    def _begin(self, now: int) -> None:
        self._server = {qp.spec.pair: qp.spec.server for qp in self._requesting}
        for message in self.plan.messages:
            waits = [n for n in message.after if n not in self._events]
            if message.at_ns:
                self._order += 1
                # Its time counts as one of the things it waits for.
                waits.append(-1 - message.number)
                heapq.heappush(self._later, (self.start_ns + message.at_ns, self._order, message))
            if waits:
                self._waiting[message.number] = len(waits)
                for n in waits:
                    self._waiters.setdefault(n, []).append(message)
        started = [m for m in self.plan.messages if not m.after and not m.at_ns]
        for message in started:
            self._post(message, now)
        for pair, _, _ in self.plan.unreliable:
            for server in self.nodes:
                found = self.by_pair.get((pair, server))
                if found is not None and not found.spec.requester:
                    found.flight = Flight(found.spec.peer_psn)
        for spec in self.plan.streams:
            qp = self.by_pair[spec.pair, self._server[spec.pair]]
            qp.stream = Stream(spec)
            if spec.total:
                self._sized.add(qp)
            self._pace(qp, self.start_ns + spec.at_ns)

    # ------------------------------------------------------------------------------------------------ the loop

    def run(
        self, start_ns: int, *, watch: Callable[[Snapshot], None], stopped: Callable[[], bool]
    ) -> None:  # fmt: skip
        """Until told to stop, or the plan's limit. ``watch`` is told now and then how far it is; when everything of its
        own is done the engine goes on to serve the others."""
        clock = time.monotonic_ns
        self.start_ns = start_ns
        while clock() < start_ns:
            time.sleep(min(0.002, max(0.0, (start_ns - clock()) / 1e9)))
        now = clock()
        self._begin(now)
        self._next_tick = now
        limit = start_ns + self.plan.limit_ns
        streams_end = max((start_ns + s.until_ns for s in self.plan.streams if not s.total), default=0)
        watched = looked = now
        nodes = list(self.nodes.values())
        turn_ended = now
        done = told = False
        while True:
            got = False
            for node in nodes:
                batch = node.receiver.take(1024)
                if batch is not None:
                    now = clock()
                    self._receive(node, batch, now)
                    node.receiver.ring.release()
                    got = True
            now = clock()
            self.starved_ns = max(self.starved_ns, now - turn_ended)
            while self._later and self._later[0][0] <= now:
                self._event(-1 - heapq.heappop(self._later)[2].number, now, arrival=False)
            while self._paced and self._paced[0][0] <= now:
                qp = heapq.heappop(self._paced)[2]
                self._feed(qp, now)
                self._wake(qp)
            if now >= self._next_tick:
                self._tick(now)
            self._send_ready(now)
            self._flush()
            if not done and self._done(now, streams_end):
                done = True
                self.done_ns = now
            if now - looked > 20_000_000:
                looked = now
                if now - watched > 200_000_000 or (done and not told):
                    watched, told = now, done
                    watch(self.snapshot(now, done))
                if stopped():
                    break
            turn_ended = clock()
            if now > limit:
                self.cut = not done
                break
            if not got and not self._ready:
                until = min(self._next_tick, self._paced[0][0] if self._paced else now + TICK_NS)
                wait_ms = max(0, until - clock()) / 1e6
                if wait_ms > 0.05:
                    self._poll.poll(wait_ms)
                    turn_ended = clock()
        # A stream that fell silent before its end was out until then.
        for pair, at_ns, until_ns in self.plan.unreliable:
            for server in self.nodes if until_ns < 1 << 60 else ():
                end_of_pair = self.by_pair.get((pair, server))
                flight = end_of_pair.flight if end_of_pair is not None else None
                if flight is not None:
                    silent = min(now, start_ns + until_ns) - (flight.last_ns or start_ns + at_ns)
                    flight.longest_gap_ns = max(flight.longest_gap_ns, silent)
        # What is on its way still comes, and is answered: an acknowledgement of ours may have been lost.
        end = clock() + SETTLE_NS
        while clock() < end:
            for node in nodes:
                batch = node.receiver.take(1024)
                if batch is not None:
                    self._receive(node, batch, clock())
                    node.receiver.ring.release()
            self._send_replies_only()
            self._flush()
            self._poll.poll(5)

    def _send_replies_only(self) -> None:
        for qp in self.by_pair.values():
            if qp.replies:
                self._send_replies(qp, time.monotonic_ns())

    def _done(self, now: int, streams_end: int) -> bool:
        if now < streams_end or self._open_messages > 0 or self._later or self._sized:
            return False
        if self.failures:
            # What depends on a failed message never starts.
            return not self._ready
        return not self._waiting and self.arrived >= self.plan.expected

    def _tick(self, now: int) -> None:
        self._next_tick = now + TICK_NS
        for qp in self._requesting:
            requester = qp.requester
            if requester.deadline and requester.expired(now):
                if requester.failed:
                    self._failed(qp)
                    continue
                if requester.retries >= MIGRATE_AFTER and len(qp.spec.paths) > 1:
                    qp.path = (qp.path + 1) % len(qp.spec.paths)
                    qp.counters.migrations += 1
                self._wake(qp)

    def snapshot(self, now: int, done: bool = False) -> Snapshot:
        """How far it is."""
        rails: dict[int, int] = {}
        for node in self.nodes.values():
            for (_, rail), count in node.bins.items():
                rails[rail] = rails.get(rail, 0) + count
        counters = [qp.counters for qp in self.by_pair.values()]
        return Snapshot(
            now - self.start_ns, sum(n.received for n in self.nodes.values()), sum(c.bytes_rx for c in counters),
            sum(c.retransmits for c in counters), sum(c.cnp_rx for c in counters),
            sum(c.messages_success for c in counters), len(self.failures), rails, done,
        )  # fmt: skip

    def result(self) -> WorkerResult:
        """What was counted."""
        return WorkerResult(
            [
                QpResult(
                    qp.spec.pair, qp.spec.server, asdict(qp.counters), qp.rtts, qp.fcts, qp.left, qp.came,
                    qp.longest_gap_ns, qp.path, qp.done_ns,
                    asdict(qp.flight) | {"missing": len(qp.flight.missing)} if qp.flight else None,
                )
                for qp in self.by_pair.values()
            ],
            self.records, self.arrivals, self.failures, self.local_bytes,
            {n.name: n.bins for n in self.nodes.values()},
            sum(n.foreign for n in self.nodes.values()), sum(n.receiver.ring.dropped() for n in self.nodes.values()),
            self.composer.lost, self.composer.sent, len(self._waiting),
            self.done_ns - self.start_ns if self.done_ns else 0, self.starved_ns,
            sum(n.icrc_checked for n in self.nodes.values()), sum(n.icrc_wrong for n in self.nodes.values()),
            self.cut,
        )  # fmt: skip

    def close(self) -> None:
        """Sockets and classifiers."""
        for node in self.nodes.values():
            try:
                node.receiver.close()
            except FabtestError:  # a node that has gone takes its classifier with it
                continue


@dataclass(slots=True)
class QpResult:
    """One end of a queue pair. ``left`` and ``came``: PSN -> CLOCK_MONOTONIC in ns of a sample of its packets.
    ``flight``: of unreliable service, what its receiver saw."""

    pair: int
    server: str
    counters: dict[str, int]
    rtts: array[int]
    fcts: array[int]
    left: dict[int, int]
    came: dict[int, int]
    longest_gap_ns: int
    path: int
    done_ns: int
    flight: dict[str, int] | None


@dataclass(slots=True)
class WorkerResult:
    """What one engine process counted. ``records``: message -> posted and completed (monotonic ns)."""

    qps: list[QpResult]
    records: dict[int, tuple[int, int]]
    arrivals: dict[int, int]
    failures: list[str]
    local_bytes: int
    bins: dict[str, dict[tuple[int, int], int]]
    foreign: int
    ring_drops: int
    send_drops: int
    sent: int
    never_started: int
    done_ns: int
    starved_ns: int
    icrc_checked: int
    icrc_wrong: int
    cut: bool


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
