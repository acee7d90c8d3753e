"""Open-loop sending: flows at fixed rates, whatever the network does. Packets of a flow are numbered by their PSN.

Frames leave at their due time on the monotonic clock, at most ``batch`` back to back; after a stall the sender catches
up at no more than twice the rate, so that the mean holds without a burst.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabtest.errors import TrafficError
from fabtest.roce.arena import Arena
from fabtest.roce.transmit import Transmitter

#: Flows with rates of their own are ordered by due time over so long at once.
WINDOW_NS = 10_000_000
#: The fastest that a stalled sender catches up, in terms of its rate.
CATCH_UP = 2
#: Packets per call when there is no rate to keep.
FLAT_OUT_BATCH = 256
#: A wait shorter than this is spent looking at the clock.
SPIN_NS = 60_000


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent: packets in all and per flow, and in how long; ``biggest_burst`` in packets."""

    packets: int
    per_flow: NDArray[np.int64]
    seconds: float
    biggest_burst: int
    method: str

    @property
    def pps(self) -> float:
        """Packets per second."""
        return self.packets / self.seconds if self.seconds else 0.0


@contextlib.contextmanager
def realtime(priority: int = 10) -> Iterator[bool]:
    """SCHED_FIFO for the calling thread where that is allowed; it steadies sleeps from milliseconds to microseconds."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except (OSError, AttributeError):
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class OpenLoop:
    """Flows of one arena out of one port."""

    def __init__(self, arena: Arena, transmitter: Transmitter, *, batch: int = 32) -> None:
        self.arena = arena
        self.transmitter = transmitter
        self.batch = min(batch, arena.count)
        self._row = 0
        self._flow = 0

    def run(
        self, *, pps: float = 0.0, rates: Sequence[float] | None = None, count: int = 0, seconds: float = 0.0
    ) -> Sent:
        """Send until ``count`` packets or ``seconds``, whichever comes first.

        ``pps``: in all, over the flows in turn; 0 as fast as it goes. ``rates``: per flow instead.
        """
        before = self.arena.psn().copy()
        if rates is not None:
            total, biggest, took = self._by_rates(np.asarray(rates, float), count, seconds)
        elif pps:
            with realtime():
                total, biggest, took = self._paced(pps, count, seconds)
        else:
            total, biggest, took = self._flat_out(count, seconds)
        self.transmitter.drain()
        per_flow = (self.arena.psn().astype(np.int64) - before.astype(np.int64)) & 0xFFFFFF
        return Sent(total, per_flow, took, biggest, self.transmitter.name)

    def _put(self, wanted: int) -> int:
        """The next frames of the flows in turn; fewer where the arena wraps or its rows have not left yet."""
        arena = self.arena
        wanted = min(wanted, self.transmitter.room(self._row))
        if wanted <= 0:
            self._wait_for_room()
            return 0
        arena.fill(self._row, self._flow, wanted)
        self.transmitter.send(self._row, wanted)
        self._row = (self._row + wanted) % arena.count
        self._flow = (self._flow + wanted) % arena.flows
        return wanted

    def _wait_for_room(self) -> None:
        """Until frames have left. Raises TrafficError if none does: the port is down."""
        self.transmitter.drain()
        if self.transmitter.room(self._row) <= 0:
            raise TrafficError("frames do not leave the port", hint="is it up? see `lab-status`")

    def _flat_out(self, count: int, seconds: float) -> tuple[int, int, float]:
        start = time.perf_counter_ns()
        end = start + int(seconds * 1e9) if seconds else 0
        sent = 0
        batch = max(self.batch, min(FLAT_OUT_BATCH, self.arena.count))
        while (not count or sent < count) and (not end or time.perf_counter_ns() < end):
            sent += self._put(min(batch, count - sent) if count else batch)
        return sent, batch, (time.perf_counter_ns() - start) / 1e9

    def _paced(self, pps: float, count: int, seconds: float) -> tuple[int, int, float]:
        clock = time.perf_counter_ns
        gap = 1e9 / pps
        # Small batches at low rates: each packet at its own time; at high rates as many as come due in a sleep.
        total = min(count or 1 << 62, int(seconds * pps) if seconds else 1 << 62)
        start = clock()
        sent = biggest = 0
        earliest = start
        while sent < total:
            now = clock()
            due = min(int((now - start) / gap) + 1, total) - sent
            if due <= 0 or now < earliest:
                _until(max(earliest, start + int(sent * gap)))
                continue
            put = 0
            while put < min(due, self.batch):
                put += self._put(min(due, self.batch) - put)
            sent += put
            biggest = max(biggest, put)
            earliest = now + int(put * gap / CATCH_UP)
        # The rate is over whole gaps: the last packet's own counts.
        _until(start + int(sent * gap))
        return sent, biggest, (clock() - start) / 1e9

    def _by_rates(self, rates: NDArray[np.float64], count: int, seconds: float) -> tuple[int, int, float]:
        clock = time.perf_counter_ns
        arena = self.arena
        total_rate = float(rates.sum())
        limit = min(count or 1 << 62, int(seconds * total_rate) if seconds else 1 << 62)
        sent = biggest = 0
        done = np.zeros(len(rates))
        phase = np.arange(len(rates)) / max(1, len(rates))
        window = 0
        with realtime():
            start = clock()
            earliest = start
            while sent < limit:
                window += WINDOW_NS
                upto = np.floor(rates * (window / 1e9) + phase)
                many = (upto - done).astype(np.int64)
                flows = np.repeat(np.arange(len(rates)), many)
                if not len(flows):
                    continue
                number = np.arange(len(flows)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(done, many) + 1
                due_at = (number - phase[flows]) / rates[flows] * 1e9
                order = np.argsort(due_at, kind="stable")
                flows, due_at = flows[order][: limit - sent], due_at[order]
                done = upto
                at = 0
                while at < len(flows):
                    now = clock()
                    due = int(np.searchsorted(due_at[: len(flows)], now - start, side="right")) - at
                    if due <= 0 or now < earliest:
                        _until(max(earliest, start + int(due_at[at])))
                        continue
                    room = self.transmitter.room(self._row)
                    put = min(due, self.batch, room)
                    if put <= 0:
                        self._wait_for_room()
                        continue
                    arena.fill_some(self._row, flows[at : at + put])
                    self.transmitter.send(self._row, put)
                    self._row = (self._row + put) % arena.count
                    at += put
                    biggest = max(biggest, put)
                    earliest = now + int(put / total_rate * 1e9 / CATCH_UP)
                sent += len(flows)
            return sent, biggest, (clock() - start) / 1e9


def _until(due: int) -> None:
    """Sleep until a time of ``perf_counter_ns``, the last bit of it awake."""
    left = due - time.perf_counter_ns()
    if left > SPIN_NS:
        time.sleep((left - SPIN_NS) / 1e9)
    elif left > 0:
        # Awake, but not for long: a real-time thread that never sleeps starves the machine.
        time.sleep(left / 1e9 if left > 20_000 else 0)
