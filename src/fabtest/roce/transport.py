"""The transport of a reliable connected queue pair, without I/O: what to send next, and what to answer.

Rules are those of the InfiniBand Architecture Specification, volume 1, 9.7 (reliable service): cumulative
acknowledgement, NAK on a gap and go-back-N, duplicates acknowledged again, RNR NAK and retry, retry limits. Times are
nanoseconds on a clock the caller chooses. PSNs count without end inside (``sequence``) and modulo 2**24 on the wire.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from fabtest.roce.opcodes import FIRST, LAST, MIDDLE, ONLY, Op

PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1
HALF = 1 << (PSN_BITS - 1)

ACK = 0x1F
RNR_NAK = 0x20
NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS = 0x60, 0x61, 0x62
#: RNR NAK timer field -> nanoseconds (9.7.5.2.8, table 45).
RNR_TIMER_NS = tuple(
    int(ms * 1_000_000)
    for ms in (
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84,
        5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
    )
)  # fmt: skip
#: A READ or atomic the requester may have on its way at once (max_rd_atomic of common NICs).
OUTSTANDING_READS = 16


class Verb(StrEnum):
    """What a message does."""

    SEND = "send"
    WRITE = "write"
    READ = "read"
    FETCH_ADD = "fetch-add"
    COMPARE_SWAP = "compare-swap"


@dataclass(slots=True)
class Message:
    """A work request. ``immediate`` goes with the last packet of a SEND or WRITE; None: none. Sizes in bytes."""

    number: int
    verb: Verb
    length: int
    immediate: int | None = None
    va: int = 0
    rkey: int = 1
    swap: int = 0
    compare: int = 0
    posted_ns: int = 0
    first: int = -1
    packets: int = 0
    started_ns: int = -1
    retransmitted: bool = False


class Packet(tuple[int, int, bool, int, int, Message]):
    """(opcode, PSN, ack request, payload bytes, offset in the message, message): a packet to be put on the wire."""

    __slots__ = ()


@dataclass(slots=True)
class Counters:
    """Of one queue pair; names follow the Open Traffic Generator's RoCEv2 metrics."""

    data_tx: int = 0
    data_rx: int = 0
    bytes_tx: int = 0
    bytes_rx: int = 0
    ack_tx: int = 0
    ack_rx: int = 0
    nak_tx: int = 0
    nak_rx: int = 0
    cnp_tx: int = 0
    cnp_rx: int = 0
    ecn_ce_rx: int = 0
    retransmits: int = 0
    sequence_errors: int = 0
    duplicates: int = 0
    timeouts: int = 0
    rnr: int = 0
    messages_success: int = 0
    messages_failed: int = 0
    migrations: int = 0


