"""Frames of many queue pairs, of any kind and length, composed at once and sent with one system call per namespace.

A template is everything of a frame but its PSN (with the acknowledge-request bit) and one more word: the AETH of an
answer, or immediate data. Both words are patched into copies of the templates' headers and into their ICRCs by
tables, for all frames of a turn together. Payloads are never copied: every frame points at the same pattern.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import socket
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fabtest.errors import TrafficError
from fabtest.roce.arena import payload_bytes
from fabtest.roce.frames import icrc_of
from fabtest.roce.linear import U8, U32, word_tables
from fabtest.roce.transmit import AGAIN, LOST, PACKET_QDISC_BYPASS, SO_SNDBUFFORCE, SOL_PACKET
from fabtest.runtime.namespaces import inside

HEADER_ROOM = 128
#: Frames per system call.
BATCH = 512
SEND_BUFFER = 32 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Port:
    """A raw socket of a namespace; frames say by which of its interfaces they leave.

    ``visible``: captures there see what is sent.
    """

    def __init__(self, netns: str | os.PathLike[str], *, visible: bool = False) -> None:
        with inside(netns):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        if not visible:
            self.socket.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, struct.pack("i", SEND_BUFFER))

    def close(self) -> None:
        """Close it."""
        self.socket.close()


class Composer:
    """Templates and the frames made of them. ``family`` is the IP version of all of them."""

    def __init__(self, family: int) -> None:
        self._bth = 42 if family == 4 else 62
        self._ports: list[Port] = []
        self._room = 256
        self._heads: U8 = np.zeros((self._room, HEADER_ROOM), np.uint8)
        self._lengths = np.zeros((self._room, 2), np.uint64)
        self._bases: U32 = np.zeros(self._room, np.uint32)
        self._kinds = np.zeros(self._room, np.int64)
        self._second = np.zeros(self._room, np.int64)
        self._port_of = np.zeros(self._room, np.int64)
        self._address_of = np.zeros(self._room, np.int64)
        self.templates = 0
        self._addresses: dict[int, int] = {}
        self._address_memory = np.zeros((1024, 20), np.uint8)
        self._tables: dict[tuple[int, int], int] = {}
        self._words: U32 = np.zeros((0, 2, 4, 256), np.uint32)
        self._payload = np.frombuffer(payload_bytes(8192 + 4), np.uint8)
        self._pads: dict[int, NDArray[np.uint8]] = {}
        self._payload_at = np.zeros(self._room, np.uint64)
        # Of one turn: rows, ICRCs, and what the kernel reads, laid out once.
        self._rows: U8 = np.zeros((BATCH, HEADER_ROOM), np.uint8)
        self._icrcs: U32 = np.zeros(BATCH, np.uint32)
        self._iov = np.zeros((BATCH, 3, 2), np.uint64)
        self._iov[:, 0, 0] = self._rows.ctypes.data + np.arange(BATCH, dtype=np.uint64) * np.uint64(HEADER_ROOM)
        self._iov[:, 2, 0] = self._icrcs.ctypes.data + np.arange(BATCH, dtype=np.uint64) * np.uint64(4)
        self._iov[:, 2, 1] = 4
        self._messages = np.zeros((BATCH, 8), np.uint64)
        self._messages[:, 1] = 20
        self._messages[:, 2] = self._iov.ctypes.data + np.arange(BATCH, dtype=np.uint64) * np.uint64(48)
        self._messages[:, 3] = 3
        self.lost = 0
        self.sent = 0

    def add_port(self, port: Port) -> int:
        """A namespace's socket; its number."""
        self._ports.append(port)
        return len(self._ports) - 1

    def template(self, head: bytes, payload: int, port: int, ifindex: int, second: int = 12) -> int:
        """A frame: its header, payload length in bytes, and where it leaves; its number.

        ``second``: where its second word stands, in bytes after the start of the BTH.
        """
        n = self.templates
        if n == self._room:
            self._grow()
        data = self._payload_of(payload)
        self._heads[n, : len(head)] = np.frombuffer(head, np.uint8)
        self._lengths[n] = len(head), len(data)
        self._payload_at[n] = data.ctypes.data
        packet = head[14:] + data.tobytes()
        self._bases[n] = icrc_of(packet)
        total = len(head) + len(data)
        key = (total - self._bth - 12, total - self._bth - second - 4)
        if key not in self._tables:
            self._tables[key] = len(self._tables)
            fresh = np.stack([word_tables(max(0, distance)) for distance in key])
            self._words = np.concatenate([self._words, fresh[None]])
        self._kinds[n] = self._tables[key]
        self._second[n] = second
        self._port_of[n] = port
        self._address_of[n] = self._address(ifindex)
        self.templates = n + 1
        return n

    def _payload_of(self, length: int) -> NDArray[np.uint8]:
        padded = -(-length // 4) * 4
        if padded == length:
            return self._payload[:length]
        if length not in self._pads:
            self._pads[length] = np.frombuffer(payload_bytes(length) + bytes(padded - length), np.uint8).copy()
        return self._pads[length]

    def _address(self, ifindex: int) -> int:
        if ifindex not in self._addresses:
            n = len(self._addresses)
            if n == len(self._address_memory):
                raise TrafficError(f"more than {n} interfaces in one engine process")
            self._addresses[ifindex] = n
            link = struct.pack("=HHiHBB8s", socket.AF_PACKET, 0, ifindex, 0, 0, 6, b"")
            self._address_memory[n] = np.frombuffer(link, np.uint8)
        return int(self._address_memory.ctypes.data) + 20 * self._addresses[ifindex]

    def _grow(self) -> None:
        self._room *= 2
        for name in (
            "_heads", "_lengths", "_bases", "_kinds", "_second", "_port_of", "_address_of", "_payload_at",
        ):  # fmt: skip
            old = getattr(self, name)
            fresh = np.zeros((self._room, *old.shape[1:]), old.dtype)
            fresh[: len(old)] = old
            setattr(self, name, fresh)

    def send(self, templates: Sequence[int], words: Sequence[int], seconds: Sequence[int]) -> None:
        """Frames in order: template numbers, BTH words (acknowledge request and PSN) and second words."""
        for start in range(0, len(templates), BATCH):
            part = slice(start, start + BATCH)
            self._send(templates[part], words[part], seconds[part])

    def _send(self, templates: Sequence[int], words: Sequence[int], seconds: Sequence[int]) -> None:
        chosen = np.asarray(templates, np.int64)
        first, second = np.asarray(words, np.uint32), np.asarray(seconds, np.uint32)
        ports = self._port_of[chosen]
        if len(self._ports) > 1 and (ports[1:] != ports[:-1]).any():
            order = np.argsort(ports, kind="stable")
            chosen, first, second, ports = chosen[order], first[order], second[order], ports[order]
        count = len(chosen)
        rows = self._rows[:count]
        self._heads.take(chosen, axis=0, out=rows, mode="clip")
        at = self._bth + 8
        rows[:, at : at + 4] = first.astype(">u4").view(np.uint8).reshape(count, 4)
        bases = self._bases[chosen] ^ self._change(chosen, 0, first)
        if second.any():
            where = self._second[chosen]
            data = second.astype(">u4").view(np.uint8).reshape(count, 4)
            for place in np.unique(where[second != 0]):
                mine = np.flatnonzero((where == place) & (second != 0))
                place += self._bth
                rows[mine, place : place + 4] = data[mine]
            bases ^= self._change(chosen, 1, second)
        self._icrcs[:count] = bases
        self._iov[:count, 0, 1] = self._lengths[chosen, 0]
        self._iov[:count, 1, 0] = self._payload_at[chosen]
        self._iov[:count, 1, 1] = self._lengths[chosen, 1]
        self._messages[:count, 0] = self._address_of[chosen]
        edges = [0, *(np.flatnonzero(ports[1:] != ports[:-1]) + 1).tolist(), count]
        for a, b in itertools.pairwise(edges):
            self._out(self._ports[int(ports[a])], a, b)
        self.sent += count

    def _change(self, chosen: NDArray[np.int64], which: int, words: U32) -> U32:
        flat = self._words.reshape(-1)
        base = self._kinds[chosen] * 2048 + which * 1024
        change: U32 = flat[base + (words >> np.uint32(24)).astype(np.int64)]
        change ^= flat[base + 256 + ((words >> np.uint32(16)) & np.uint32(0xFF)).astype(np.int64)]
        change ^= flat[base + 512 + ((words >> np.uint32(8)) & np.uint32(0xFF)).astype(np.int64)]
        change ^= flat[base + 768 + (words & np.uint32(0xFF)).astype(np.int64)]
        return change

    def _out(self, port: Port, start: int, stop: int) -> None:
        base, handle = self._messages.ctypes.data, port.socket.fileno()
        while start < stop:
            taken = _libc.sendmmsg(handle, ctypes.c_void_p(base + 64 * start), stop - start, 0)
            if taken > 0:
                start += taken
                continue
            code = ctypes.get_errno()
            if code in LOST:
                self.lost += 1
                start += 1
            elif code not in AGAIN and code != errno.ENOMEM:
                raise TrafficError(f"cannot send: {os.strerror(code)}")
