"""Receiving RoCEv2 in bulk: a TPACKET_V2 ring shared with the kernel, its headers parsed by columns.

A slot of the ring holds the first bytes of a frame, always at the same place, so that a field of a thousand frames is
one strided view. The filter in the kernel keeps UDP to port 4791 only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabtest.errors import TrafficError
from fabtest.roce.frames import UDP_PORT, icrc_of
from fabtest.roce.linear import U8, U32
from fabtest.runtime.namespaces import inside

#: linux/if_packet.h
SOL_PACKET, PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION, PACKET_IGNORE_OUTGOING = 263, 5, 6, 10, 23
TPACKET_V2, TP_STATUS_KERNEL = 1, 0
SO_ATTACH_FILTER = 26
#: struct tpacket2_hdr is 32 bytes, then comes struct sockaddr_ll; an Ethernet frame starts at 66, its IP header at 80.
LINK_ADDRESS, FRAME, NETWORK = 32, 66, 80
SMALL_SLOT, WHOLE_SLOT = 256, 9472
BLOCK = 1 << 20
_FAMILY_BIAS = 20  # an IPv6 header is so much longer than an IPv4 header without options


def slot_filter(snap: int) -> bytes:
    """Classic BPF: UDP to port 4791 over IPv4 without options, or IPv6; cut at ``snap`` bytes."""
    program = [
        (0x28, 0, 0, 12),  # 0 ldh ethertype
        (0x15, 0, 6, 0x0800),  # 1 jeq IPv4 else 8
        (0x30, 0, 0, 14),  # 2 ldb version and header length
        (0x15, 0, 10, 0x45),  # 3 jeq no options else drop (14)
        (0x30, 0, 0, 23),  # 4 ldb protocol
        (0x15, 0, 8, 17),  # 5 jeq UDP else drop
        (0x28, 0, 0, 36),  # 6 ldh destination port
        (0x05, 0, 0, 4),  # 7 ja 12
        (0x15, 0, 5, 0x86DD),  # 8 jeq IPv6 else drop
        (0x30, 0, 0, 20),  # 9 ldb next header
        (0x15, 0, 3, 17),  # 10 jeq UDP else drop
        (0x28, 0, 0, 56),  # 11 ldh destination port
        (0x15, 0, 1, UDP_PORT),  # 12 jeq 4791 else drop
        (0x06, 0, 0, snap),  # 13 keep
        (0x06, 0, 0, 0),  # 14 drop
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in program)


@dataclass(slots=True)
class Received:
    """Headers of frames in the order they came, a column each (shape: frames). They stay valid after ``release``.

    ``time_ns`` is the kernel's wall clock; ``src`` and ``dst`` are the addresses' last four bytes; ``length`` is of the
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


