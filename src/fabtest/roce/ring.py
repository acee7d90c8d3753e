"""Receiving RoCEv2 in bulk: a ring that a classifier in the kernel fills with headers, parsed by columns.

A record of the ring holds the first bytes of a frame, always at the same place, so that a field of a thousand frames
is one strided view. A packet socket's ring costs the kernel twice as much a frame: it keeps more than headers, and the
frame goes on to the IP stack. One in so many frames is kept whole in a second ring, for its ICRC.

Layout of a BPF ring buffer: a page with how far it was read (ours to write), a page with how far it was filled, and the
records, mapped twice in a row so that none is ever in two pieces (kernel/bpf/ringbuf.c).
"""

from __future__ import annotations

import mmap
import os
import select
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabtest.roce.frames import icrc_is_right
from fabtest.roce.linear import U8, U32
from fabtest.runtime.bpf import create_counter, create_ring, read_counter
from fabtest.runtime.bpf_programs import TAP_FRAME, Tap

PAGE = mmap.PAGESIZE
#: A record: its length with two flags (32 bits) and its page, both the kernel's; then what the tap writes.
_RECORD, _BUSY = 8, 1 << 31
#: Where a frame and its IP header start in a record.
FRAME = _RECORD + TAP_FRAME
NETWORK = FRAME + 14
#: Enough of a frame for every header: 14 + 40 + 8 + 12 and an AtomicETH of 28 bytes; a record is then 128 bytes.
HEADERS = 104
#: Enough for a whole frame of the largest MTU there is (9,216) with its Ethernet header.
WHOLE = 9232
#: How much memory whole frames of the sample may take; what finds no room is not checked.
SAMPLE_BYTES = 1 << 17
_FAMILY_BIAS = 20  # an IPv6 header is so much longer than an IPv4 header without options


@dataclass(slots=True)
class Received:
    """Headers of frames in the order they came, a column each (shape: frames). They stay valid after ``release``.

    ``time_ns`` is CLOCK_MONOTONIC; ``src`` and ``dst`` are the addresses' last four bytes; ``length`` is of the
    IP packet; ``word`` holds FECN, BECN and the destination QP; ``aeth`` is the word after the BTH, whatever it is.
    """

    time_ns: NDArray[np.int64]
    ifindex: NDArray[np.int32]
    tos: U8
    ttl: U8
    src: U32
    dst: U32
    src_port: NDArray[np.uint16]
    opcode: U8
    flags: U8
    dqpn: U32
    becn: NDArray[np.bool_]
    ack_request: NDArray[np.bool_]
    psn: U32
    aeth: U32
    length: NDArray[np.uint16]
    rows: U8

    def __len__(self) -> int:
        return len(self.psn)


