"""A million damaged frames into everything that reads frames: nothing breaks, hangs or grows."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from ipaddress import ip_address

import numpy as np

from fabtest.roce.decode import Decoded, decode
from fabtest.roce.frames import Flow, finish, header, read
from fabtest.roce.opcodes import EXTENSION_BYTES, NAMES
from fabtest.roce.ring import FRAME, columns
from fabtest.roce.transport import Arrived, Region, Requester, Responder

FRAMES, BATCH = 1_000_000, 20_000


def corpus() -> list[bytes]:
    found = []
    for opcode in sorted(NAMES):
        for a, b in (("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")):
            flow = Flow(ip_address(a), ip_address(b), 0xC000, 0x11)
            head = header(flow, bytes(6), bytes(6), opcode, 9, extended=bytes(EXTENSION_BYTES[opcode]), ack=True, psn=5)
            found.append(finish(head, b"123456789"))
    return found


def test_a_million_mutated_frames() -> None:
    rng = np.random.default_rng(4791)
    base = corpus()
    width = max(map(len, base))
    table = np.zeros((len(base), width), np.uint8)
    sizes = np.array([len(f) for f in base])
    for n, frame in enumerate(base):
        table[n, : len(frame)] = np.frombuffer(frame, np.uint8)
    slots = np.zeros((BATCH, FRAME + width), np.uint8)
    # Two responders and requesters that see whatever can be read, as an engine's queue pairs would.
    responder = Responder(5, 1024, Region(1, 0, bytearray(4096)))
    requester = Requester(first_psn=5)
    readable = damaged = 0
    peak = 0
    start = time.monotonic()
    for turn in range(FRAMES // BATCH):
        which = rng.integers(0, len(base), BATCH)
        frames = table[which]
        for _ in range(4):
            at = rng.integers(0, width, BATCH)
            frames[np.arange(BATCH), at] ^= rng.integers(0, 256, BATCH, dtype=np.uint8)
        lengths = np.where(rng.random(BATCH) < 0.25, rng.integers(0, width, BATCH), sizes[which])
        slots[:, FRAME : FRAME + width] = frames
        columns(slots)
        for row, length in zip(frames, lengths.tolist(), strict=True):
            frame = row[:length].tobytes()
            packet = read(frame)
            if packet is None:
                continue
            readable += 1
            damaged += packet.icrc_ok is False
            if responder.failed:
                responder = Responder(5, 1024, Region(1, 0, bytearray(4096)))
            replies = responder.receive(Arrived(
                packet.opcode, packet.psn, packet.ack_request, packet.length, packet.immediate, packet.va, packet.rkey,
                min(packet.dma_length, 1 << 20), packet.swap, packet.compare,
            ))  # fmt: skip
            for reply in replies[:4]:
                requester.acknowledge(reply.psn, reply.syndrome, turn)
            requester.acknowledge(packet.psn, packet.syndrome, turn)
            requester.respond(packet.opcode & 0x1F, packet.psn, turn)
        responder.delivered.clear()
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = used if turn == 10 else peak
    assert readable > FRAMES // 4
    assert damaged > readable // 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + 20 * 1024, "it grows"
    assert requester.idle
    assert time.monotonic() - start < 600, "it hangs"


def test_the_decoder_survives_them_too() -> None:
    rng = np.random.default_rng(1)
    base = corpus()

    def stream() -> Iterator[tuple[float, bytes]]:
        for n in range(50_000):
            frame = bytearray(base[n % len(base)])
            for at in rng.integers(0, len(frame), 3):
                frame[at] ^= int(rng.integers(0, 256))
            yield n / 1e6, bytes(frame[: rng.integers(1, len(frame) + 1)])

    decoded = Decoded()
    lines = sum(1 for _ in decode(stream(), decoded))
    assert decoded.frames == 50_000
    assert 0 < lines == decoded.roce < 50_000
    assert decoded.bad_icrc > 0
