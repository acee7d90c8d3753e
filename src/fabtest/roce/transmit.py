"""Sending rows of an arena out of an interface in batches: AF_XDP in copy mode, or sendmmsg where that is missing.

AF_XDP hands frames to the driver without the traffic-control layer and without copying headers twice; on veth it
carries about 1.4 times as many small frames as sendmmsg does. Both leave the frame as it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import time
from typing import Protocol

import numpy as np

from fabtest.errors import TrafficError
from fabtest.roce.arena import Arena
from fabtest.runtime.namespaces import inside

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

#: linux/if_packet.h
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
SO_SNDBUFFORCE = 32
SEND_BUFFER = 8 << 20
#: linux/if_xdp.h
AF_XDP, SOL_XDP = 44, 283
XDP_MMAP_OFFSETS, XDP_TX_RING, XDP_UMEM_REG, XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING = 1, 3, 4, 5, 6
XDP_MAX_TX_SKB_BUDGET = 9
XDP_COPY, XDP_USE_SG, XDP_PKT_CONTD = 1 << 1, 1 << 4, 1 << 0
#: How long a queue that another socket has may stay busy.
BUSY_S = 2.0
TX_OFFSET, COMPLETION_OFFSET = 0x80000000, 0x180000000
#: Errors of a link that is down or gone, or a queue that is full: the frame is lost, as with hardware.
LOST = frozenset({errno.ENETDOWN, errno.ENOBUFS, errno.ENODEV, errno.ENXIO})
AGAIN = frozenset({errno.EAGAIN, errno.EBUSY, errno.EINTR})


class Transmitter(Protocol):
    """A way out of one interface for the rows of one arena."""

    name: str

    def room(self, row: int) -> int:
        """How many rows from ``row`` on may be written now (their former frames have left); no wrap."""

    def send(self, row: int, count: int) -> int:
        """Send ``count`` rows from ``row`` on; returns how many the kernel took. Blocks while its queue is full."""

    def drain(self) -> None:
        """Wait until everything has left."""

    def close(self) -> None:
        """Close it."""


class BatchTransmitter:
    """sendmmsg on an AF_PACKET socket that bypasses the queueing discipline."""

    name = "sendmmsg"

    def __init__(self, netns: str | os.PathLike[str], interface: str, arena: Arena) -> None:
        self._arena = arena
        with inside(netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            self._socket.bind((interface, 0))
        self._socket.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, struct.pack("i", SEND_BUFFER))
        count = arena.count
        # struct iovec and struct mmsghdr of each row, laid out once.
        self._iov = np.zeros((count, 2), np.uint64)
        self._iov[:, 0] = arena.rows.ctypes.data + np.arange(count, dtype=np.uint64) * np.uint64(arena.stride)
        self._iov[:, 1] = arena.frame_length
        self._messages = np.zeros((count, 8), np.uint64)
        self._messages[:, 2] = self._iov.ctypes.data + np.arange(count, dtype=np.uint64) * np.uint64(16)
        self._messages[:, 3] = 1
        self._base = self._messages.ctypes.data

    def room(self, row: int) -> int:
        """All: the kernel has copied what was sent."""
        return self._arena.count - row

    def send(self, row: int, count: int) -> int:
        """Frames for a link that is down are lost and count as sent."""
        done = 0
        while done < count:
            taken = _libc.sendmmsg(
                self._socket.fileno(), ctypes.c_void_p(self._base + 64 * (row + done)), count - done, 0
            )
            if taken < 0:
                code = ctypes.get_errno()
                if code in LOST:
                    done += 1
                elif code not in AGAIN:
                    raise TrafficError(f"cannot send: {os.strerror(code)}")
            else:
                done += taken
        return done

    def drain(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class XdpTransmitter:
    """AF_XDP in copy mode: rows are the frames of its UMEM. Raises OSError where kernel or driver cannot."""

    name = "af_xdp"

    def __init__(self, netns: str | os.PathLike[str], interface: str, arena: Arena) -> None:
        self._arena = arena
        self._pieces = -(-arena.frame_length // 4096) if arena.stride > 2048 else 1
        self._maps: list[tuple[int, int]] = []
        with inside(netns):
            self._socket = socket.socket(AF_XDP, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            index = socket.if_nametoindex(interface)
        try:
            self._set_up(index)
        except OSError:
            self.close()
            raise
        self._taken = self._done = 0

    def _set_up(self, index: int) -> None:
        arena, pieces = self._arena, self._pieces
        chunk = 2048 if arena.stride == 2048 else 4096
        self._entries = entries = 1 << (arena.count * pieces - 1).bit_length()
        base = arena.rows.ctypes.data - arena.lead
        umem = struct.pack("=QQIIII", base, arena.count * arena.stride, chunk, 0, 0, 0)
        self._socket.setsockopt(SOL_XDP, XDP_UMEM_REG, umem)
        for option, size in ((XDP_UMEM_FILL_RING, 64), (XDP_UMEM_COMPLETION_RING, entries), (XDP_TX_RING, entries)):
            self._socket.setsockopt(SOL_XDP, option, size)
        try:
            self._socket.setsockopt(SOL_XDP, XDP_MAX_TX_SKB_BUDGET, min(256, entries))
        except OSError:
            pass  # before Linux 6.17: 32 frames per call
        offsets = struct.unpack("=16Q", self._socket.getsockopt(SOL_XDP, XDP_MMAP_OFFSETS, 128))
        transmit, completion = offsets[4:8], offsets[12:16]
        at = self._map(transmit[2] + 16 * entries, TX_OFFSET)
        self._producer = _words(at + transmit[0], 1)
        descriptors = _longs(at + transmit[2], 2 * entries).reshape(entries, 2)
        at = self._map(completion[2] + 8 * entries, COMPLETION_OFFSET)
        self._completed = _words(at + completion[0], 1)
        self._completed_read = _words(at + completion[1], 1)
        self._descriptors = descriptors
        self._template = np.zeros((arena.count * pieces, 2), np.uint64)
        starts = np.arange(arena.count, dtype=np.uint64) * np.uint64(arena.stride)
        for piece in range(pieces):
            # The first piece is what is left when the others are whole pages; every piece but the last says that more
            # follows.
            at = piece * chunk if piece else arena.lead
            length = chunk if piece else arena.frame_length - (pieces - 1) * chunk
            self._template[piece::pieces, 0] = starts + np.uint64(at)
            self._template[piece::pieces, 1] = length | (XDP_PKT_CONTD << 32 if piece < pieces - 1 else 0)
        address = struct.pack("=HHIII", AF_XDP, XDP_COPY | (XDP_USE_SG if pieces > 1 else 0), index, 0, 0)
        # The kernel lets go of the socket before us in its own time.
        deadline = time.monotonic() + BUSY_S
        while _libc.bind(self._socket.fileno(), address, len(address)):
            code = ctypes.get_errno()
            if code != errno.EBUSY or time.monotonic() > deadline:
                raise OSError(code, os.strerror(code))
            time.sleep(0.01)

    def _map(self, length: int, offset: int) -> int:
        at = _libc.mmap(None, length, 3, 0x8001, self._socket.fileno(), offset)
        if at in (None, ctypes.c_void_p(-1).value):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._maps.append((at, length))
        return int(at)

    def _reap(self) -> None:
        completed = int(self._completed[0])
        self._completed_read[0] = completed
        self._done += (completed - self._done) & 0xFFFFFFFF

    def room(self, row: int) -> int:
        """Rows are used in turn, so those that may be written are as many as are not on their way."""
        self._reap()
        free = self._arena.count - (self._taken - self._done) // self._pieces - 1
        return max(0, min(free, self._arena.count - row))

    def send(self, row: int, count: int) -> int:
        """All of them; waits for the kernel to take them."""
        pieces, entries = self._pieces, self._entries
        first, total = row * pieces, count * pieces
        here = self._taken % entries
        head = min(total, entries - here)
        self._descriptors[here : here + head] = self._template[first : first + head]
        if head < total:
            self._descriptors[: total - head] = self._template[first + head : first + total]
        self._taken += total
        self._producer[0] = self._taken & 0xFFFFFFFF
        self._kick()
        return count

    def _kick(self) -> None:
        """Have the kernel take what is in the ring: it does so many per call, and says EAGAIN when there is more."""
        while True:
            if _libc.sendto(self._socket.fileno(), None, 0, socket.MSG_DONTWAIT, None, 0) >= 0:
                return
            code = ctypes.get_errno()
            if code in (errno.EBUSY, errno.ENOBUFS):  # frames are still in flight: let them go
                self._reap()
                select.select([], [], [], 0.00005)
            elif code == errno.ENETDOWN:  # a link without carrier: what is in the ring goes when it is back
                return
            elif code not in AGAIN:
                raise TrafficError(f"cannot send: {os.strerror(code)}")

    def drain(self) -> None:
        """Kick until all frames have left, or for a fifth of a second."""
        for _ in range(200):
            self._reap()
            if self._done == self._taken:
                return
            self._kick()
            select.select([], [], [], 0.001)

    def close(self) -> None:
        """The socket lives as long as its rings are mapped."""
        for at, length in self._maps:
            _libc.munmap(at, length)
        self._maps = []
        self._socket.close()


def _words(at: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(at))


def _longs(at: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(at))


def transmitter(netns: str | os.PathLike[str], interface: str, arena: Arena, method: str = "auto") -> Transmitter:
    """The fastest way there is, or the one named: ``af_xdp`` or ``sendmmsg``. Raises TrafficError."""
    if method in ("auto", "af_xdp"):
        try:
            return XdpTransmitter(netns, interface, arena)
        except OSError as error:
            if method == "af_xdp":
                raise TrafficError(f"AF_XDP is not to be had on {interface}: {error.strerror}") from None
    try:
        return BatchTransmitter(netns, interface, arena)
    except OSError as error:
        raise TrafficError(f"cannot send by {interface}: {error.strerror}") from None