class _Records:
    """Records of one size in a BPF ring buffer, as rows."""

    def __init__(self, size: int, record: int) -> None:
        self.handle = create_ring(size)
        self._size, self._record = size, record
        self._read = mmap.mmap(self.handle, PAGE, mmap.MAP_SHARED)
        self._filled = mmap.mmap(self.handle, PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
        self._consumer = np.frombuffer(self._read, np.uint64, 1)
        self._producer = np.frombuffer(self._filled, np.uint64, 1)
        self._taken = 0

    def take(self, limit: int) -> U8 | None:
        """Shape (records, bytes): those that wait, or None. They stay until ``release``."""
        at = int(self._consumer[0])
        count = min((int(self._producer[0]) - at) // self._record, limit)
        if not count:
            return None
        start, stride = PAGE + (at & self._size - 1), self._record
        words = np.ndarray((count,), np.uint32, self._filled, start, (stride,))
        if (words >= _BUSY).any():  # still being written, on another processor
            count = int((words >= _BUSY).argmax())
            if not count:
                return None
        self._taken = count
        return np.ndarray((count, stride), np.uint8, self._filled, start)

    def release(self) -> None:
        """Give what was taken back to the kernel."""
        if self._taken:
            self._consumer[0] += np.uint64(self._taken * self._record)
            self._taken = 0

    def close(self) -> None:
        """Close it; views of it are no longer valid."""
        del self._consumer, self._producer
        for part in (self._read, self._filled):
            try:
                part.close()
            except BufferError:
                pass  # a view of somebody's is left; the map goes with it
        os.close(self.handle)


def _power_of_two(size: int) -> int:
    return max(PAGE, 1 << (size - 1).bit_length())


class Ring:
    """RoCEv2 frames that arrive at the ports its ``tap`` is on: the first ``keep`` bytes of each, a multiple of 8.

    ``sample``: one in so many, a power of two, is kept whole as well; 0 for none. Raises MachineError.
    """

    def __init__(self, *, slots: int = 16384, keep: int = HEADERS, sample: int = 64) -> None:
        record = FRAME + keep
        size = _power_of_two(slots * record)
        self.count = size // record
        self._records = _Records(size, record)
        self._sample = _Records(SAMPLE_BYTES, FRAME + WHOLE)
        self._full = create_counter()
        self._lost = 0
        self._taken: U8 | None = None
        self._poll = select.poll()
        self._poll.register(self._records.handle, select.POLLIN)
        #: What a classifier needs to fill it.
        self.tap = Tap(self._records.handle, keep, self._full, self._sample.handle, WHOLE, sample)

    def fileno(self) -> int:
        """For selectors."""
        return self._records.handle

    def wait(self, seconds: float) -> bool:
        """Until a frame is there, or for so long; whether one is."""
        return bool(self._poll.poll(seconds * 1000))

    def take(self, limit: int = 4096) -> Received | None:
        """Headers of the frames that wait, or None. Call ``release`` before the next ``take``."""
        self._taken = self._records.take(limit)
        return None if self._taken is None else columns(self._taken)

    def frames(self) -> list[bytes]:
        """The frames of the last ``take``, as much of them as is kept."""
        return [] if self._taken is None else [_frame(row) for row in self._taken]

    def sampled(self) -> list[bytes]:
        """The whole frames of the sample that have come since the last call."""
        found = []
        while (rows := self._sample.take(64)) is not None:
            found += [_frame(row) for row in rows]
            self._sample.release()
        return found

    def wrong_icrc(self) -> tuple[int, int]:
        """(wrong, checked) of the frames of the sample that have come since the last call."""
        states = [icrc_is_right(frame) for frame in self.sampled()]
        return states.count(False), len(states)

    def release(self) -> None:
        """Give the records of the last ``take`` back to the kernel."""
        self._taken = None
        self._records.release()

    def dropped(self) -> int:
        """Frames lost for want of room since the last call."""
        before, self._lost = self._lost, read_counter(self._full)
        return self._lost - before

    def close(self) -> None:
        """Close it. The classifier must be off its ports, or it goes on filling what nobody reads."""
        self._taken = None
        for records in (self._records, self._sample):
            records.close()
        os.close(self._full)

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _frame(row: U8) -> bytes:
    length = int(row[_RECORD + 8 : _RECORD + 12].view(np.uint32)[0])
    return row[FRAME : FRAME + length].tobytes()


def columns(rows: U8) -> Received:
    """Parse records; IPv4 and IPv6 may be mixed."""
    version = rows[:, NETWORK] >> 4
    count = len(rows)
    stride = rows.strides[0]
    time_ns = np.ndarray((count,), np.int64, rows, _RECORD, (stride,)).copy()
    ifindex = np.ndarray((count,), np.int32, rows, _RECORD + 12, (stride,)).copy()
    if (version == 4).all():
        fields = _fields(rows, 0)
    elif (version == 6).all():
        fields = _fields(rows, _FAMILY_BIAS)
    else:
        four, six = _fields(rows, 0), _fields(rows, _FAMILY_BIAS)
        fields = tuple(np.where(version == 4, a, b) for a, b in zip(four, six, strict=True))
    return Received(*(time_ns, ifindex, *fields, rows))


def _fields(rows: U8, bias: int) -> tuple[Any, ...]:
    count, stride = len(rows), rows.strides[0]

    def word(offset: int) -> U32:
        return np.ndarray((count,), ">u4", rows, offset, (stride,)).astype(np.uint32)

    def half(offset: int) -> NDArray[np.uint16]:
        return np.ndarray((count,), ">u2", rows, offset, (stride,)).astype(np.uint16)

    if bias:
        tos = ((half(NETWORK) >> 4) & 0xFF).astype(np.uint8)
        ttl = rows[:, NETWORK + 7].copy()
        src, dst = word(NETWORK + 20), word(NETWORK + 36)
        length = half(NETWORK + 4) + np.uint16(40)
    else:
        tos, ttl = rows[:, NETWORK + 1].copy(), rows[:, NETWORK + 8].copy()
        src, dst = word(NETWORK + 12), word(NETWORK + 16)
        length = half(NETWORK + 2)
    udp = NETWORK + 20 + bias
    bth = udp + 8
    second, third = word(bth + 4), word(bth + 8)
    mask = np.uint32(0xFFFFFF)
    return (
        tos, ttl, src, dst, half(udp), rows[:, bth].copy(), rows[:, bth + 1].copy(), second & mask,
        (second >> np.uint32(30) & np.uint32(1)).astype(bool), (third >> np.uint32(31)).astype(bool), third & mask,
        word(bth + 12), length,
    )  # fmt: skip
