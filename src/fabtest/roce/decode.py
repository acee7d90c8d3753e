"""RoCE in a capture file, read for people: each packet in words, and what each queue pair went through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from fabtest.errors import FileProblem
from fabtest.roce.frames import RocePacket, read
from fabtest.roce.opcodes import CNP, EXTENSION_BYTES, READ_RESPONSES, Op
from fabtest.roce.transport import HALF, PSN_MASK, RNR_TIMER_NS

_SYNDROMES = {
    0x60: "NAK PSN sequence error", 0x61: "NAK invalid request", 0x62: "NAK remote access error",
    0x63: "NAK remote operational error", 0x64: "NAK invalid RD request",
}  # fmt: skip


def syndrome_text(syndrome: int) -> str:
    """An AETH syndrome in words (InfiniBand volume 1, 9.7.5.2)."""
    if syndrome < 0x20:
        return "ACK" if syndrome == 0x1F else f"ACK credit {syndrome}"
    if syndrome < 0x40:
        return f"RNR NAK {RNR_TIMER_NS[syndrome & 0x1F] / 1e6:g} ms"
    return _SYNDROMES.get(syndrome, f"syndrome {syndrome:#04x}")


#: Link type of Ethernet in captures (pcap-linktype).
ETHERNET = 1


@dataclass
class QpState:
    """Packets of one direction of a queue pair, told by addresses and destination QP.

    ``gaps`` are PSNs that were skipped and never came; ``retransmissions`` PSNs that came again.
    """

    src: str
    dst: str
    dqpn: int
    transport: str
    packets: int = 0
    bytes: int = 0
    first_psn: int = -1
    next_psn: int = -1
    messages: int = 0
    gaps: int = 0
    retransmissions: int = 0
    ce: int = 0
    cnp: int = 0
    acks: int = 0
    naks: int = 0
    bad_icrc: int = 0
    source_ports: set[int] = field(default_factory=set)
    _missing: set[int] = field(default_factory=set)

    def add(self, packet: RocePacket) -> str:
        """Take a packet in; what is odd about it, in a word or two."""
        notes = []
        self.packets += 1
        self.source_ports.add(packet.src_port)
        if packet.icrc_ok is False:
            self.bad_icrc += 1
            return "ICRC wrong"
        if packet.ce:
            self.ce += 1
            notes.append("CE")
        if packet.opcode == CNP:
            self.cnp += 1
            return "CNP"
        op = packet.opcode & 0x1F
        self.bytes += packet.length
        if op in (Op.ACKNOWLEDGE, Op.ATOMIC_ACKNOWLEDGE):
            if packet.syndrome < 0x20:
                self.acks += 1
            else:
                self.naks += 1
                notes.append(syndrome_text(packet.syndrome))
            return ", ".join(notes)
        if op in READ_RESPONSES:
            # Their PSNs are the requester's; a response is judged by the READ it answers, which is the other direction.
            return ", ".join(notes)
        step = 1
        if op == Op.RDMA_READ_REQUEST:
            step = 0  # how many PSNs it takes depends on the path MTU, which the packet does not say
        if self.first_psn < 0:
            self.first_psn = packet.psn
        elif self.next_psn >= 0:
            ahead = (packet.psn - self.next_psn) & PSN_MASK
            if ahead >= HALF:
                if packet.psn in self._missing:
                    self._missing.discard(packet.psn)
                    self.gaps -= 1
                    self.messages += op in _ENDS
                    notes.append("out of order")
                else:
                    self.retransmissions += 1
                    notes.append("retransmission")
                step = -1
            elif ahead and not self._after_read:
                self.gaps += ahead
                if ahead < 65536:
                    self._missing.update((self.next_psn + n) & PSN_MASK for n in range(ahead))
                notes.append(f"gap of {ahead}")
        if step >= 0:
            self.next_psn = (packet.psn + 1) & PSN_MASK
            self._after_read = op == Op.RDMA_READ_REQUEST
        if op in _ENDS and step >= 0:
            self.messages += 1
        return ", ".join(notes)

    _after_read: bool = False

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        found = {k: v for k, v in asdict(self).items() if not k.startswith("_")}
        found["source_ports"] = sorted(self.source_ports)
        return found


_ENDS = frozenset({
    Op.SEND_LAST, Op.SEND_LAST_WITH_IMMEDIATE, Op.SEND_ONLY, Op.SEND_ONLY_WITH_IMMEDIATE, Op.RDMA_WRITE_LAST,
    Op.RDMA_WRITE_LAST_WITH_IMMEDIATE, Op.RDMA_WRITE_ONLY, Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE, Op.RDMA_READ_REQUEST,
    Op.FETCH_ADD, Op.COMPARE_SWAP, Op.SEND_LAST_WITH_INVALIDATE, Op.SEND_ONLY_WITH_INVALIDATE,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A packet in words."""

    number: int
    seconds: float
    src: str
    dst: str
    src_port: int
    opcode: str
    dqpn: int
    psn: int
    ack_request: bool
    length: int
    detail: str
    icrc: str


