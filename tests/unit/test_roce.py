"""RoCEv2 frames against an independent judge of the ICRC and frames of Linux's own driver."""

from __future__ import annotations

import importlib.util
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabtest.roce.frames import Flow, icrc, icrc_is_right, parse
from fabtest.roce.stream import FlowRecord, outage_of
from fabtest.roce.transfer import Tally
from tests.unit.scapy_frames import ACKNOWLEDGE, SEND_ONLY, Template

#: facts of Linux 6.1 rxe: RC SEND_ONLY over IPv6, ACKs over IPv4 and IPv6.
RXE = (
    "02000000000102000000000286dd6680000000201140fd770000000000000000000000000002fd770000000000000000000000000001e34112b7002000000430ffff0000012380002000030a11181f000000627cc5fe",
    "02000000000102000000000286dd66800000001c1140fd770000000000000000000000000002fd770000000000000000000000000001e34112b7001c00001100ffff0000012300fffffe1f0000014925ff6a",
    "020000000001020000000002080045680030fb89400040112a2f0a4d00020a4d0001e34112b7001c00001100ffff0000012300fffffe1f00000199d509fc",
)


@pytest.fixture(scope="session")
def oracle(shared: Path) -> Any:
    spec = importlib.util.spec_from_file_location("icrc_oracle", shared / "tools" / "icrc_oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flow(family: int, **words: Any) -> Flow:
    a, b = ("10.0.1.1", "10.0.2.3") if family == 4 else ("fd10::1", "fd10::2")
    return Flow(ip_address(a), ip_address(b), words.pop("src_port", 0xC001), **words)


@pytest.mark.parametrize("text", RXE)
def test_frames_of_linux_are_right(text: str) -> None:
    frame = bytes.fromhex(text)
    assert icrc_is_right(frame)
    damaged = bytearray(frame)
    damaged[-6] ^= 1
    assert not icrc_is_right(bytes(damaged))


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from([4, 6]), payload=st.integers(0, 300), port=st.integers(0xC000, 0xFFFF), psn=st.integers(0, 2**25),
    dscp=st.integers(0, 63), dqpn=st.integers(0, 2**24 - 1), opcode=st.sampled_from([SEND_ONLY, ACKNOWLEDGE]),
)  # fmt: skip
def test_what_is_built_is_what_is_read(
    family: int, payload: int, port: int, psn: int, dscp: int, dqpn: int, opcode: int
) -> None:
    template = Template(flow(family, dscp=dscp, dqpn=dqpn), "02:00:00:00:00:01", "02:00:00:00:00:02", payload, opcode)
    frame = template.frame(psn, port)
    header = parse(frame)
    assert header is not None
    assert (header.src_port, header.psn, header.dscp, header.ecn, header.dqpn, header.opcode) == (
        port,
        psn % 2**24,
        dscp,
        2,
        dqpn,
        opcode,
    )
    assert header.key == (template.flow.src.packed, template.flow.dst.packed, port)
    assert icrc_is_right(frame)
    length = struct.unpack_from("!H", frame, 16)[0] if family == 4 else struct.unpack_from("!H", frame, 18)[0] + 40
    assert len(frame) == 14 + length
    assert (len(frame) - 14 - (20 if family == 4 else 40) - 8 - 12 - 4) % 4 == 0


@pytest.mark.parametrize("family", [4, 6])
def test_scapy_and_the_oracle_agree(oracle: Any, family: int) -> None:
    from scapy.contrib.roce import BTH
    from scapy.layers.l2 import Ether

    frame = Template(flow(family), "02:00:00:00:00:01", "02:00:00:00:00:02", 100).frame(7, 0xC123)
    computed, carried = oracle.icrc(frame)
    assert computed == carried == struct.pack("<I", icrc(frame))
    packet = Ether(frame)
    assert packet[BTH].psn == 7
    del packet[BTH].icrc
    assert bytes(packet)[-4:] == carried


def test_routers_may_change_what_routers_change() -> None:
    frame = bytearray(Template(flow(4), "02:00:00:00:00:01", "02:00:00:00:00:02").frame(1))
    frame[15] = 0x6B  # ECN: CE
    frame[22] = 3  # TTL
    frame[24:26] = b"\x12\x34"  # header checksum
    assert icrc_is_right(bytes(frame))
    frame[35] ^= 1  # the UDP source port is not theirs to change
    assert not icrc_is_right(bytes(frame))


@pytest.mark.parametrize("junk", [b"", b"\0" * 13, b"\0" * 60, b"\xff" * 200, bytes.fromhex(RXE[0])[:50]])
def test_what_is_no_roce_is_none(junk: bytes) -> None:
    assert parse(junk) is None


@given(st.binary(max_size=120))
def test_parse_never_raises(data: bytes) -> None:
    parse(data)


def test_outage_is_the_longest_run() -> None:
    record = FlowRecord(1, sent=[n * 0.01 for n in range(100)])
    record.arrived = {n: n * 0.01 for n in range(100) if n not in (10, *range(50, 70), 99)}
    outage = outage_of(record, 0.01, until=0.99)
    assert (outage.sent, outage.lost) == (99, 21)
    assert outage.outage_ms == pytest.approx(200)


def test_tally_counts_ce_and_damage() -> None:
    tally = Tally()
    frame = Template(flow(4), "02:00:00:00:00:01", "02:00:00:00:00:02").frame(1)
    marked = bytearray(frame)
    marked[15] |= 3
    broken = bytearray(frame)
    broken[-1] ^= 1
    for f in (frame, bytes(marked), bytes(broken)):
        tally.add(f, "eth1")
    row = tally.rows()[0]
    assert (row["packets"], row["ce"], row["bad_icrc"]) == (3, 1, 1)
