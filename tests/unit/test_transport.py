"""The transport against Linux's own packets, against the rules one by one, and against networks that lose and repeat."""

from __future__ import annotations

import random
import struct
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabtest.roce.dcqcn import PROFILES, RateController
from fabtest.roce.entropy import PortPolicy, rdma_core_port, source_port
from fabtest.roce.frames import Flow, RocePacket, finish, header, read
from fabtest.roce.opcodes import EXTENSION_BYTES, Op, Transport
from fabtest.roce.transport import (
    ACK,
    NAK_ACCESS,
    NAK_INVALID,
    NAK_SEQUENCE,
    PSN_MASK,
    Arrived,
    Message,
    Region,
    Reply,
    Requester,
    Responder,
    Verb,
    packets_of,
)
from tests.unit.test_roce_packets import pcap_frames

S = 1_000_000_000


def arrived(p: RocePacket) -> Arrived:
    return Arrived(
        p.opcode, p.psn, p.ack_request, p.length, p.immediate, p.va, p.rkey, p.dma_length, p.swap, p.compare, p.payload
    )


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_answers_are_those_of_linux(shared: Path, family: str) -> None:
    """Every packet that was sent to rxe, given to our responder: its answers are rxe's, to the byte."""
    frames = pcap_frames(shared, family)[18:]
    first = next(p for f in frames if (p := read(f)) and p.va)
    responder: Responder | None = None
    waiting: list[Reply] = []
    equal = 0
    for frame in frames:
        p = read(frame)
        assert p is not None
        if p.src[-1] == 1:
            assert not waiting, "it was not answered as rxe did"
            # What is damaged, for another queue pair or another service is dropped.
            if not p.icrc_ok or p.opcode >> 5 != Transport.RC or p.dqpn != 0x11:
                continue
            responder = responder or Responder(p.psn, 1024, Region(first.rkey, first.va, bytearray(1 << 16)))
            waiting = responder.receive(arrived(p))
            continue
        reply = waiting.pop(0)
        assert responder is not None
        extended = struct.pack("!I", reply.syndrome << 24 | reply.msn) + struct.pack("!Q", reply.original)
        extended = extended[: EXTENSION_BYTES[reply.opcode]]
        flow = Flow(ip_address(p.src), ip_address(p.dst), p.src_port, p.dqpn, p.tos >> 2)
        # rxe counts its IPv4 identification, which the ICRC covers; the flow label, which it does not, is rxe's too.
        ident = struct.unpack_from("!H", frame, 18)[0] if family == "ipv4" else 0
        head = header(
            flow, frame[6:12], frame[:6], reply.opcode, reply.length, extended=extended, psn=reply.psn, ecn=p.tos & 3,
            identification=ident,
        )  # fmt: skip
        ours = finish(head, responder.memory.read(reply.va, reply.length) if reply.length else b"")
        if family == "ipv6":
            ours = ours[:14] + frame[14:18] + ours[18:]
        assert ours == frame
        equal += 1
    assert equal == 13
    assert not waiting


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_requests_are_those_of_linux(shared: Path, family: str) -> None:
    """The work requests rxe was given, given to our requester: the same packets in the same order."""
    theirs = [p for f in pcap_frames(shared, family)[:13] if (p := read(f))]
    requester = Requester(first_psn=0x2000, mtu=1024, window=1000, ack_every=1 << 20)
    for number, (verb, length, immediate) in enumerate([
        (Verb.SEND, 5, None), (Verb.SEND, 2500, None), (Verb.SEND, 64, 1), (Verb.WRITE, 64, None),
        (Verb.WRITE, 3000, None), (Verb.WRITE, 130, 1), (Verb.READ, 1500, None), (Verb.FETCH_ADD, 8, None),
        (Verb.COMPARE_SWAP, 8, None),
    ]):  # fmt: skip
        requester.post(Message(number, verb, length, immediate))
    ours = requester.take(100, 0)
    assert [(o, psn, ask) for o, psn, ask, *_ in ours] == [(p.opcode, p.psn, p.ack_request) for p in theirs]
    lengths = [p.length or p.dma_length or 8 for p in theirs]
    assert [length for _, _, _, length, *_ in ours] == lengths