@dataclass
class Decoded:
    """A whole file."""

    frames: int = 0
    roce: int = 0
    cut: int = 0
    bad_icrc: int = 0
    ce: int = 0
    cnp: int = 0
    qps: dict[tuple[str, str, int, str], QpState] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "frames": self.frames, "roce": self.roce, "cut_short": self.cut, "bad_icrc": self.bad_icrc, "ce": self.ce,
            "cnp": self.cnp, "qps": [q.as_json() for q in self.qps.values()],
        }  # fmt: skip


def frames_of(file: Path) -> Iterator[tuple[float, bytes]]:
    """(time, frame) of a pcap or pcapng file of Ethernet. Raises FileProblem."""
    from scapy.error import Scapy_Exception
    from scapy.utils import RawPcapReader

    try:
        reader: Any = RawPcapReader(str(file))
    except FileNotFoundError:
        raise FileProblem(f"no such file: {file}") from None
    except (OSError, Scapy_Exception) as error:
        raise FileProblem(f"{file} is no capture: {error}", hint="pcap and pcapng are read") from None
    nano = bool(getattr(reader, "nano", False))
    try:
        for frame, meta in reader:
            # A pcapng file has a link type per interface, an old one has one.
            kind = getattr(meta, "linktype", None)
            kind = reader.linktype if kind is None else kind
            if kind != ETHERNET:
                raise FileProblem(
                    f"{file} has frames of link type {kind}, not Ethernet", hint="capture on a port, not on `any`"
                )
            if len(frame) < (getattr(meta, "caplen", None) or 0):
                raise FileProblem(f"{file} breaks off in a packet")
            if hasattr(meta, "sec"):
                when = meta.sec + meta.usec / (1e9 if nano else 1e6)
            elif meta.tshigh is None:
                when = 0.0  # a simple packet block has no time
            else:
                when = ((meta.tshigh << 32) | meta.tslow) / float(meta.tsresol)
            yield when, bytes(frame)
    except (EOFError, Scapy_Exception) as error:
        raise FileProblem(f"{file} breaks off: {error}") from None
    finally:
        reader.close()


def decode(frames: Iterator[tuple[float, bytes]], decoded: Decoded) -> Iterator[Line]:
    """Packets in words, one at a time; ``decoded`` adds up meanwhile."""
    start: float | None = None
    for when, frame in frames:
        decoded.frames += 1
        packet = read(frame)
        if packet is None:
            continue
        start = when if start is None else start
        decoded.roce += 1
        decoded.cut += packet.icrc_ok is None
        decoded.bad_icrc += packet.icrc_ok is False
        decoded.ce += packet.ce
        decoded.cnp += packet.opcode == CNP
        src, dst = str(ip_address(packet.src)), str(ip_address(packet.dst))
        service = "RC" if packet.opcode == CNP else packet.name.partition("_")[0]
        key = (src, dst, packet.dqpn, service)
        state = decoded.qps.get(key)
        if state is None:
            state = decoded.qps[key] = QpState(src, dst, packet.dqpn, service)
        note = state.add(packet)
        yield Line(
            decoded.roce, round(when - start, 9), src, dst, packet.src_port, packet.name, packet.dqpn, packet.psn,
            packet.ack_request, packet.length, _detail(packet, note),
            {True: "ok", False: "WRONG", None: "cut"}[packet.icrc_ok],
        )  # fmt: skip


def _detail(packet: RocePacket, note: str) -> str:
    parts = []
    op = packet.opcode & 0x1F
    if packet.opcode != CNP and packet.opcode in EXTENSION_BYTES:
        if op in (Op.ACKNOWLEDGE, Op.ATOMIC_ACKNOWLEDGE):
            parts.append(f"{syndrome_text(packet.syndrome)} msn {packet.msn}")
        elif packet.dma_length or op == Op.RDMA_READ_REQUEST:
            parts.append(f"va {packet.va:#x} rkey {packet.rkey:#x} dmalen {packet.dma_length}")
        if packet.immediate:
            parts.append(f"imm {packet.immediate:#x}")
        if packet.src_qpn:
            parts.append(f"from QP {packet.src_qpn:#x}")
    if note and note not in " ".join(parts):
        parts.append(note)
    return ", ".join(parts)
