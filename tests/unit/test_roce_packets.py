"""scapy's view of RoCE: frames of Linux's driver and of hardware dissect, rebuild byte for byte, and their ICRC is checked."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import NoPayload, Raw

from fabtest.roce.frames import icrc_of, read
from fabtest.roce.opcodes import EXTENSION_BYTES, NAMES
from fabtest.roce.packets import (
    AETH,
    BTH,
    DETH,
    GRH,
    IETH,
    RETH,
    AtomicAckETH,
    AtomicETH,
    CNPPadding,
    ImmDt,
    cnp,
    pfc,
)

#: CNP of a ConnectX-4 Lx, as scapy's own tests have it.
HARDWARE_CNP = (
    "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118"
    + "00" * 20
    + "82fd002a"
)
#: facts of rxe 6.1: opcode -> whole frame.
RXE = {
    "RC_SEND_ONLY": "020000000001020000000002080045680034fb4c400040112a680a4d00020a4d0001e34112b7002000000430ffff0000012380002000030a11181f000000b35545ac",
    "RC_RDMA_WRITE_ONLY": "02000000000102000000000208004568007cfb5e400040112a0e0a4d00020a4d0001e34112b7006800000a00ffff000001238000200511223344556677880000abcd00000040030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce3eaf1f8ff060d141b222930373e454c535a61686f767d848b9299a0a7aeb5bc03fde72d",
    "RC_RDMA_READ_REQUEST": "02000000000102000000000208004568003cfb67400040112a450a4d00020a4d0001e34112b7002800000c00ffff000001238000200a11223344556677880000abcd000005dc5cf2faa7",
    "RC_FETCH_ADD": "020000000001020000000002080045680048fb6b400040112a350a4d00020a4d0001e34112b7003400001400ffff000001238000200c11223344556677880000abcd0102030405060708000000000000000066a594f9",
    "UD_SEND_ONLY": "020000000001020000000002080045680058fb74400040112a1c0a4d00020a4d0001f80612b7004400006430ffff00000077000030001111111100000012030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce300000006ec3c89",
    "UC_SEND_ONLY": "020000000001020000000002080045680034fb78400040112a3c0a4d00020a4d0001e34112b7002000002410ffff0000012300002000030a11181f262d004729740e",
    "RC_ACKNOWLEDGE": "020000000001020000000002080045680030fb89400040112a2f0a4d00020a4d0001e34112b7001c00001100ffff0000012300fffffe1f00000199d509fc",
    "RC_ATOMIC_ACKNOWLEDGE": "020000000001020000000002080045680038fd3340004011287d0a4d00020a4d0001e34112b7002400001200ffff00000123000000071f000006000000000000000091fec416",
}


def rebuilt(packet: Any) -> bytes:
    """The frame built from its fields, with nothing kept of the bytes it came from."""
    layer = packet
    while not isinstance(layer, NoPayload):
        layer.raw_packet_cache = None
        layer = layer.payload
    return bytes(packet)


def pcap_frames(shared: Path, family: str) -> list[bytes]:
    data = (shared / "data" / "rocev2" / f"rxe-6.1-{family}-1024mtu.pcap").read_bytes()
    frames, at = [], 24
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        frames.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return frames


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_every_frame_of_linux_rebuilds_to_the_byte(shared: Path, family: str) -> None:
    frames = pcap_frames(shared, family)
    assert len(frames) == 52
    wrong = []
    for n, frame in enumerate(frames):
        packet = Ether(frame)
        assert rebuilt(Ether(frame)) == frame, n
        if not packet[BTH].icrc_ok:
            wrong.append(n)
        # Lengths, checksums, pad count and ICRC computed afresh.
        fresh = Ether(frame)
        fresh[BTH].icrc = fresh[BTH].padcount = fresh[UDP].len = None
        if family == "ipv4":
            fresh[IP].len = fresh[IP].chksum = None
        else:
            fresh[IPv6].plen = None
        if packet[BTH].icrc_ok:
            assert rebuilt(fresh) == frame, n
        else:
            assert rebuilt(fresh) != frame
    assert wrong == [19], "the one that was damaged on purpose"


@pytest.mark.parametrize(("name", "text"), RXE.items())
def test_vectors(name: str, text: str) -> None:
    frame = bytes.fromhex(text)
    packet = Ether(frame)
    assert NAMES[packet[BTH].opcode] == name
    assert packet[BTH].icrc_ok is True
    plain = read(frame)
    assert plain is not None
    assert plain.name == name
    assert plain.icrc_ok is True
    damaged = bytearray(frame)
    damaged[50] ^= 1
    assert Ether(bytes(damaged))[BTH].icrc_ok is False
    assert "ICRC WRONG" in Ether(bytes(damaged))[BTH].mysummary()


def test_vectors_of_hardware() -> None:
    frame = bytes.fromhex(HARDWARE_CNP)
    packet = Ether(frame)
    assert packet[BTH].icrc_ok
    assert packet[BTH].opcode == 0x81
    assert packet[BTH].becn
    assert CNPPadding in packet
    packet[BTH].icrc = None
    assert rebuilt(packet) == frame
    # An unreliable SEND that a capture of scapy's tests holds; its ICRC is 78f353f3 on the wire.
    sent = Ether(dst="24:8a:07:a8:fa:22", src="24:8a:07:a8:fa:22")
    sent /= IP(tos=1, id=1144, flags="DF", src="192.168.0.7", dst="192.168.0.7") / UDP(sport=49152, dport=4791)
    sent /= BTH(opcode="UC_SEND_ONLY", migreq=1, dqpn=211, psn=13571856)
    sent /= Raw(b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P")
    built = bytes(sent)
    assert built[-4:].hex() == "78f353f3"
    assert Ether(built)[BTH].padcount == 2
    assert Ether(built)[Raw].load == b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P"


def test_a_tag_and_what_routers_change_leave_the_icrc_alone() -> None:
    frame = Ether(bytes.fromhex(RXE["RC_RDMA_WRITE_ONLY"]))
    tagged = Ether(src=frame.src, dst=frame.dst) / Dot1Q(vlan=7, prio=3) / frame[IP].copy()
    assert Ether(bytes(tagged))[BTH].icrc_ok
    assert bytes(tagged)[-4:] == bytes(frame)[-4:]
    routed = Ether(bytes.fromhex(RXE["RC_RDMA_WRITE_ONLY"]))
    routed[IP].tos, routed[IP].ttl, routed[IP].chksum = 0x6B, 3, None
    routed[BTH].becn = 1
    assert Ether(rebuilt(routed))[BTH].icrc_ok
    natted = Ether(bytes.fromhex(RXE["RC_RDMA_WRITE_ONLY"]))
    natted[IP].src = "10.77.0.9"
    assert Ether(rebuilt(natted))[BTH].icrc_ok is False


def test_rocev1_has_an_icrc_too() -> None:
    packet = Ether(type=0x8915) / GRH(paylen=12 + 16 + 8 + 4, nexthdr=0x1B, hoplmt=1, sgid=1, dgid=2)
    packet /= BTH(opcode="RC_RDMA_WRITE_ONLY", dqpn=5) / RETH(va=1, rkey=2, dmalen=8) / Raw(b"12345678")
    frame = bytes(packet)
    again = Ether(frame)
    assert again[BTH].icrc_ok
    assert again[RETH].dmalen == 8
    assert struct.unpack("<I", frame[-4:])[0] == icrc_of(frame[14:-4])
    plain = read(frame)
    assert plain is not None
    assert plain.version == 1
    assert plain.icrc_ok
    # The hop limit may change on the way, an identifier may not.
    assert Ether(frame[:21] + b"\x07" + frame[22:])[BTH].icrc_ok
    assert not Ether(frame[:37] + b"\x07" + frame[38:])[BTH].icrc_ok


def test_answers_from_the_port_dissect() -> None:
    frame = bytearray(bytes.fromhex(RXE["RC_ACKNOWLEDGE"]))
    frame[34:38] = struct.pack("!HH", 4791, 50000)
    packet = Ether(bytes(frame))
    assert packet[AETH].msn == 1
    assert packet[AETH].mysummary() == "ACK msn=1"


HEADERS = {
    "RETH": RETH(va=1 << 40, rkey=7, dmalen=99), "AETH": AETH(syndrome=0x60, msn=5), "DETH": DETH(qkey=9, srcqp=77),
    "ImmDt": ImmDt(imm=0xDEADBEEF), "IETH": IETH(rkey=3), "AtomicETH": AtomicETH(va=8, rkey=1, swap=2, cmp=3),
    "AtomicAckETH": AtomicAckETH(orig=1 << 63),
}  # fmt: skip


@pytest.mark.parametrize("opcode", sorted(set(NAMES) - {0x81}))
@pytest.mark.parametrize("family", [4, 6])
def test_every_opcode_builds_and_dissects(opcode: int, family: int) -> None:
    from fabtest.roce.opcodes import extensions

    network = IP(src="10.0.0.1", dst="10.0.0.2") if family == 4 else IPv6(src="fd00::1", dst="fd00::2")
    packet = (
        Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
        / network
        / UDP(sport=50000)
        / BTH(opcode=opcode, dqpn=1, psn=2)
    )
    for name in extensions(opcode):
        packet /= HEADERS[name].copy()
    payload = b"" if "ACKNOWLEDGE" in NAMES[opcode] or "REQUEST" in NAMES[opcode] else b"abcde"
    frame = bytes(packet / Raw(payload)) if payload else bytes(packet)
    again = Ether(frame)
    assert again[UDP].dport == 4791
    assert again[BTH].icrc_ok
    for name in extensions(opcode):
        assert HEADERS[name].fields.items() <= again[type(HEADERS[name])].fields.items(), name
    if payload:
        assert again[Raw].load == payload
    plain = read(frame)
    assert plain is not None
    assert plain.icrc_ok
    assert plain.length == len(payload)
    assert rebuilt(again) == frame
    assert sum(len(HEADERS[n]) for n in extensions(opcode)) == EXTENSION_BYTES[opcode]


def test_cnp_and_pfc() -> None:
    frame = bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.2", tos=48 << 2) / UDP(sport=50000) / cnp(0x123))
    assert len(frame) == 74
    plain = read(frame)
    assert plain is not None
    assert (plain.name, plain.becn, plain.dqpn, plain.icrc_ok) == ("CNP", True, 0x123, True)
    pause = bytes(pfc("02:00:00:00:00:01", {3: 0xFFFF}))
    wanted = "0180c20000010200000000018808010100080000" + "00000000ffff"
    assert pause.hex().startswith(wanted)
    assert len(pause) >= 60


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 255))
def test_nothing_that_arrives_breaks_the_readers(noise: bytes, opcode: int) -> None:
    head = bytes.fromhex(RXE["RC_SEND_ONLY"])[:42]
    for frame in (noise, head + noise, head + bytes([opcode]) + noise):
        read(frame)
        if len(frame) >= 42:  # shorter ones are scapy's own to refuse
            Ether(frame)
