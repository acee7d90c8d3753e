"""RoCEv2 frames (InfiniBand Architecture Specification, annex A17): Ethernet, IP, UDP 4791, BTH, payload, ICRC.

Building and reading without scapy, which is a hundred times slower; ``fabtest.roce.packets`` has its layers, and builds
the same frames.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from fabtest.roce.opcodes import NAMES, extensions

Address = IPv4Address | IPv6Address
UDP_PORT = 4791
ECT0 = 0b10
PSN_MODULO = 1 << 24


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction between two NIC ports. The UDP source port is the flow's entropy, as NICs set it per QP."""

    src: Address
    dst: Address
    src_port: int
    dqpn: int = 0x11
    dscp: int = 26

    @property
    def key(self) -> tuple[bytes, bytes, int]:
        """What tells it apart on the wire."""
        return self.src.packed, self.dst.packed, self.src_port


@dataclass(frozen=True, slots=True)
class RoceHeader:
    """What a received frame says."""

    src: bytes
    dst: bytes
    src_port: int
    ecn: int
    dscp: int
    ttl: int
    opcode: int
    dqpn: int
    psn: int

    @property
    def key(self) -> tuple[bytes, bytes, int]:
        """The flow it belongs to."""
        return self.src, self.dst, self.src_port


_ONES = zlib.crc32(b"\xff" * 8)


def icrc_of(packet: bytes | bytearray | memoryview) -> int:
    """The invariant CRC of a packet from its IP header (RoCEv1: GRH) up to and with the pad (annex A17.3.3).

    CRC-32 over eight bytes of ones, then the packet with the fields that routers may change set to ones: IPv4 type of
    service, TTL and checksum; IPv6 traffic class, flow label and hop limit; UDP checksum; FECN, BECN and the reserved
    bits of the BTH. It goes onto the wire little-endian.
    """
    masked = bytearray(packet)
    if masked[0] >> 4 == 4:
        masked[1] = masked[8] = masked[10] = masked[11] = 0xFF
        bth = (masked[0] & 15) * 4
        udp = True
    else:
        masked[0] |= 0x0F
        masked[1] = masked[2] = masked[3] = masked[7] = 0xFF
        bth = 40
        udp = masked[6] == 17
    if udp:
        masked[bth + 6] = masked[bth + 7] = 0xFF
        bth += 8
    masked[bth + 4] = 0xFF
    return zlib.crc32(masked, _ONES)


def header(
    flow: Flow, src_mac: bytes, dst_mac: bytes, opcode: int, payload: int, *, extended: bytes = b"", ack: bool = False,
    psn: int = 0, ecn: int = ECT0, identification: int = 0, becn: bool = False,
) -> bytes:  # fmt: skip
    """Everything before the payload of a frame, with lengths and IPv4 checksum for ``payload`` bytes and their pad.

    ``extended`` are the headers after the BTH. IPv4 is sent with DF and identification 0, UDP with checksum 0.
    """
    pad = -payload % 4
    size = 8 + 12 + len(extended) + payload + pad + 4
    tos = flow.dscp << 2 | ecn
    if flow.src.version == 4:
        pseudo = 0x4500 + tos + 20 + size + identification + 0x4000 + (64 << 8) + 17
        pseudo += sum(struct.unpack("!4H", flow.src.packed + flow.dst.packed))
        pseudo = (pseudo & 0xFFFF) + (pseudo >> 16)
        checksum = ~((pseudo & 0xFFFF) + (pseudo >> 16)) & 0xFFFF
        network = _IPV4.pack(
            0x45, tos, 20 + size, identification, 0x4000, 64, 17, checksum, flow.src.packed, flow.dst.packed
        )
        kind = b"\x08\x00"
    else:
        network = _IPV6.pack(6 << 28 | tos << 20, size, 17, 64, flow.src.packed, flow.dst.packed)
        kind = b"\x86\xdd"
    udp = _UDP.pack(flow.src_port, UDP_PORT, size, 0)
    bth = _BTH.pack(opcode, pad << 4, 0xFFFF, becn << 30 | flow.dqpn, ack << 31 | psn % PSN_MODULO)
    return b"".join((dst_mac, src_mac, kind, network, udp, bth, extended))


_IPV4, _IPV6 = struct.Struct("!BBHHHBBH4s4s"), struct.Struct("!IHBB16s16s")
_UDP, _BTH = struct.Struct("!HHHH"), struct.Struct("!BBHII")


def finish(head: bytes, payload: bytes) -> bytes:
    """A whole frame: header, payload, pad, ICRC."""
    packet = head + payload + bytes(-len(payload) % 4)
    return packet + struct.pack("<I", icrc_of(memoryview(packet)[14:]))


def icrc(frame: bytes | bytearray) -> int:
    """The invariant CRC an untagged frame that ends with an ICRC should carry."""
    return icrc_of(memoryview(frame)[14:-4])


def icrc_is_right(frame: bytes) -> bool:
    """Whether an untagged RoCEv2 frame carries the ICRC it should."""
    return len(frame) >= 58 and struct.unpack_from("<I", frame, len(frame) - 4)[0] == icrc(frame)


