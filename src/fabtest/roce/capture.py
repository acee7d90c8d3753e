"""Receiving RoCEv2 frames in a namespace, entered from outside: an AF_PACKET socket with a filter in the kernel."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fabtest.roce.frames import UDP_PORT
from fabtest.runtime.namespaces import inside

SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
ETH_P_ALL = 3
#: Bytes of each frame that are kept unless a capture asks for whole frames: up to the BTH over IPv6.
HEADERS = 96
_PKTTYPE = 0xFFFFF000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE, linux/filter.h
_OUTGOING = 4


def _filter(snap: int) -> bytes:
    """Classic BPF: frames received (not sent) here, UDP to port 4791 over IPv4 or IPv6; cut at ``snap`` bytes."""
    program = [
        (0x20, 0, 0, _PKTTYPE),  # 0 ld pkttype
        (0x15, 12, 0, _OUTGOING),  # 1 jeq outgoing -> drop (14)
        (0x28, 0, 0, 12),  # 2 ldh ethertype
        (0x15, 0, 5, 0x0800),  # 3 jeq IPv4 else 9
        (0x30, 0, 0, 23),  # 4 ldb protocol
        (0x15, 0, 8, 17),  # 5 jeq UDP else drop (14)
        (0xB1, 0, 0, 14),  # 6 ldxb 4*(ihl)
        (0x48, 0, 0, 16),  # 7 ldh [x+16] destination port
        (0x05, 0, 0, 3),  # 8 ja 12
        (0x15, 0, 4, 0x86DD),  # 9 jeq IPv6 else drop (14)
        (0x28, 0, 0, 56),  # 10 ldh destination port after a bare IPv6 header
        (0x05, 0, 0, 0),  # 11 ja 12
        (0x15, 0, 1, UDP_PORT),  # 12 jeq 4791 else drop (14)
        (0x06, 0, 0, snap),  # 13 keep
        (0x06, 0, 0, 0),  # 14 drop
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in program)


class Capture:
    """RoCEv2 frames that arrive at any interface of a namespace, from its making on. Read from any thread."""

    def __init__(self, netns: str | os.PathLike[str], *, whole: bool = False, buffer: int = 16 << 20) -> None:
        code = ctypes.create_string_buffer(_filter(0x40000 if whole else HEADERS))
        with inside(netns):
            # What comes in before the filter stands is told by its headers.
            self._socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.htons(ETH_P_ALL)
            )
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer)
        count = (len(code) - 1) // 8
        self._socket.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", count, ctypes.addressof(code))
        )
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def frames(self) -> Iterator[tuple[bytes, str]]:
        """(frame, interface it came in by) of everything that waits."""
        receive = self._socket.recvfrom
        while True:
            try:
                frame, address = receive(65536)
            except BlockingIOError:
                return
            if address[2] != _OUTGOING:
                yield frame, address[0]

    def dropped(self) -> int:
        """Frames lost for want of buffer since the last call (PACKET_STATISTICS)."""
        return int(struct.unpack("II", self._socket.getsockopt(263, 6, 8))[1])

    def close(self) -> None:
        """Close it; the kernel takes some 10 ms for that."""
        self._socket.close()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def close_all(captures: Iterable[Capture]) -> None:
    """Close many side by side."""
    chosen: Sequence[Capture] = list(captures)
    if chosen:
        with ThreadPoolExecutor(min(64, len(chosen))) as pool:
            list(pool.map(Capture.close, chosen))