def test_a_gap_is_naked_once_and_a_duplicate_is_acknowledged_again() -> None:
    r = Responder(10)
    assert r.receive(Arrived(Op.SEND_ONLY, 10, True, 4))[0] == Reply(Op.ACKNOWLEDGE, 10, ACK, 1)
    assert r.receive(Arrived(Op.SEND_ONLY, 13, True, 4)) == [Reply(Op.ACKNOWLEDGE, 11, NAK_SEQUENCE, 1)]
    assert r.receive(Arrived(Op.SEND_ONLY, 14, True, 4)) == [], "one NAK until the packet comes"
    assert r.receive(Arrived(Op.SEND_ONLY, 10, True, 4)) == [Reply(Op.ACKNOWLEDGE, 10, ACK, 1)]
    assert r.receive(Arrived(Op.SEND_ONLY, 11, False, 4)) == []
    assert r.receive(Arrived(Op.SEND_ONLY, 12, True, 4)) == [Reply(Op.ACKNOWLEDGE, 12, ACK, 3)]
    assert r.counters.sequence_errors == 2
    assert r.counters.duplicates == 1


def test_what_makes_no_sense_ends_the_queue_pair() -> None:
    for packet, syndrome in (
        (Arrived(Op.SEND_MIDDLE, 0, True, 1024), NAK_INVALID),
        (Arrived(Op.SEND_LAST, 0, True, 10), NAK_INVALID),
        (Arrived(Op.SEND_FIRST, 0, True, 10), NAK_INVALID),
        (Arrived(Op.SEND_ONLY, 0, True, 2000), NAK_INVALID),
        (Arrived(Op.RESYNC, 0, True, 0), NAK_INVALID),
        (Arrived(Op.RDMA_WRITE_ONLY, 0, True, 4, va=0, rkey=9, dma_length=4), NAK_ACCESS),
        (Arrived(Op.RDMA_READ_REQUEST, 0, True, 0, va=0, rkey=9, dma_length=4), NAK_ACCESS),
    ):
        r = Responder(0, memory=Region(1, 0, bytearray(16)))
        assert [x.syndrome for x in r.receive(packet)] == [syndrome]
        assert r.failed
        assert r.receive(Arrived(Op.SEND_ONLY, 0, True, 4)) == [], "a failed queue pair answers nothing"
    r = Responder(0)
    r.receive(Arrived(Op.RDMA_WRITE_FIRST, 0, False, 1024, dma_length=2048))
    assert r.receive(Arrived(Op.SEND_LAST, 1, True, 4))[0].syndrome == NAK_INVALID, "a WRITE does not end as a SEND"


def test_receiver_not_ready() -> None:
    r = Responder(0, receives=1, rnr_timer=1)
    q = Requester(first_psn=0)
    for n in range(3):
        q.post(Message(n, Verb.SEND, 4))
    replies = [x for op, psn, ask, *_ in q.take(9, 0) for x in r.receive(Arrived(op, psn, ask, 4))]
    assert [x.syndrome for x in replies] == [ACK, 0x21]
    for x in replies:
        q.acknowledge(x.psn, x.syndrome, 0)
    assert not q.ready(0)
    assert q.ready(10_000), "it waits as long as the NAK says: 0.01 ms"
    r.receives = 9
    again = q.take(9, 10_000)
    assert [psn for _, psn, *_ in again] == [1, 2]
    for op, psn, ask, *_ in again:
        for x in r.receive(Arrived(op, psn, ask, 4)):
            q.acknowledge(x.psn, x.syndrome, 10_000)
    assert q.idle
    assert r.msn == 3


def test_retries_end() -> None:
    q = Requester(first_psn=0, timeout_ns=S, retry_limit=3)
    q.post(Message(0, Verb.SEND, 10))
    now = 0
    q.take(9, now)
    for _ in range(3):
        assert not q.expired(now + S - 1)
        now += S
        assert q.expired(now)
        assert len(q.take(9, now)) == 1
    assert q.expired(now + S)
    assert q.failed == "retries exceeded"
    assert q.counters.messages_failed == 1
    assert q.take(9, now + S) == []


