"""RoCE in scapy: the headers ``scapy.contrib.roce`` lacks, payloads without their pad, and an ICRC that is checked.

Importing this module binds the layers: RoCEv2 by UDP port 4791 (either port), RoCEv1 by its Ethernet type.

    >>> frame = Ether()/IP()/UDP(sport=0xc000)/BTH(opcode="RC_RDMA_WRITE_ONLY", dqpn=17)/RETH(dmalen=5)/b"hello"
    >>> Ether(bytes(frame))[BTH].icrc_ok
    True

Headers follow the InfiniBand Architecture Specification, volume 1, 9.3 and annex A17; PFC frames are scapy's own
(``scapy.contrib.mac_control``).
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from scapy.contrib import roce as contrib
from scapy.contrib.mac_control import MACControl, MACControlClassBasedFlowControl
from scapy.contrib.roce import GRH, CNPPadding
from scapy.fields import (
    BitField,
    ByteEnumField,
    FCSField,
    IntField,
    XBitField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers, split_layers

from fabtest.roce.frames import icrc_of
from fabtest.roce.opcodes import CNP, NAMES, extensions

__all__ = [
    "AETH", "BTH", "CNP", "DETH", "GRH", "IETH", "RETH", "AtomicAckETH", "AtomicETH", "CNPPadding", "ImmDt",
    "cnp", "pfc",
]  # fmt: skip

#: AETH syndromes by name (9.7.5.2.1 and table 46): an ACK's low bits are credits, an RNR NAK's a timer.
SYNDROMES = {
    0x1F: "ACK", 0x60: "NAK PSN sequence error", 0x61: "NAK invalid request", 0x62: "NAK remote access error",
    0x63: "NAK remote operational error", 0x64: "NAK invalid RD request",
}  # fmt: skip


class _Extension(Packet):
    """A header after the BTH: what follows is told by the opcode."""

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        layer: Any = self
        seen = 0
        while layer is not None and not isinstance(layer, BTH):
            seen += 1
            layer = layer.underlayer
        return _next_header(layer.opcode, seen) if layer is not None else Raw


class RETH(_Extension):
    """RDMA extended transport header: where a WRITE or READ goes. ``dmalen`` is of the whole message."""

    name = "RETH"
    fields_desc: ClassVar = [XLongField("va", 0), XIntField("rkey", 0), IntField("dmalen", 0)]


class AETH(_Extension, contrib.AETH):
    """ACK extended transport header."""

    name = "AETH"
    match_subclass = True
    fields_desc: ClassVar = [XByteField("syndrome", 0), XBitField("msn", 0, 24)]

    def mysummary(self) -> str:
        """The syndrome in words."""
        known = SYNDROMES.get(self.syndrome)
        if known is None:
            known = "RNR NAK" if self.syndrome >> 5 == 1 else "ACK" if self.syndrome < 0x20 else f"{self.syndrome:#x}"
        return f"{known} msn={self.msn}"


class DETH(_Extension):
    """Datagram extended transport header."""

    name = "DETH"
    fields_desc: ClassVar = [XIntField("qkey", 0), XByteField("reserved", 0), XBitField("srcqp", 0, 24)]


class ImmDt(_Extension):
    """Immediate data."""

    name = "ImmDt"
    fields_desc: ClassVar = [XIntField("imm", 0)]


class IETH(_Extension):
    """Invalidate extended transport header."""

    name = "IETH"
    fields_desc: ClassVar = [XIntField("rkey", 0)]


class AtomicETH(_Extension):
    """Operands of an atomic; for FETCH_ADD ``swap`` is what is added."""

    name = "AtomicETH"
    fields_desc: ClassVar = [XLongField("va", 0), XIntField("rkey", 0), XLongField("swap", 0), XLongField("cmp", 0)]


class AtomicAckETH(_Extension):
    """What an atomic found."""

    name = "AtomicAckETH"
    fields_desc: ClassVar = [XLongField("orig", 0)]


_HEADERS: dict[str, type[Packet]] = {
    "RETH": RETH, "AETH": AETH, "DETH": DETH, "ImmDt": ImmDt, "IETH": IETH, "AtomicETH": AtomicETH,
    "AtomicAckETH": AtomicAckETH,
}  # fmt: skip


def _next_header(opcode: int, seen: int) -> type[Packet]:
    if opcode == CNP:
        return CNPPadding if seen == 0 else Raw
    names = extensions(opcode)
    return _HEADERS[names[seen]] if seen < len(names) else Raw


class BTH(contrib.BTH):
    """Base transport header, with the ICRC that ends the packet.

    Built: ``icrc`` None computes it, and a payload that is no multiple of four bytes is padded with zeros, which
    ``padcount`` None counts. Dissected: ``icrc_ok`` says whether the ICRC is right (None: the packet was cut, or has
    no IP or GRH header), and pad bytes are not part of the payload.
    """

    name = "BTH"
    match_subclass = True
    fields_desc: ClassVar = [
        ByteEnumField("opcode", 0, NAMES),
        BitField("solicited", 0, 1),
        BitField("migreq", 0, 1),
        BitField("padcount", None, 2),
        BitField("version", 0, 4),
        XShortField("pkey", 0xFFFF),
        BitField("fecn", 0, 1),
        BitField("becn", 0, 1),
        BitField("resv6", 0, 6),
        XBitField("dqpn", 0, 24),
        BitField("ackreq", 0, 1),
        BitField("resv7", 0, 7),
        BitField("psn", 0, 24),
        FCSField("icrc", None, fmt="!I"),
    ]
    icrc_ok: bool | None = None

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        """Payload, pad and ICRC; the trailing field is at the end of ``pay`` already."""
        payload, trailer = pay[:-4], pay[-4:]
        pad = -len(payload) % 4
        if self.padcount is None:
            p = p[:1] + bytes([p[1] & 0xCF | pad << 4]) + p[2:]
        body = p + payload + bytes(pad)
        return body + (self.compute_icrc(body) if self.icrc is None else trailer)

    def compute_icrc(self, p: bytes) -> bytes:
        """ICRC over the headers below and ``p`` (BTH up to the pad), in wire order."""
        below = self.underlayer
        size = len(p) + 4
        if isinstance(below, GRH):
            return struct.pack("<I", icrc_of(_alone(below) + p))
        if not isinstance(below, UDP):
            return bytes(4)
        network = below.underlayer
        udp = struct.pack("!HHHH", below.sport, below.dport, below.len or 8 + size, 0)
        if isinstance(network, IP):
            header = IP(**{**network.fields, "proto": network.proto, "chksum": 0})
            if network.len is None:
                header.len = (network.ihl or 5) * 4 + 8 + size
            return struct.pack("<I", icrc_of(_alone(header) + udp + p))
        if isinstance(network, IPv6):
            header6 = IPv6(**{**network.fields, "nh": network.nh})
            if network.plen is None:
                header6.plen = 8 + size
            return struct.pack("<I", icrc_of(_alone(header6) + udp + p))
        return bytes(4)

    def do_dissect_payload(self, s: bytes) -> None:
        """The payload without its pad, unless somebody put something into it."""
        pad = self.padcount or 0
        if pad and s[-pad:] == bytes(pad) and len(s) % 4 == 0:
            s = s[:-pad]
        super().do_dissect_payload(s)

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """By opcode."""
        return _next_header(self.opcode, 0)

    def post_dissection(self, pkt: Packet) -> None:
        """Check the ICRC on the bytes as they came."""
        below = self.underlayer
        network = below.underlayer if isinstance(below, UDP) else below
        if network is None or self.icrc is None:
            return
        if isinstance(network, IP):
            size = network.len
        elif isinstance(network, IPv6):
            size = 40 + network.plen
        elif isinstance(network, GRH):
            size = 40 + network.paylen
        else:
            return
        seen = bytes(network.original)[:size]
        if size and len(seen) == size:
            self.icrc_ok = struct.unpack("<I", seen[-4:])[0] == icrc_of(seen[:-4])

    def mysummary(self) -> str:
        """One line."""
        state = {True: "", False: " ICRC WRONG", None: " ICRC ?"}[self.icrc_ok]
        return self.sprintf("%BTH.opcode% dqpn=%BTH.dqpn% psn=%BTH.psn%") + state


def _alone(layer: Packet) -> bytes:
    """A header without what it carries."""
    copy = layer.__class__(**layer.fields)
    return bytes(copy)


def cnp(dqpn: int) -> BTH:
    """A congestion notification packet for a queue pair."""
    return BTH(opcode=CNP, becn=1, dqpn=dqpn) / CNPPadding()


def pfc(src: str, quanta: dict[int, int]) -> Packet:
    """A PFC frame (IEEE 802.1Qbb): priority -> pause time in quanta of 512 bit times; 0 lets it go on."""
    times: dict[str, Any] = {f"c{priority}_pause_time": value for priority, value in quanta.items()}
    flags: dict[str, Any] = {f"c{priority}_enabled": 1 for priority in quanta}
    frame = Ether(src=src, dst=MACControl.DEFAULT_DST_MAC, type=0x8808)
    return frame / MACControlClassBasedFlowControl(**flags, **times)


split_layers(UDP, contrib.BTH, dport=4791)
split_layers(GRH, contrib.BTH)
bind_layers(UDP, BTH, dport=4791)
# Some devices answer from the port; what is built is always addressed to it.
bind_bottom_up(UDP, BTH, sport=4791)
bind_layers(GRH, BTH)