def parse(frame: bytes) -> RoceHeader | None:
    """Headers of an untagged RoCEv2 frame (it may be cut after the BTH), or None if it is not one."""
    if len(frame) < 54:
        return None
    kind = frame[12:14]
    if kind == b"\x08\x00":
        udp = 14 + (frame[14] & 15) * 4
        src, dst, tos, ttl, protocol = frame[26:30], frame[30:34], frame[15], frame[22], frame[23]
    elif kind == b"\x86\xdd":
        udp = 54
        src, dst, ttl, protocol = frame[22:38], frame[38:54], frame[21], frame[20]
        tos = (frame[14] << 4 | frame[15] >> 4) & 0xFF
    else:
        return None
    if protocol != 17 or len(frame) < udp + 20:
        return None
    src_port, dst_port = struct.unpack_from("!HH", frame, udp)
    if dst_port != UDP_PORT:
        return None
    opcode = frame[udp + 8]
    dqpn, psn = struct.unpack_from("!II", frame, udp + 12)
    return RoceHeader(
        src, dst, src_port, tos & 3, tos >> 2, ttl, opcode, dqpn & 0xFFFFFF, psn & 0xFFFFFF
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RocePacket:
    """A whole RoCE packet, read. Headers it does not have are 0; ``version`` 1 is RoCEv1 (no UDP, ports are 0).

    ``length`` counts payload bytes without the pad; ``icrc_ok`` None: the frame was cut by whoever captured it.
    """

    version: int
    src: bytes
    dst: bytes
    src_port: int
    tos: int
    ttl: int
    opcode: int
    solicited: bool
    becn: bool
    fecn: bool
    dqpn: int
    ack_request: bool
    psn: int
    icrc_ok: bool | None
    length: int
    payload: bytes
    va: int = 0
    rkey: int = 0
    dma_length: int = 0
    syndrome: int = 0
    msn: int = 0
    qkey: int = 0
    src_qpn: int = 0
    immediate: int = 0
    swap: int = 0
    compare: int = 0
    original: int = 0

    @property
    def ce(self) -> bool:
        """Whether a switch marked it: congestion experienced."""
        return self.tos & 3 == 3

    @property
    def name(self) -> str:
        """The opcode's name."""
        return NAMES.get(self.opcode, f"opcode {self.opcode:#04x}")


def read(frame: bytes) -> RocePacket | None:
    """Everything a RoCE frame says (VLAN tags allowed), or None if it is none or is too short for its headers."""
    at = 12
    try:
        kind = struct.unpack_from("!H", frame, at)[0]
        while kind in (0x8100, 0x88A8):
            at += 4
            kind = struct.unpack_from("!H", frame, at)[0]
        at += 2
        if kind == 0x0800:
            size, ihl = struct.unpack_from("!H", frame, at + 2)[0], (frame[at] & 15) * 4
            # Of a fragment only the first piece has the headers, and none has a whole ICRC.
            fragment = struct.unpack_from("!H", frame, at + 6)[0] & 0x3FFF
            if frame[at] >> 4 != 4 or ihl < 20 or frame[at + 9] != 17 or fragment:
                return None
            src, dst, tos, ttl = frame[at + 12 : at + 16], frame[at + 16 : at + 20], frame[at + 1], frame[at + 8]
            bth = at + ihl
        elif kind in (0x86DD, 0x8915):
            size = 40 + struct.unpack_from("!H", frame, at + 4)[0]
            src, dst, ttl = frame[at + 8 : at + 24], frame[at + 24 : at + 40], frame[at + 7]
            tos = (frame[at] << 4 | frame[at + 1] >> 4) & 0xFF
            bth = at + 40
            if frame[at] >> 4 != 6 or (kind == 0x86DD and frame[at + 6] != 17):
                return None
        else:
            return None
        src_port = 0
        if kind != 0x8915:
            src_port, dst_port = struct.unpack_from("!HH", frame, bth)
            if dst_port != UDP_PORT:
                return None
            bth += 8
        opcode, bits, _, word, psn = struct.unpack_from("!BBHII", frame, bth)
        # The first byte of the second word is FECN, BECN and six reserved bits.
        becn, fecn, dqpn = bool(word >> 30 & 1), bool(word >> 31), word & 0xFFFFFF
        end = at + size
        pad = bits >> 4 & 3
        found: dict[str, int] = {}
        here = bth + 12
        for header in extensions(opcode):
            names, layout = _LAYOUT[header]
            found.update(zip(names, layout.unpack_from(frame, here), strict=True))
            here += layout.size
    except struct.error:
        return None
    except IndexError:
        return None
    if "aeth" in found:
        aeth = found.pop("aeth")
        found["syndrome"], found["msn"] = aeth >> 24, aeth & 0xFFFFFF
    if "src_qpn" in found:
        found["src_qpn"] &= 0xFFFFFF
    length = end - 4 - pad - here
    if length < 0:
        return None
    right = None
    if end <= len(frame):
        right = struct.unpack_from("<I", frame, end - 4)[0] == icrc_of(frame[at : end - 4])
    return RocePacket(
        1 if kind == 0x8915 else 2, src, dst, src_port, tos, ttl, opcode, bool(bits & 0x80), becn, fecn, dqpn,
        bool(psn >> 31), psn & 0xFFFFFF, right, length, frame[here : here + length], **found,
    )  # fmt: skip


_LAYOUT: dict[str, tuple[tuple[str, ...], struct.Struct]] = {
    "RETH": (("va", "rkey", "dma_length"), struct.Struct("!QII")),
    "AETH": (("aeth",), struct.Struct("!I")),
    "DETH": (("qkey", "src_qpn"), struct.Struct("!II")),
    "ImmDt": (("immediate",), struct.Struct("!I")),
    "IETH": (("rkey",), struct.Struct("!I")),
    "AtomicETH": (("va", "rkey", "swap", "compare"), struct.Struct("!QIQQ")),
    "AtomicAckETH": (("original",), struct.Struct("!Q")),
}