class Ring:
    """RoCEv2 frames that arrive in a namespace. ``whole`` keeps whole frames, else the first 190 bytes.

    Raises TrafficError if the kernel will not map it.
    """

    def __init__(
        self, netns: str | os.PathLike[str], *, slots: int = 16384, whole: bool = False, interface: str = ""
    ) -> None:
        self.slot = WHOLE_SLOT if whole else SMALL_SLOT
        per_block = BLOCK // self.slot
        blocks = -(-slots // per_block)
        self.count = per_block * blocks
        with inside(netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            index = socket.if_nametoindex(interface) if interface else 0
            try:
                code = ctypes.create_string_buffer(slot_filter(self.slot - FRAME))
                program = struct.pack("HxxxxxxP", (len(code) - 1) // 8, ctypes.addressof(code))
                self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
                self._socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V2)
                self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
                request = struct.pack("=IIII", BLOCK, blocks, self.slot, self.count)
                self._socket.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
                self._map = mmap.mmap(self._socket.fileno(), BLOCK * blocks, mmap.MAP_SHARED)
                # Listening starts here, when the filter and the ring stand: struct sockaddr_ll by hand for the index.
                name = interface or ""
                self._socket.bind((name, 3)) if index else self._bind_all()
            except OSError as error:
                self._socket.close()
                raise TrafficError(f"cannot receive in {netns}: {error.strerror}") from None
        memory = np.frombuffer(self._map, np.uint8)
        if BLOCK % self.slot:
            # Slots do not straddle blocks: the rest of each block is unused, so rows are gathered block by block.
            blocks_view = memory.reshape(blocks, BLOCK)[:, : per_block * self.slot]
            self._rows = [blocks_view[b].reshape(per_block, self.slot) for b in range(blocks)]
        else:
            self._rows = [memory.reshape(self.count, self.slot)]
        self._per_view = self.count // len(self._rows)
        self._status = [
            np.ndarray((len(view),), np.uint32, view, 0, (self.slot,)) if view.flags.c_contiguous else None
            for view in self._rows
        ]
        self._head = 0
        self._taken = 0
        self._poll = select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)

    def _bind_all(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        address = struct.pack("=HHiHBB8s", socket.AF_PACKET, socket.htons(3), 0, 0, 0, 0, b"")
        if libc.bind(self._socket.fileno(), address, len(address)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def wait(self, seconds: float) -> bool:
        """Until a frame is there, or for so long; whether one is."""
        return bool(self._poll.poll(seconds * 1000))

    def take(self, limit: int = 4096) -> Received | None:
        """Headers of the frames that wait, or None. Call ``release`` before the next ``take``."""
        view, start = divmod(self._head, self._per_view)
        status = self._status[view]
        assert status is not None
        window = status[start : start + limit]
        if not window[0] & 1:
            return None
        ready = (window & np.uint32(1)).astype(bool)
        count = len(window) if ready.all() else int(ready.argmin())
        self._taken = count
        return columns(self._rows[view][start : start + count])

    def frames(self) -> list[bytes]:
        """The frames of the last ``take``, as long as slots hold them."""
        view, start = divmod(self._head, self._per_view)
        return [
            row[FRAME : FRAME + int(row[8:12].view(np.uint32)[0])].tobytes()
            for row in self._rows[view][start : start + self._taken]
        ]

    def wrong_icrc(self, every: int) -> tuple[int, int]:
        """(wrong, checked) of every so many-th frame of the last ``take`` that its slot holds whole."""
        view, start = divmod(self._head, self._per_view)
        rows = self._rows[view][start : start + self._taken : every]
        states = [self.icrc_is_right(n * every) for n in range(len(rows))]
        return states.count(False), len(states) - states.count(None)

    def icrc_is_right(self, n: int) -> bool | None:
        """Of the n-th frame of the last ``take``; None if its slot does not hold it whole."""
        view, start = divmod(self._head, self._per_view)
        row = self._rows[view][start + n]
        length, kept = row[4:12].view(np.uint32)
        if kept < length:
            return None
        packet = row[NETWORK : FRAME + int(length)].tobytes()
        return bool(struct.unpack("<I", packet[-4:])[0] == icrc_of(packet[:-4]))

    def release(self) -> None:
        """Give the slots of the last ``take`` back to the kernel."""
        if self._taken:
            view, start = divmod(self._head, self._per_view)
            status = self._status[view]
            assert status is not None
            status[start : start + self._taken] = TP_STATUS_KERNEL
            self._head = (self._head + self._taken) % self.count
            self._taken = 0

    def dropped(self) -> int:
        """Frames lost for want of slots since the last call."""
        return int(struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1])

    def close(self) -> None:
        """Close it."""
        self._rows = []
        self._status = []
        try:
            self._map.close()
        except BufferError:
            pass  # a view of somebody's is left; the map goes with it
        self._socket.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def columns(rows: U8) -> Received:
    """Parse slots; IPv4 and IPv6 may be mixed."""
    version = rows[:, NETWORK] >> 4
    count = len(rows)
    stride = rows.strides[0]
    seconds = np.ndarray((count, 2), np.uint32, rows, 16, (stride, 4)).astype(np.int64)
    time_ns = seconds[:, 0] * 1_000_000_000 + seconds[:, 1]
    ifindex = np.ndarray((count,), np.int32, rows, LINK_ADDRESS + 4, (stride,)).copy()
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