def test_window_and_acknowledgement_requests() -> None:
    q = Requester(first_psn=0, mtu=256, window=8, ack_every=4)
    q.post(Message(0, Verb.WRITE, 256 * 20))
    packets = q.take(99, 0)
    assert [psn for _, psn, ask, *_ in packets if ask] == [3, 7], "every fourth, and the last the window lets out"
    assert not q.ready(0)
    q.acknowledge(3, ACK, 1)
    assert [psn for _, psn, *_ in q.take(99, 1)] == [8, 9, 10, 11]
    q.acknowledge(99, ACK, 1)
    q.acknowledge(2, ACK, 1)
    assert q.unacknowledged == 4, "what was not sent, or was acknowledged before, changes nothing"


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32), loss=st.floats(0, 0.3), mtu=st.sampled_from([256, 1024, 4096]),
    first=st.sampled_from([0, 5, PSN_MASK - 3, PSN_MASK]),
    messages=st.lists(st.tuples(st.sampled_from([Verb.SEND, Verb.WRITE, Verb.READ, Verb.FETCH_ADD]), st.integers(1, 20_000)), min_size=1, max_size=12),
)  # fmt: skip
def test_every_message_arrives_once_whatever_is_lost(
    seed: int, loss: float, mtu: int, first: int, messages: list[tuple[Verb, int]]
) -> None:
    """A network that loses, repeats and delays: the messages come whole, once, in order, and the bytes are right."""
    rng = random.Random(seed)
    memory = bytearray(rng.randbytes(32 * 1024))
    responder = Responder(first, mtu, Region(1, 0, memory))
    requester = Requester(first_psn=first, mtu=mtu, window=16, ack_every=4, timeout_ns=50, retry_limit=7)
    for n, (verb, length) in enumerate(messages):
        requester.post(Message(n, verb, length, immediate=n if verb in (Verb.SEND, Verb.WRITE) else None))
    there: list[tuple[int, Arrived]] = []
    back: list[tuple[int, Reply]] = []
    done: list[int] = []
    now = 0
    for now in range(1, 200_000):
        for op, psn, ask, length, offset, message in requester.take(4, now):
            read_like = op in (Op.RDMA_READ_REQUEST, Op.FETCH_ADD)
            packet = Arrived(
                op,
                psn,
                ask,
                0 if read_like else length,
                message.immediate or 0,
                offset,
                1,
                length if op == Op.RDMA_READ_REQUEST else message.length,
                swap=1,
            )
            if op != Op.RDMA_READ_REQUEST:
                packet.va = 0
            for _ in range(1 + (rng.random() < loss / 4)):
                if rng.random() >= loss:
                    there.append((now + rng.choice([1, 1, 1, 9]), packet))
        for item in [x for x in there if x[0] <= now]:
            there.remove(item)
            for reply in responder.receive(item[1]):
                if rng.random() >= loss:
                    back.append((now + 1, reply))
        for late in [x for x in back if x[0] <= now]:
            back.remove(late)
            r = late[1]
            if r.opcode == Op.ACKNOWLEDGE:
                requester.acknowledge(r.psn, r.syndrome, now)
            else:
                requester.respond(r.opcode, r.psn, now)
        done += [m.number for m in requester.completed]
        requester.completed.clear()
        if requester.expired(now):
            requester.retries = 0  # a network as bad as this one would end it; that is another test
        if requester.idle:
            break
    assert done == list(range(len(messages)))
    assert not requester.failed
    assert not responder.failed
    assert responder.msn == len(messages)
    assert responder.delivered == [n for n, (v, _) in enumerate(messages) if v in (Verb.SEND, Verb.WRITE)]
    adds = sum(v is Verb.FETCH_ADD for v, _ in messages)
    assert requester.counters.messages_success == len(messages)
    assert len(responder._atomics) <= 32
    assert adds == 0 or responder._atomics
    assert (
        responder.expected
        == (first + sum(1 if v is Verb.FETCH_ADD else packets_of(n, mtu) for v, n in messages)) & PSN_MASK
    )


def test_after_a_gap_is_filled_the_next_is_naked_too() -> None:
    r = Responder(0, mtu=256)
    r.receive(Arrived(Op.SEND_FIRST, 0, False, 256))
    assert r.receive(Arrived(Op.SEND_MIDDLE, 2, False, 256))[0].syndrome == NAK_SEQUENCE
    assert r.takes_middle(1, 256)
    r.run(1, 256)
    assert r.receive(Arrived(Op.SEND_MIDDLE, 3, False, 256))[0].syndrome == NAK_SEQUENCE
    r.failed = "x"
    assert not r.takes_middle(2, 256)
    assert not Responder(0, mtu=256).takes_middle(0, 256), "no message has begun"


