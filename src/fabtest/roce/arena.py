"""Prebuilt frames of many flows in one block of memory, updated in place: PSN and ICRC per frame, nothing else.

A row holds a whole frame. While there are no more flows than rows, each flow keeps its row and only PSN and ICRC are
written; otherwise the flow's headers are copied in first. All flows of an arena have frames of the same layout.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fabtest.roce.frames import Flow, header, icrc_of
from fabtest.roce.linear import U8, U32, psn_change, word_tables
from fabtest.roce.opcodes import EXTENSION_BYTES, Op, Transport

#: Rows: more than the frames that wait in any socket at one time.
ROWS = 1024
PSN_MASK = np.uint32(0xFFFFFF)
#: What payloads are filled with: bytes that differ from their neighbours.
PATTERN = bytes(range(256)) * 16


def payload_bytes(length: int) -> bytes:
    """The payload of every data packet: the same bytes again and again."""
    return (PATTERN * (length // len(PATTERN) + 1))[:length]


class Arena:
    """Frames of flows out of one port, all with the same payload length and opcode."""

    def __init__(
        self, flows: Sequence[Flow], src_mac: bytes, dst_mac: bytes, payload: int, *,
        opcode: int = Transport.UC | Op.SEND_ONLY, first_psn: int = 0, rows: int = ROWS,
    ) -> None:  # fmt: skip
        data = payload_bytes(payload) + bytes(-payload % 4)
        extended = _extended(opcode, payload)
        heads = [header(flow, src_mac, dst_mac, opcode, payload, extended=extended) for flow in flows]
        self.flows = len(flows)
        self.header_length = len(heads[0])
        self.frame_length = len(heads[0]) + len(data) + 4
        #: One page per row, or two: AF_XDP takes frames in pieces of at most a page.
        self.stride = 2048 if self.frame_length <= 2048 else 4096 * -(-self.frame_length // 4096)
        #: Where a frame starts in its row: at its end if it takes several pages, so that all pieces but the first are
        #: whole pages. The kernel then allocates little for the first and copies the rest page by page.
        self.lead = self.stride - self.frame_length if self.stride > 2048 else 0
        count = max(rows, 1)
        kept = len(flows) <= count
        if kept:
            # Whole rounds of the flows, so that a row keeps its flow when the arena wraps.
            count = -(-count // len(flows)) * len(flows)
        self.count = count
        self.memory = mmap.mmap(-1, count * self.stride)
        self.rows: U8 = np.frombuffer(self.memory, np.uint8).reshape(count, self.stride)[:, self.lead :]
        self._heads: U8 = np.frombuffer(b"".join(heads), np.uint8).reshape(len(flows), self.header_length)
        bases = [icrc_of(head[14:] + data) for head in heads]
        self._bases: U32 = np.array(bases, np.uint32)
        bth = (14 + 20 if flows[0].src.version == 4 else 14 + 40) + 8
        self._tables = word_tables(self.frame_length - 4 - (bth + 12))
        self._first_psn = first_psn
        self._flow_psn: U32 = np.full(len(flows), first_psn, np.uint32)
        self._row_psn: U32 | None = None
        self._filled = 0
        self._psn_view = self._column(bth + 8, ">u4")
        self._icrc_view = self._column(self.frame_length - 4, "<u4")
        body = np.frombuffer(data, np.uint8)
        self.rows[:, self.header_length : self.header_length + len(body)] = body
        self._rounds = np.uint32(count // len(flows))
        if kept:
            self.rows[:, : self.header_length] = np.tile(self._heads, (count // len(flows), 1))
            self._row_bases: U32 = np.tile(self._bases, count // len(flows))
            rounds = np.repeat(np.arange(count // len(flows), dtype=np.uint32), len(flows))
            self._row_psn = (rounds + np.uint32(first_psn)) & PSN_MASK

    def _column(self, offset: int, kind: str) -> NDArray[np.uint32]:
        return np.ndarray((self.count,), np.dtype(kind), self.memory, self.lead + offset, (self.stride,))

    def psn(self) -> U32:
        """Shape (flows,): the next PSN of each flow."""
        if self._row_psn is None:
            return self._flow_psn
        # Rows are used in turn, so flow i has had every so many-th frame.
        had = (self._filled - np.arange(self.flows) + self.flows - 1) // self.flows
        psn: U32 = ((had + self._first_psn) & 0xFFFFFF).astype(np.uint32)
        return psn

    def fill(self, row: int, flow: int, count: int) -> None:
        """Write the next frames of ``count`` flows, in turn from ``flow`` on, into rows from ``row`` on.

        ``row + count`` must not pass the last row. While every flow has its row, ``flow`` is ``row`` modulo flows.
        """
        target = slice(row, row + count)
        if self._row_psn is not None:
            psn = self._row_psn[target]
            change = psn_change(self._tables, psn)
            change ^= self._row_bases[target]
            self._psn_view[target] = psn
            self._icrc_view[target] = change
            psn += self._rounds
            psn &= PSN_MASK
            self._filled += count
            return
        while count:
            part = min(count, self.flows - flow)
            self._copy(row, slice(flow, flow + part), part)
            row, flow, count = row + part, (flow + part) % self.flows, count - part

    def _copy(self, row: int, chosen: slice, count: int) -> None:
        target = slice(row, row + count)
        psn = self._flow_psn[chosen]
        self.rows[target, : self.header_length] = self._heads[chosen]
        self._psn_view[target] = psn
        self._icrc_view[target] = psn_change(self._tables, psn) ^ self._bases[chosen]
        self._flow_psn[chosen] = (psn + np.uint32(1)) & PSN_MASK

    def fill_some(self, row: int, chosen: NDArray[np.int64]) -> None:
        """Write the next frames of flows by number into rows from ``row`` on; a flow may stand there several times."""
        if self._row_psn is not None:
            self._flow_psn = self.psn()
            self._row_psn = None
        target = slice(row, row + len(chosen))
        psn = (self._flow_psn[chosen] + _occurrence(chosen)) & PSN_MASK
        self.rows[target, : self.header_length] = self._heads[chosen]
        self._psn_view[target] = psn
        self._icrc_view[target] = psn_change(self._tables, psn) ^ self._bases[chosen]
        np.add.at(self._flow_psn, chosen, np.uint32(1))
        self._flow_psn[chosen] &= PSN_MASK

    def frame(self, row: int) -> bytes:
        """The frame in a row."""
        return self.rows[row, : self.frame_length].tobytes()


def _occurrence(chosen: NDArray[np.int64]) -> U32:
    """How often each value stood there before: [5, 7, 5] -> [0, 0, 1]."""
    order = np.argsort(chosen, kind="stable")
    ordered = chosen[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(chosen)])
    counts = np.arange(len(chosen)) - np.repeat(starts, lengths)
    result = np.empty(len(chosen), np.uint32)
    result[order] = counts
    return result


def _extended(opcode: int, payload: int) -> bytes:
    """Extended headers of a data packet: a RETH names address 0 and the length, a DETH the well-known Q_Key."""
    size = EXTENSION_BYTES[opcode]
    if size == 16:
        return struct.pack("!QII", 0, 1, payload)
    if size == 8:
        return struct.pack("!II", 0x11111111, 0)
    return bytes(size)
