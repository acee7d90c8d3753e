"""RoCEv2 frames (InfiniBand Architecture Specification, annex A17): Ethernet, IP, UDP 4791, BTH, payload, ICRC.

A ``Template`` is built once with scapy; frames that differ in UDP source port and PSN are patched from it, with the
ICRC computed afresh.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address
UDP_PORT = 4791
SEND_ONLY, ACKNOWLEDGE = 0x04, 0x11
#: Syndrome 0x1f: acknowledged, credits not used (AETH, IBTA 9.7.5.2.1).
AETH_ACK = 0x1F
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


class Template:
    """Frames of one flow. ``opcode`` ACKNOWLEDGE carries an AETH instead of a payload."""

    def __init__(self, flow: Flow, src_mac: str, dst_mac: str, payload: int = 64, opcode: int = SEND_ONLY) -> None:
        self.flow = flow
        self._frame = bytearray(_build(flow, src_mac, dst_mac, payload, opcode))
        self._udp = 34 if flow.src.version == 4 else 54

    def frame(self, psn: int, src_port: int | None = None) -> bytes:
        """The whole frame, without FCS."""
        data = self._frame
        udp = self._udp
        if src_port is not None:
            struct.pack_into("!H", data, udp, src_port)
        struct.pack_into("!I", data, udp + 16, (data[udp + 16] << 24) | (psn % PSN_MODULO))
        data[-4:] = struct.pack("<I", icrc(data))
        return bytes(data)


def _build(flow: Flow, src_mac: str, dst_mac: str, payload: int, opcode: int) -> bytes:
    from scapy.contrib.roce import AETH, BTH
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.layers.l2 import Ether
    from scapy.packet import Packet, Raw

    tos = flow.dscp << 2 | ECT0
    if flow.src.version == 4:
        network: Packet = IP(src=str(flow.src), dst=str(flow.dst), tos=tos, flags="DF", ttl=64, id=0)
    else:
        network = IPv6(src=str(flow.src), dst=str(flow.dst), tc=tos, hlim=64)
    pad = -payload % 4
    transport = BTH(opcode=opcode, dqpn=flow.dqpn, psn=0, padcount=0 if opcode == ACKNOWLEDGE else pad, migreq=1)
    body = AETH(syndrome=AETH_ACK, msn=1) if opcode == ACKNOWLEDGE else Raw(bytes(payload + pad))
    # UDP checksum 0, as Linux's RoCE driver sends it for both IP versions.
    packet = Ether(src=src_mac, dst=dst_mac) / network / UDP(sport=flow.src_port, dport=UDP_PORT, chksum=0)
    return bytes(packet / transport / body)


def icrc(frame: bytes | bytearray) -> int:
    """The invariant CRC of an untagged frame that ends with an ICRC (annex A17.3.3): CRC-32 over eight bytes of ones
    and everything from the IP header on, with the fields that routers may change set to ones."""
    masked = bytearray(frame[14:-4])
    if masked[0] >> 4 == 4:
        masked[1] = masked[8] = masked[10] = masked[11] = 0xFF
        udp = (masked[0] & 15) * 4
    else:
        masked[0] |= 0x0F
        masked[1] = masked[2] = masked[3] = masked[7] = 0xFF
        udp = 40
    masked[udp + 6] = masked[udp + 7] = masked[udp + 12] = 0xFF
    return zlib.crc32(masked, _ONES)


_ONES = zlib.crc32(b"\xff" * 8)


def icrc_is_right(frame: bytes) -> bool:
    """Whether the ICRC a frame carries is the one it should."""
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
