"""A workload without a lab: its packets as they would leave and be answered on a network without delay or loss.

The transport is the one of the engine. A NIC port sends at its speed, one packet after the other, its queue pairs in
turn; a packet arrives ``LATENCY_NS`` after its last bit. The result is the same for a seed, to the byte.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

from fabtest.errors import UsageError
from fabtest.model import Fabric
from fabtest.roce.arena import payload_bytes
from fabtest.roce.frames import Flow, finish, header
from fabtest.roce.opcodes import EXTENSION_BYTES, Op, Transport
from fabtest.roce.plan import Planned, QpSpec, StreamSpec
from fabtest.roce.transport import Arrived, Message, Reply, Requester, Responder, Verb
from fabtest.workload.compile import Compiled

#: Through leaf, spine and leaf, about.
LATENCY_NS = 3_000
#: Preamble, FCS and inter-frame gap, beside the frame.
WIRE_OVERHEAD = 24


class _Qp:
    def __init__(self, spec: QpSpec, compiled: Compiled) -> None:
        t = compiled.transport
        self.spec = spec
        self.requester = Requester(
            first_psn=spec.psn, mtu=t.mtu, window=t.window, ack_every=t.ack_every, timeout_ns=1 << 62
        )
        self.responder = Responder(spec.peer_psn, t.mtu)
        self.replies: deque[Reply] = deque()
        self.stream: StreamSpec | None = None
        self.posted = self.done = 0
        self.next_ns = 0
        self.psn = spec.psn


class _Nic:
    def __init__(self, speed: int) -> None:
        self.speed = speed
        self.turn: deque[_Qp] = deque()
        self.busy_until = 0
        self.waiting = False


class Schedule:
    """Packets of a compiled workload in the order of time: ``for time_ns, frame in Schedule(compiled, fabric)``."""

    def __init__(self, compiled: Compiled, fabric: Fabric, limit: int = 1_000_000) -> None:
        self._compiled = compiled
        self._limit = limit
        self._order = itertools.count()
        self._heap: list[tuple[int, int, str, Any]] = []
        speeds = {(s.name, p.name): p.speed for s in fabric.servers for p in s.ports}
        self._qps: dict[tuple[int, str], _Qp] = {}
        self._nics: dict[tuple[str, str], _Nic] = {}
        self._server = {p.number: p.src[0] for p in compiled.pairs}
        for pair in compiled.pairs:
            for end in (pair.requester, pair.responder):
                self._qps[pair.number, end.server] = _Qp(end, compiled)
                key = (end.server, end.paths[end.pair % len(end.paths)].interface)
                self._nics.setdefault(key, _Nic(speeds[key]))
        self._waiting: dict[int, int] = {}
        self._waiters: dict[int, list[Planned]] = {}
        self._events: set[int] = set()
        self.truncated = False

    def _push(self, when: int, what: str, data: Any) -> None:
        heapq.heappush(self._heap, (when, next(self._order), what, data))

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for message in self._compiled.messages:
            if message.after:
                self._waiting[message.number] = len(message.after)
                for n in message.after:
                    self._waiters.setdefault(n, []).append(message)
            else:
                self._push(message.at_ns, "post", message)
        for stream in self._compiled.streams:
            self._push(stream.at_ns, "stream", stream)
        count = 0
        while self._heap:
            now, _, what, data = heapq.heappop(self._heap)
            if what == "post":
                self._post(data, now)
            elif what == "stream":
                qp = self._qps[data.pair, self._server[data.pair]]
                qp.stream = data
                self._feed(qp, now)
            elif what == "wake":
                self._join(data, now)
            elif what == "arrive":
                sender, reply, request = data
                self._arrive(sender, reply, request, now)
            else:
                for frame in self._send(data, now):
                    yield now, frame
                    count += 1
                    if count >= self._limit:
                        self.truncated = True
                        return

    def _post(self, message: Planned, now: int) -> None:
        if message.pair < 0:
            self._event(message.number, now)
            return
        qp = self._qps[message.pair, message.server]
        immediate = message.number if message.verb is not Verb.READ else None
        qp.requester.post(Message(message.number, message.verb, message.length, immediate, posted_ns=now))
        self._join(qp, now)

    def _event(self, number: int, now: int) -> None:
        if number in self._events:
            return
        self._events.add(number)
        for message in self._waiters.pop(number, ()):
            self._waiting[message.number] -= 1
            if not self._waiting[message.number]:
                self._push(max(now, message.at_ns), "post", message)

    def _feed(self, qp: _Qp, now: int) -> None:
        stream = qp.stream
        assert stream is not None
        if not stream.reliable:
            self._join(qp, now)
            return
        while qp.posted - qp.done < stream.outstanding and now < stream.until_ns:
            if stream.total and qp.posted * stream.length >= stream.total:
                break
            qp.requester.post(Message(-1 - qp.posted, stream.verb, stream.length, posted_ns=now))
            qp.posted += 1
        self._join(qp, now)

    def _nic(self, qp: _Qp) -> _Nic:
        return self._nics[qp.spec.server, qp.spec.paths[qp.spec.pair % len(qp.spec.paths)].interface]

    def _join(self, qp: _Qp, now: int) -> None:
        nic = self._nic(qp)
        if qp not in nic.turn:
            nic.turn.append(qp)
        if not nic.waiting:
            nic.waiting = True
            self._push(max(now, nic.busy_until), "send", nic)

    def _send(self, nic: _Nic, now: int) -> list[bytes]:
        """The next packet of a NIC: answers first, then its queue pairs in turn."""
        nic.waiting = False
        for _ in range(len(nic.turn)):
            qp = nic.turn.popleft()
            frame = self._next(qp, now)
            if frame is None:
                continue
            nic.turn.append(qp)
            nic.busy_until = now + int((len(frame) + WIRE_OVERHEAD) * 8e9 / nic.speed)
            nic.waiting = True
            self._push(nic.busy_until, "send", nic)
            return [frame]
        return []

    def _next(self, qp: _Qp, now: int) -> bytes | None:
        t = self._compiled.transport
        if qp.replies:
            reply = qp.replies.popleft()
            aeth = struct.pack("!I", reply.syndrome << 24 | reply.msn)
            extended = aeth if EXTENSION_BYTES[reply.opcode] else b""
            frame = self._frame(qp, reply.opcode, reply.psn, reply.length, extended, False)
            self._push(now + LATENCY_NS, "arrive", (qp, reply, None))
            return frame
        stream = qp.stream
        if stream is not None and not stream.reliable:
            sent = (qp.psn - qp.spec.psn) & 0xFFFFFF
            if now >= stream.until_ns or (stream.total and sent * min(stream.length, t.mtu) >= stream.total):
                return None
            if now < qp.next_ns:
                self._push(qp.next_ns, "wake", qp)
                return None
            size = min(stream.length, t.mtu)
            qp.next_ns = max(qp.next_ns, stream.at_ns) + int(size * 8e9 / stream.rate)
            frame = self._frame(qp, Transport.UC | Op.SEND_ONLY, qp.psn & 0xFFFFFF, size, b"", False)
            qp.psn += 1
            return frame
        if stream is not None and stream.rate and now < qp.next_ns:
            self._push(qp.next_ns, "wake", qp)
            return None
        packets = qp.requester.take(1, now)
        if not packets:
            return None
        opcode, psn, ask, length, offset, message = packets[0]
        if stream is not None and stream.rate:
            qp.next_ns = max(qp.next_ns, now) + int(length * 8e9 / stream.rate)
        extended = b""
        if EXTENSION_BYTES[opcode] >= 16:
            extended = struct.pack("!QII", message.va + (offset if opcode == Op.RDMA_READ_REQUEST else 0), 1, (
                length if opcode == Op.RDMA_READ_REQUEST else message.length
            ))  # fmt: skip
        if EXTENSION_BYTES[opcode] in (4, 20):
            extended += struct.pack("!I", message.immediate or 0)
        payload = 0 if opcode == Op.RDMA_READ_REQUEST else length
        arrived = Arrived(
            opcode, psn, ask, payload, message.immediate or 0, message.va + offset, 1,
            length if opcode == Op.RDMA_READ_REQUEST else message.length,
        )  # fmt: skip
        self._push(now + LATENCY_NS, "arrive", (qp, None, arrived))
        return self._frame(qp, opcode, psn, payload, extended, ask)

    def _frame(self, qp: _Qp, opcode: int, psn: int, length: int, extended: bytes, ask: bool) -> bytes:
        t = self._compiled.transport
        path = qp.spec.paths[qp.spec.pair % len(qp.spec.paths)]
        flow = Flow(path.src, path.dst, qp.spec.src_port, qp.spec.peer_qpn, t.dscp)
        macs = (bytes.fromhex(path.src_mac.replace(":", "")), bytes.fromhex(path.dst_mac.replace(":", "")))
        head = header(flow, *macs, opcode, length, extended=extended, ack=ask, psn=psn, ecn=t.ecn)
        return finish(head, payload_bytes(length))

    def _arrive(self, sender: _Qp, reply: Reply | None, request: Arrived | None, now: int) -> None:
        qp = self._qps[sender.spec.pair, sender.spec.peer]
        if request is not None:
            qp.replies.extend(qp.responder.receive(request))
            for number in qp.responder.delivered:
                if number >= 0:
                    self._event(number, now)
            qp.responder.delivered.clear()
            if qp.replies:
                self._join(qp, now)
            return
        assert reply is not None
        requester = qp.requester
        if reply.opcode == Op.ACKNOWLEDGE:
            requester.acknowledge(reply.psn, reply.syndrome, now)
        else:
            requester.respond(reply.opcode, reply.psn, now)
        for message in requester.completed:
            if qp.stream is not None:
                qp.done += 1
            else:
                self._event(message.number, now)
        requester.completed.clear()
        if qp.stream is not None:
            self._feed(qp, now)
        elif requester.next < requester.end:
            self._join(qp, now)


def write_pcap(schedule: Schedule, out: Any) -> tuple[int, int]:
    """Write a nanosecond pcap; packets and the time of the last one in ns. Raises UsageError if there is none."""
    out.write(struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
    count = last = 0
    for last, frame in schedule:
        out.write(struct.pack("=IIII", last // 10**9, last % 10**9, len(frame), len(frame)))
        out.write(frame)
        count += 1
    if not count:
        raise UsageError("the workload sends no RoCEv2 packet")
    return count, last