def packets_of(length: int, mtu: int) -> int:
    """How many packets carry so many bytes; an empty message has one."""
    return max(1, -(-length // mtu))


class Requester:
    """The half of a queue pair that sends requests."""

    def __init__(
        self, *, first_psn: int, mtu: int = 1024, window: int = 64, ack_every: int = 16,
        timeout_ns: int = 200_000_000, retry_limit: int = 7, rnr_retry_limit: int = 7, counters: Counters | None = None,
    ) -> None:  # fmt: skip
        self.mtu = mtu
        #: Packets that may be on their way unacknowledged.
        self.window = window
        self.ack_every = ack_every
        self.timeout_ns = timeout_ns
        self.retry_limit = retry_limit
        self.rnr_retry_limit = rnr_retry_limit
        self.counters = counters or Counters()
        self.unacknowledged = first_psn
        self.next = first_psn
        self.end = first_psn
        #: What lies below has been sent before.
        self.highest = first_psn
        self.retries = 0
        self.rnr_retries = 0
        self.failed = ""
        #: No retransmission before that; 0: the timer does not run.
        self.deadline = 0
        self.not_before = 0
        self._messages: deque[Message] = deque()
        self._cursor = 0
        self._asked_again = -1
        self.completed: list[Message] = []

    def post(self, message: Message) -> None:
        """Queue a work request."""
        message.first = self.end
        message.packets = packets_of(message.length, self.mtu) if message.verb not in _ATOMIC else 1
        self.end += message.packets
        self._messages.append(message)

    @property
    def idle(self) -> bool:
        """Whether everything posted is done."""
        return not self._messages

    def ready(self, now: int) -> bool:
        """Whether there is a packet to send now."""
        return (
            self.next < self.end
            and self.next - self.unacknowledged < self.window
            and not self.failed
            and now >= self.not_before
        )

    def take(self, limit: int, now: int) -> list[Packet]:
        """Up to ``limit`` packets, in order, as the window allows; they count as sent."""
        out: list[Packet] = []
        if self.failed or now < self.not_before:
            return out
        sequence = self.next
        stop = min(self.end, self.unacknowledged + self.window)
        mtu, every = self.mtu, self.ack_every
        while len(out) < limit and sequence < stop:
            message = self._message_at(sequence)
            if message is None:
                break
            index = sequence - message.first
            if message.started_ns < 0:
                message.started_ns = now
            if message.verb in _RESPONDED:
                if self._reads_before(message) >= OUTSTANDING_READS:
                    break
                remaining = message.length - index * mtu
                out.append(
                    Packet((_READ_LIKE[message.verb], sequence & PSN_MASK, True, remaining, index * mtu, message))
                )
                if message.retransmitted or sequence < self.highest:
                    self.counters.retransmits += 1
                sequence = message.first + message.packets
                self._cursor += 1
                continue
            last = index == message.packets - 1
            length = message.length - index * mtu if last else mtu
            ask = last or (index + 1) % every == 0 or sequence + 1 == stop
            out.append(Packet((_opcode(message, index, last), sequence & PSN_MASK, ask, length, index * mtu, message)))
            if sequence < self.highest:
                self.counters.retransmits += 1
            self.counters.bytes_tx += length
            sequence += 1
            if last:
                self._cursor += 1
        if out:
            self.counters.data_tx += len(out)
            self.next = sequence
            self.highest = max(self.highest, sequence)
            if not self.deadline:
                self.deadline = now + self.timeout_ns
        return out

    def _message_at(self, sequence: int) -> Message | None:
        messages = self._messages
        while self._cursor < len(messages):
            message = messages[self._cursor]
            if sequence < message.first + message.packets:
                return message
            self._cursor += 1
        return None

    def _reads_before(self, message: Message) -> int:
        count = 0
        for other in self._messages:
            if other is message:
                return count
            count += other.verb in _RESPONDED and other.started_ns >= 0
        return count

    def sequence_of(self, psn: int) -> int:
        """The PSN of a response as a sequence number near the oldest unacknowledged one."""
        distance = (psn - self.unacknowledged) & PSN_MASK
        return self.unacknowledged + (distance if distance < HALF else distance - (1 << PSN_BITS))

    def acknowledge(self, psn: int, syndrome: int, now: int) -> None:
        """An ACK or NAK came in; a queue pair that failed takes none."""
        if self.failed:
            return
        sequence = self.sequence_of(psn)
        kind = syndrome >> 5
        if kind == 0:
            self.counters.ack_rx += 1
            if self.unacknowledged <= sequence < self.highest:
                self._progress(sequence + 1, now, implied=True)
            return
        if kind == 1:
            self.counters.rnr += 1
            self.counters.nak_rx += 1
            if not self.unacknowledged <= sequence < self.highest:
                return
            if not self._progress(sequence, now, implied=True):
                return
            self.rnr_retries += 1
            if self.rnr_retry_limit < 7 and self.rnr_retries > self.rnr_retry_limit:
                self._fail("RNR retries exceeded")
                return
            self._back(sequence)
            self.not_before = now + RNR_TIMER_NS[syndrome & 0x1F]
            self.deadline = self.not_before + self.timeout_ns
            return
        self.counters.nak_rx += 1
        if not self.unacknowledged <= sequence < self.highest:
            return
        if syndrome == NAK_SEQUENCE:
            if self._progress(sequence, now, implied=True):
                self._back(sequence)
            self.deadline = now + self.timeout_ns
            return
        self._progress(sequence, now, implied=True)
        self._fail({NAK_INVALID: "invalid request", NAK_ACCESS: "remote access error"}.get(syndrome, "remote error"))

    def respond(self, op: int, psn: int, now: int) -> bool:
        """A READ response or atomic ACK came in; False if it is not the one awaited (it is dropped)."""
        sequence = self.sequence_of(psn)
        if self.failed:
            return False
        if sequence < self.unacknowledged or sequence >= self.highest:
            self.counters.duplicates += sequence < self.unacknowledged
            return False
        # Requests before it are acknowledged by it; a READ before it has lost its responses.
        if sequence > self.unacknowledged and not self._progress(sequence, now, implied=True):
            self.counters.sequence_errors += 1
            return False
        self._progress(sequence + 1, now, implied=False)
        return True

    def _progress(self, upto: int, now: int, *, implied: bool) -> bool:
        """Everything before ``upto`` is done; False if a READ's responses are missing, which are asked for again.

        ``implied``: by an acknowledgement, which says nothing of responses that have not come.
        """
        moved = False
        reached = True
        while self._messages and self.unacknowledged < upto:
            message = self._messages[0]
            end = message.first + message.packets
            if implied and message.verb in _RESPONDED:
                # Asked for again once, not for each of the responses that follow the lost one.
                if self._asked_again != self.unacknowledged:
                    self._asked_again = self.unacknowledged
                    self._back(self.unacknowledged)
                reached = False
                break
            self.unacknowledged = min(end, upto)
            moved = True
            if self.unacknowledged == end:
                self._messages.popleft()
                self._cursor = max(0, self._cursor - 1)
                self.counters.messages_success += 1
                self.completed.append(message)
        if moved:
            self.retries = self.rnr_retries = 0
            self.next = max(self.next, self.unacknowledged)
            self.deadline = now + self.timeout_ns if self.unacknowledged < self.highest else 0
        return reached

    def _back(self, sequence: int) -> None:
        """Go back to a packet."""
        self.next = sequence
        self._cursor = 0
        for message in self._messages:
            if message.first >= self.highest:
                break
            if message.first + message.packets > sequence:
                message.retransmitted = True

    def expired(self, now: int) -> bool:
        """Whether the retransmission timer has run out; then everything unacknowledged is sent again."""
        if not self.deadline or now < self.deadline or self.failed:
            return False
        self.counters.timeouts += 1
        self.retries += 1
        self._asked_again = -1
        if self.retries > self.retry_limit:
            self._fail("retries exceeded")
            return True
        self._back(self.unacknowledged)
        self.deadline = now + self.timeout_ns
        return True

    def _fail(self, why: str) -> None:
        self.failed = why
        self.deadline = 0
        self.counters.messages_failed += len(self._messages)

    def pending(self) -> tuple[Message, ...]:
        """Messages not done."""
        return tuple(self._messages)


_ATOMIC = frozenset({Verb.FETCH_ADD, Verb.COMPARE_SWAP})
_RESPONDED = frozenset({Verb.READ, *_ATOMIC})
_READ_LIKE = {
    Verb.READ: int(Op.RDMA_READ_REQUEST), Verb.FETCH_ADD: int(Op.FETCH_ADD), Verb.COMPARE_SWAP: int(Op.COMPARE_SWAP),
}  # fmt: skip


def _opcode(message: Message, index: int, last: bool) -> int:
    write = 6 if message.verb is Verb.WRITE else 0
    if not last:
        return write + (0 if index == 0 else 1)
    base = (4 if index == 0 else 2) + write
    return base + 1 if message.immediate is not None else base


class Memory(Protocol):
    """What READ, WRITE and atomics of the other side reach."""

    def allows(self, rkey: int, va: int, length: int) -> bool:
        """Whether that key opens that range."""

    def read(self, va: int, length: int) -> bytes:
        """Bytes."""

    def write(self, va: int, data: bytes) -> None:
        """Store bytes."""


class Anything:
    """A memory that takes everything and keeps nothing: what a generator of traffic needs."""

    def allows(self, rkey: int, va: int, length: int) -> bool:
        """Always."""
        return True

    def read(self, va: int, length: int) -> bytes:
        """Zeros; the engine sends its pattern instead."""
        return bytes(length)

    def write(self, va: int, data: bytes) -> None:
        """Nothing."""


class Region:
    """A registered memory region."""

    def __init__(self, rkey: int, va: int, content: bytearray) -> None:
        self.rkey, self.va, self.content = rkey, va, content

    def allows(self, rkey: int, va: int, length: int) -> bool:
        """Whether key and range are this region's."""
        return rkey == self.rkey and self.va <= va and va + length <= self.va + len(self.content)

    def read(self, va: int, length: int) -> bytes:
        """Bytes of the region."""
        return bytes(self.content[va - self.va : va - self.va + length])

    def write(self, va: int, data: bytes) -> None:
        """Store bytes in the region."""
        self.content[va - self.va : va - self.va + len(data)] = data


@dataclass(frozen=True, slots=True)
class Reply:
    """What a responder sends: an ACK or NAK, or part of a READ's or an atomic's answer. ``length`` payload bytes."""

    opcode: int
    psn: int
    syndrome: int = 0
    msn: int = 0
    length: int = 0
    va: int = 0
    original: int = 0


@dataclass(slots=True)
class Arrived:
    """A request packet as the responder sees it."""

    opcode: int
    psn: int
    ack_request: bool
    length: int
    immediate: int = 0
    va: int = 0
    rkey: int = 0
    dma_length: int = 0
    swap: int = 0
    compare: int = 0
    payload: bytes = b""


@dataclass(slots=True)
class Responder:
    """The half of a queue pair that answers. ``receives`` None: a receive is always posted."""

    expected: int
    mtu: int = 1024
    memory: Memory = field(default_factory=Anything)
    receives: int | None = None
    rnr_timer: int = 12
    counters: Counters = field(default_factory=Counters)
    msn: int = 0
    failed: str = ""
    #: Immediate data of messages that arrived whole, in order; -1 for one without.
    delivered: list[int] = field(default_factory=list)
    _inside: int = -1
    _va: int = 0
    _nak_sent: bool = False
    _atomics: dict[int, int] = field(default_factory=dict)

    def receive(self, packet: Arrived) -> list[Reply]:
        """A request came in; what to answer."""
        if self.failed:
            return []
        distance = (packet.psn - self.expected) & PSN_MASK
        if distance:
            if distance >= HALF:
                return self._duplicate(packet)
            if self._nak_sent:
                self.counters.sequence_errors += 1
                return []
            self._nak_sent = True
            self.counters.sequence_errors += 1
            return [self._nak(NAK_SEQUENCE, self.expected)]
        op = packet.opcode & 0x1F
        if op in (Op.RDMA_READ_REQUEST, Op.FETCH_ADD, Op.COMPARE_SWAP):
            return self._answered(packet, op)
        reason = self._check(packet, op)
        if reason:
            if reason >> 5 == 1:
                self._nak_sent = True
                self.counters.rnr += 1
                return [self._nak(reason, packet.psn)]
            self.failed = "remote access error" if reason == NAK_ACCESS else "invalid request"
            return [self._nak(reason, packet.psn)]
        self._nak_sent = False
        if op >= Op.RDMA_WRITE_FIRST and op not in _SEND_INVALIDATE:
            if op in _WITH_RETH:
                self._va = packet.va
            if packet.payload:
                self.memory.write(self._va, packet.payload)
            self._va += packet.length
        self.expected = (self.expected + 1) & PSN_MASK
        self.counters.data_rx += 1
        self.counters.bytes_rx += packet.length
        self._inside = op if op in FIRST or op in MIDDLE else -1
        if op in LAST or op in ONLY:
            self.msn = (self.msn + 1) & PSN_MASK
            self.delivered.append(packet.immediate if op in _IMMEDIATE else -1)
        if packet.ack_request:
            return [self.ack()]
        return []

    def run(self, count: int, length: int) -> None:
        """``count`` MIDDLE packets of ``length`` bytes in all came in as expected, none asking for an ACK: the fast way
        of ``receive``, where ``takes_middle`` says so."""
        self.expected = (self.expected + count) & PSN_MASK
        self._nak_sent = False
        self.counters.data_rx += count
        self.counters.bytes_rx += length

    def takes_middle(self, psn: int, length: int) -> bool:
        """Whether a MIDDLE is what comes next; then ``run`` may take it."""
        return psn == self.expected and length == self.mtu and self._inside >= 0 and not self.failed

    def ack(self) -> Reply:
        """An acknowledgement of everything received."""
        self.counters.ack_tx += 1
        return Reply(Op.ACKNOWLEDGE, (self.expected - 1) & PSN_MASK, ACK, self.msn)

    def _nak(self, syndrome: int, psn: int) -> Reply:
        self.counters.nak_tx += 1
        return Reply(Op.ACKNOWLEDGE, psn, syndrome, self.msn)

    def _check(self, packet: Arrived, op: int) -> int:
        """0, or the syndrome to refuse it with."""
        starts = op in FIRST or op in ONLY
        if starts != (self._inside < 0):
            return NAK_INVALID
        if not starts and (op >= Op.RDMA_WRITE_FIRST and op not in _SEND_INVALIDATE) != (
            self._inside >= Op.RDMA_WRITE_FIRST
        ):
            return NAK_INVALID
        if op not in FIRST and op not in MIDDLE and op not in LAST and op not in ONLY:
            return NAK_INVALID
        if (op in FIRST or op in MIDDLE) and packet.length != self.mtu:
            return NAK_INVALID
        if packet.length > self.mtu:
            return NAK_INVALID
        if op in _WITH_RETH and packet.dma_length and not self.memory.allows(packet.rkey, packet.va, packet.dma_length):
            return NAK_ACCESS
        consumes = op in _IMMEDIATE or (starts and op not in _WITH_RETH)
        if op == Op.SEND_LAST_WITH_IMMEDIATE:
            consumes = False  # its FIRST took the receive
        if consumes and self.receives is not None:
            if self.receives <= 0:
                return RNR_NAK | self.rnr_timer
            self.receives -= 1
        return 0

    def _answered(self, packet: Arrived, op: int) -> list[Reply]:
        """A READ request or an atomic in its turn."""
        if self._inside >= 0:
            self.failed = "invalid request"
            return [self._nak(NAK_INVALID, packet.psn)]
        length = packet.dma_length if op == Op.RDMA_READ_REQUEST else 8
        if (length or op != Op.RDMA_READ_REQUEST) and not self.memory.allows(packet.rkey, packet.va, length):
            self.failed = "remote access error"
            return [self._nak(NAK_ACCESS, packet.psn)]
        self._nak_sent = False
        self.msn = (self.msn + 1) & PSN_MASK
        self.counters.data_rx += 1
        if op == Op.RDMA_READ_REQUEST:
            replies = self._read(packet)
            self.expected = (self.expected + len(replies)) & PSN_MASK
            return replies
        self.expected = (self.expected + 1) & PSN_MASK
        original = int.from_bytes(self.memory.read(packet.va, 8), "little")
        value = (original + packet.swap) % (1 << 64)
        if op == Op.COMPARE_SWAP:
            value = packet.swap if original == packet.compare else original
        self.memory.write(packet.va, value.to_bytes(8, "little"))
        self._atomics[packet.psn] = original
        if len(self._atomics) > 2 * OUTSTANDING_READS:
            self._atomics.pop(next(iter(self._atomics)))
        self.counters.ack_tx += 1
        return [Reply(Op.ATOMIC_ACKNOWLEDGE, packet.psn, ACK, self.msn, original=original)]

    def _read(self, packet: Arrived) -> list[Reply]:
        count = packets_of(packet.dma_length, self.mtu)
        replies = []
        for n in range(count):
            length = min(self.mtu, packet.dma_length - n * self.mtu)
            if count == 1:
                op = Op.RDMA_READ_RESPONSE_ONLY
            elif n == 0:
                op = Op.RDMA_READ_RESPONSE_FIRST
            else:
                op = Op.RDMA_READ_RESPONSE_LAST if n == count - 1 else Op.RDMA_READ_RESPONSE_MIDDLE
            middle = op == Op.RDMA_READ_RESPONSE_MIDDLE
            replies.append(Reply(
                op, (packet.psn + n) & PSN_MASK, 0 if middle else ACK, 0 if middle else self.msn, length,
                packet.va + n * self.mtu,
            ))  # fmt: skip
        return replies

    def _duplicate(self, packet: Arrived) -> list[Reply]:
        """It was received before: READs and atomics are answered again, the rest is acknowledged again."""
        self.counters.duplicates += 1
        op = packet.opcode & 0x1F
        if op == Op.RDMA_READ_REQUEST:
            length = packet.dma_length
            if length and not self.memory.allows(packet.rkey, packet.va, length):
                return []
            return self._read(packet)
        if op in (Op.FETCH_ADD, Op.COMPARE_SWAP):
            if packet.psn not in self._atomics:
                return []
            self.counters.ack_tx += 1
            return [Reply(Op.ATOMIC_ACKNOWLEDGE, packet.psn, ACK, self.msn, original=self._atomics[packet.psn])]
        return [self.ack()]


_IMMEDIATE = frozenset({
    Op.SEND_LAST_WITH_IMMEDIATE, Op.SEND_ONLY_WITH_IMMEDIATE, Op.RDMA_WRITE_LAST_WITH_IMMEDIATE,
    Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
})  # fmt: skip
_WITH_RETH = frozenset({Op.RDMA_WRITE_FIRST, Op.RDMA_WRITE_ONLY, Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE})
_SEND_INVALIDATE = frozenset({Op.SEND_LAST_WITH_INVALIDATE, Op.SEND_ONLY_WITH_INVALIDATE})
