"""A steady stream of numbered packets, to measure what a failure costs: lost packets and milliseconds of outage.

Each flow sends a packet every ``interval``; the PSN is the number. A flow has one path, or one per plane: then the
receiver acknowledges every packet with a RoCE ACK, and the sender leaves a path whose ACKs stop for ``DEAD_S``, as a
transport over a split NIC does; it tries the path again every ``RETRY_S``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fabtest.errors import TrafficError
from fabtest.roce.frames import Flow, icrc_is_right, parse
from fabtest.roce.opcodes import Op
from fabtest.roce.receiver import receiver_at
from fabtest.roce.ring import HEADERS
from fabtest.roce.send import NicAddress, Sender
from fabtest.runtime.base import Lab

DEAD_S = 0.1
RETRY_S = 1.0
TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class Path:
    """A way from one NIC port to another, of one plane."""

    src: NicAddress
    dst: NicAddress


@dataclass(slots=True)
class FlowRecord:
    """Of one flow: when each packet was sent (index is its number) and when it arrived first (None: never)."""

    src_port: int
    sent: list[float] = field(default_factory=list)
    arrived: dict[int, float] = field(default_factory=dict)
    by_path: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outage:
    """What one flow suffered. ``outage_ms`` is the longest run of lost packets, times the interval."""

    src_port: int
    sent: int
    lost: int
    outage_ms: float


@dataclass(frozen=True, slots=True)
class StreamResult:
    """All flows together."""

    flows: tuple[Outage, ...]
    bad_icrc: int

    @property
    def sent(self) -> int:
        """Packets sent."""
        return sum(f.sent for f in self.flows)

    @property
    def lost(self) -> int:
        """Packets that never arrived."""
        return sum(f.lost for f in self.flows)

    @property
    def outage_ms(self) -> float:
        """The longest outage of any flow."""
        return max((f.outage_ms for f in self.flows), default=0.0)

    @property
    def disturbed(self) -> int:
        """Flows that lost anything."""
        return sum(f.lost > 0 for f in self.flows)


def together(results: Sequence[StreamResult]) -> StreamResult:
    """Several streams as one."""
    return StreamResult(tuple(f for r in results for f in r.flows), sum(r.bad_icrc for r in results))


def outage_of(record: FlowRecord, interval: float, until: float) -> Outage:
    """Lost packets and the longest run of them, among packets sent before ``until``."""
    sent = sum(1 for at in record.sent if at < until)
    lost = run = longest = 0
    for number in range(sent):
        if number in record.arrived:
            run = 0
        else:
            lost += 1
            run += 1
            longest = max(longest, run)
    return Outage(record.src_port, sent, lost, longest * interval * 1000)


class Stream:
    """Flows between two NICs, running from ``start`` to ``stop``, over the engine's sockets and rings."""

    def __init__(
        self, lab: Lab, paths: Sequence[Path], src_ports: Sequence[int], *, interval: float = 0.01, payload: int = 64
    ) -> None:
        self.lab = lab
        self.paths = tuple(paths)
        self.interval = interval
        self.records = [FlowRecord(p) for p in src_ports]
        self.bad_icrc = 0
        self._by_key: dict[tuple[bytes, bytes, int], tuple[int, int]] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        family = self.paths[0].src.address.version
        with contextlib.ExitStack() as opened:
            self._sender = opened.enter_context(Sender(lab, family))
            # The receiving thread answers, and composes for itself.
            self._answerer = opened.enter_context(Sender(lab, family)) if len(self.paths) > 1 else None
            self._flows: list[list[int]] = []
            self._answers: list[list[int]] = []
            for n, path in enumerate(self.paths):
                flows = [Flow(path.src.address, path.dst.address, port) for port in src_ports]
                self._flows.append([self._sender.flow(path.src, f, payload=payload) for f in flows])
                back = [Flow(path.dst.address, path.src.address, port) for port in src_ports]
                if self._answerer is not None:
                    self._answers.append(
                        [self._answerer.flow(path.dst, f, payload=0, opcode=Op.ACKNOWLEDGE) for f in back]
                    )
                for i, flow in enumerate((*flows, *back)):
                    self._by_key[flow.key] = (n, i % len(flows))
            keep = HEADERS + -(-payload // 8) * 8
            self._in = opened.enter_context(receiver_at(lab, self.paths[0].dst.server, keep=keep, sample=0))
            self._back = (
                opened.enter_context(receiver_at(lab, self.paths[0].src.server, sample=0)) if self._answerer else None
            )
            self._opened = opened.pop_all()

    def start(self) -> None:
        """Begin to send and to receive."""
        for work in (self._receive, self._send):
            thread = threading.Thread(target=work, name=work.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> StreamResult:
        """End, wait for what is on its way, and count. Raises TrafficError if this machine was too slow to count."""
        end = time.monotonic()
        self._stop.set()
        for thread in self._threads:
            thread.join()
        overrun = self._in.ring.dropped()
        self._opened.close()
        if overrun:
            raise TrafficError(f"this machine lost {overrun} received packets: nothing can be said about their flows")
        return StreamResult(tuple(outage_of(r, self.interval, end) for r in self.records), self.bad_icrc)

    def arrived(self) -> int:
        """Packets received so far."""
        return sum(len(r.arrived) for r in self.records)

    def recent(self, seconds: float = 0.2) -> int:
        """Flows of which a packet arrived within the last ``seconds``."""
        now = time.monotonic()
        return sum(1 for r in self.records if r.arrived and now - next(reversed(r.arrived.values())) < seconds)

    def _send(self) -> None:
        count = len(self.records)
        spacing = self.interval / count
        due = time.monotonic()
        turn = 0
        path_of = [n % len(self.paths) for n in range(count)]
        first_silent = [0.0] * len(self.paths)
        tried = [0.0] * len(self.paths)
        while not self._stop.is_set():
            now = time.monotonic()
            if self._back is not None:
                while self._back.take() is not None:
                    for header in map(parse, self._back.ring.frames()):
                        if header is not None and header.opcode == Op.ACKNOWLEDGE and header.key in self._by_key:
                            first_silent[self._by_key[header.key][0]] = 0.0
                    self._back.ring.release()
            flows, psns = [], []
            while due <= now:
                i = turn % count
                n = self._choose(i, path_of, first_silent, tried, now)
                record = self.records[i]
                flows.append(self._flows[n][i])
                psns.append(len(record.sent))
                record.sent.append(now)
                record.by_path[n] = record.by_path.get(n, 0) + 1
                if self._back is not None and not first_silent[n]:
                    first_silent[n] = now
                turn += 1
                due += spacing
            if flows:
                self._sender.send(flows, psns)
            self._stop.wait(max(TICK_S, due - time.monotonic()))

    def _choose(self, i: int, path_of: list[int], silent_since: list[float], tried: list[float], now: float) -> int:
        """The flow's own path while it is acknowledged, else the next that is; now and then the dead one is tried."""
        if self._back is None:
            return 0
        home = path_of[i]
        for step in range(len(self.paths)):
            n = (home + step) % len(self.paths)
            if not silent_since[n] or now - silent_since[n] < DEAD_S:
                return n
            if now - tried[n] > RETRY_S:
                tried[n] = now
                return n
        return home

    def _receive(self) -> None:
        quiet_since = 0.0
        while True:
            batch = self._in.take()
            got = False
            if batch is not None:
                frames, times = self._in.ring.frames(), batch.time_ns.tolist()
                self._in.ring.release()
                got = self._arrived(frames, times)
            now = time.monotonic()
            if got:
                quiet_since = now
            if self._stop.is_set() and now - quiet_since > 0.3:
                return
            if batch is None:
                time.sleep(TICK_S)

    def _arrived(self, frames: list[bytes], times_ns: list[int]) -> bool:
        """Whether one of them is of a flow of this stream."""
        got = False
        answers, psns = [], []
        for frame, at in zip(frames, times_ns, strict=True):
            header = parse(frame)
            if header is None or header.opcode != Op.SEND_ONLY or header.key not in self._by_key:
                continue
            got = True
            if not icrc_is_right(frame):
                self.bad_icrc += 1
                continue
            n, i = self._by_key[header.key]
            self.records[i].arrived.setdefault(header.psn, at / 1e9)
            if self._answerer is not None:
                answers.append(self._answers[n][i])
                psns.append(header.psn)
        if self._answerer is not None and answers:
            self._answerer.send(answers, psns)
        return got
