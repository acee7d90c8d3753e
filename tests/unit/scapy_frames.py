"""The same frames as ``fabtest.roce.frames`` builds, by scapy: what ours are compared with."""

from __future__ import annotations

import struct

from fabtest.roce.frames import ECT0, PSN_MODULO, UDP_PORT, Flow, icrc

SEND_ONLY, ACKNOWLEDGE = 0x04, 0x11
#: Syndrome 0x1f: acknowledged, credits not used (AETH, IBTA 9.7.5.2.1).
AETH_ACK = 0x1F


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