def test_a_lost_read_response_is_asked_for_once() -> None:
    q = Requester(first_psn=0, mtu=256)
    q.post(Message(0, Verb.READ, 256 * 20))
    q.take(9, 0)
    assert q.respond(Op.RDMA_READ_RESPONSE_FIRST, 0, 1)
    asked = 0
    for psn in range(2, 20):
        q.respond(Op.RDMA_READ_RESPONSE_MIDDLE, psn, 2)
        asked += len(q.take(9, 2))
    assert asked == 1
    assert q.unacknowledged == 1


def test_a_failed_queue_pair_takes_no_acknowledgement() -> None:
    q = Requester(first_psn=0, timeout_ns=S, retry_limit=0)
    q.post(Message(0, Verb.SEND, 10))
    q.take(9, 0)
    assert q.expired(S)
    q.acknowledge(0, ACK, S)
    assert not q.completed
    assert (q.counters.messages_failed, q.counters.messages_success) == (1, 0)


def test_a_gigabyte_in_packets() -> None:
    q = Requester(first_psn=0, mtu=4096, window=1 << 20)
    q.post(Message(0, Verb.WRITE, 1 << 30))
    assert q.end == 1 << 18


# ------------------------------------------------------------------------------------------------ DCQCN, ports


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("dilation", [1.0, 1000.0])
def test_dcqcn_cuts_and_recovers(name: str, dilation: float) -> None:
    line = 40e9
    profile = PROFILES[name].at(line, dilation)
    control = RateController(profile, line / dilation)
    control.cnp(0)
    assert control.rate == pytest.approx(line / dilation / 2), "alpha starts at 1: the first CNP halves the rate"
    control.cnp(1)
    assert control.cuts == 1, "at most one cut per decrease interval"
    control.cnp(profile.decrease_interval_ns + 1)
    assert control.rate < line / dilation / 2
    low = control.rate
    for step in range(1, 400_000):
        control.advance(profile.decrease_interval_ns + step * profile.increase_timer_ns)
        if control.rate == control.line_rate:
            break
    assert control.rate == control.line_rate > low


def test_dilation_changes_nothing_but_the_clock() -> None:
    """The same CNPs at dilated times give the same rates, divided."""

    def rates(dilation: float) -> list[float]:
        control = RateController(PROFILES["dcqcn-2015"].at(40e9, dilation), 40e9 / dilation)
        out = []
        for step in range(300):
            now = round(step * 40_000 * dilation)
            if step % 7 == 0 and step < 100:
                control.cnp(now)
            control.advance(now)
            out.append(control.rate * dilation)
        return out

    assert rates(1000.0) == pytest.approx(rates(1.0), rel=1e-3)


def test_the_rate_never_falls_below_the_minimum() -> None:
    profile = PROFILES["dcqcn-2015"].at(40e9)
    control = RateController(profile, 40e9)
    for n in range(1000):
        control.cnp(n * profile.decrease_interval_ns)
    assert control.rate >= profile.min_rate


def test_source_ports() -> None:
    assert rdma_core_port(0x12345, 1, 2) == 58177, "as rxe sent it"
    assert rdma_core_port(0, 17, 99) == rdma_core_port(0, 99, 17)
    ports = {rdma_core_port(0, 0x100 + n, 0x900 + n) for n in range(1024)}
    assert 950 < len(ports) <= 1024
    assert all(0xC000 <= p <= 0xFFFF for p in ports)
    assert len({source_port(PortPolicy.PER_QP, n, 1, 1) for n in range(1024)}) == 1024
    assert {source_port(PortPolicy.FIXED, n, n, n) for n in range(9)} == {0xC000}
    random_ports = [source_port(PortPolicy.RANDOM, n, 1, 1, seed=5) for n in range(50)]
    assert random_ports == [source_port(PortPolicy.RANDOM, n, 1, 1, seed=5) for n in range(50)]
    assert len(set(random_ports)) > 40
