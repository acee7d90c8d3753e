"""The classifiers on ingress, those that receive RoCEv2 above all, in namespaces of the test's own: what they keep, drop, count and leave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest

from fabtest.litenode.kernel import QP_HASH_PRIORITY, hash_by_qp
from fabtest.roce.arena import payload_bytes
from fabtest.roce.capture import Capture
from fabtest.roce.frames import Flow, finish, header
from fabtest.roce.receiver import DROP, TAP, Receiver, remove_orphans
from fabtest.roce.ring import WHOLE
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import NetlinkSocket
from fabtest.runtime.processes import program

NEAR, FAR = "fabtest-t-near", "fabtest-t-far"
FAR_PATH = Path("/run/netns") / FAR
MACS = (bytes.fromhex("020000000001"), bytes.fromhex("020000000002"))


def ip(*argv: str) -> None:
    subprocess.run([program("ip", "iproute2"), *argv], check=True, capture_output=True)


@pytest.fixture
def wire() -> Iterator[socket.socket]:
    """A socket that sends out of one namespace into ``far0`` of the other; its kernel hears what that one answers."""
    for netns in (NEAR, FAR):
        subprocess.run([program("ip", "iproute2"), "netns", "del", netns], check=False, capture_output=True)
        ip("netns", "add", netns)
    try:
        ip("link", "add", "near0", "netns", NEAR, "type", "veth", "peer", "name", "far0", "netns", FAR)
        for netns, name, n in ((NEAR, "near0", 1), (FAR, "far0", 2)):
            ip("-n", netns, "link", "set", name, "address", MACS[n - 1].hex(":"), "mtu", "9216", "up")
            ip("-n", netns, "addr", "add", f"10.9.0.{n}/24", "dev", name)
            ip("-n", netns, "addr", "add", f"fd09::{n}/64", "dev", name, "nodad")
        with inside(Path("/run/netns") / NEAR):
            out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            out.bind(("near0", 0))
        time.sleep(0.1)
        yield out
        out.close()
    finally:
        for netns in (NEAR, FAR):
            ip("netns", "del", netns)


def frame(psn: int, payload: int = 64, family: int = 4) -> bytes:
    a, b = ("10.9.0.1", "10.9.0.2") if family == 4 else ("fd09::1", "fd09::2")
    flow = Flow(ip_address(a), ip_address(b), 0xC000, 7)
    return finish(header(flow, MACS[0], MACS[1], 4, payload, psn=psn), payload_bytes(payload))


def psns(receiver: Receiver) -> list[int]:
    found: list[int] = []
    while (batch := receiver.take()) is not None:
        found += batch.psn.tolist()
        receiver.ring.release()
    return found


class Answers:
    """ICMP that comes back to the near end."""

    def __init__(self) -> None:
        with inside(Path("/run/netns") / NEAR):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.settimeout(0.2)

    def any(self) -> bool:
        try:
            return bool(self._socket.recv(2048))
        except TimeoutError:
            return False


def test_frames_of_every_length_and_family_are_kept(wire: socket.socket) -> None:
    sent = [
        frame(n, size, family) for n, (size, family) in enumerate((s, f) for s in (0, 64, 4096, 9000) for f in (4, 6))
    ]
    with (
        Receiver(FAR_PATH, ["far0"], sample=1) as receiver,
        Receiver(FAR_PATH, ["far0"], keep=WHOLE, sample=0, slots=64) as all_of,
    ):
        for each in sent:
            wire.send(each)
        before = time.monotonic_ns()
        batch = receiver.take()
        assert batch is not None
        assert batch.psn.tolist() == list(range(len(sent)))
        assert (batch.dqpn == 7).all()
        assert (batch.length + 14 == [len(each) for each in sent]).all()
        assert (np.diff(batch.time_ns) >= 0).all()
        assert 0 < before - batch.time_ns[0] < 1e9, "it is CLOCK_MONOTONIC"
        assert receiver.ring.frames() == [each[:104] for each in sent]
        receiver.ring.release()
        assert receiver.take() is None
        assert receiver.ring.sampled() == sent
        for each in (sent[2], bytes([*sent[2][:60], sent[2][60] ^ 1, *sent[2][61:]])):
            wire.send(each)
        assert receiver.ring.wrong_icrc() == (1, 2)
        assert all_of.take() is not None
        assert all_of.ring.frames()[: len(sent)] == sent


def test_what_is_no_rocev2_goes_on(wire: socket.socket) -> None:
    with inside(FAR_PATH):
        hears = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        hears.bind(("10.9.0.2", 4790))
        hears.settimeout(1)
    with Receiver(FAR_PATH, ["far0"]) as receiver, inside(Path("/run/netns") / NEAR):
        speaks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        speaks.sendto(b"hello", ("10.9.0.2", 4790))
        assert hears.recv(10) == b"hello"
        assert receiver.take() is None
    hears.close()
    speaks.close()


def test_a_full_ring_counts_what_it_loses(wire: socket.socket) -> None:
    with Receiver(FAR_PATH, ["far0"], slots=32) as receiver:
        room = receiver.ring.count
        for n in range(room + 10):
            wire.send(frame(n))
        kept = psns(receiver)
        assert kept == list(range(len(kept)))
        assert receiver.ring.dropped() == room + 10 - len(kept) >= 10
        assert receiver.ring.dropped() == 0
        wire.send(frame(5))
        assert psns(receiver) == [5], "it goes on"


def test_around_the_ring_many_times(wire: socket.socket) -> None:
    with Receiver(FAR_PATH, ["far0"], slots=64) as receiver:
        for start in range(0, 5000, 50):
            for n in range(start, start + 50):
                wire.send(frame(n))
            assert psns(receiver) == list(range(start, start + 50))
        assert receiver.ring.dropped() == 0


@pytest.mark.parametrize("first_ends", [0, 1])
def test_two_receivers_see_everything_and_neither_ends_the_others(wire: socket.socket, first_ends: int) -> None:
    answers = Answers()
    both = [Receiver(FAR_PATH, ["far0"]), Receiver(FAR_PATH, ["far0"])]
    wire.send(frame(1))
    assert [psns(r) for r in both] == [[1], [1]]
    both.pop(first_ends).close()
    wire.send(frame(2))
    assert psns(both[0]) == [2]
    late = Receiver(FAR_PATH, ["far0"])
    wire.send(frame(3))
    assert psns(both[0]) == psns(late) == [3]
    assert not answers.any(), "the kernel saw RoCEv2"
    both[0].close()
    late.close()
    wire.send(frame(4))
    assert answers.any(), "nobody receives: the kernel answers"


def test_too_short_a_frame_is_not_answered(wire: socket.socket) -> None:
    answers = Answers()
    with Receiver(FAR_PATH, ["far0"]) as receiver:
        short = bytearray(frame(1, 0)[:50])
        short[16:18] = (36).to_bytes(2, "big")
        short[38:40] = (16).to_bytes(2, "big")
        short[24:26] = bytes(2)
        total = sum(int.from_bytes(short[at : at + 2], "big") for at in range(14, 34, 2))
        short[24:26] = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
        wire.send(bytes(short))
        assert not answers.any()
        assert receiver.take() is None
    wire.send(bytes(short))
    assert answers.any(), "the test's own frame is one the kernel would answer"


def test_captures_still_see_what_is_received(wire: socket.socket) -> None:
    with Receiver(FAR_PATH, ["far0"]) as receiver, Capture(FAR_PATH, whole=True) as capture:
        wire.send(frame(9))
        assert [f for f, _ in capture.frames()] == [frame(9)]
        assert psns(receiver) == [9]


def test_a_killed_receivers_classifiers_are_taken_off(wire: socket.socket) -> None:
    script = (
        "import sys, time; from fabtest.roce.receiver import Receiver; "
        f"r = Receiver({str(FAR_PATH)!r}, ['far0']); print('open', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    with Receiver(FAR_PATH, ["far0"]) as receiver:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert len(classifiers()) == 4
        remove_orphans(FAR_PATH, ["far0"])
        assert len(classifiers()) == 2, "one's own stay"
        wire.send(frame(1))
        assert psns(receiver) == [1]
    assert classifiers() == []


def classifiers() -> list[int]:
    with inside(FAR_PATH), NetlinkSocket() as kernel:
        return [p for p, _ in kernel.classifiers(kernel.links()["far0"].index) if p in (TAP, DROP)]


def test_a_new_seed_replaces_the_hash_of_queue_pairs(wire: socket.socket) -> None:
    ip("-n", FAR, "link", "add", "Ethernet0", "type", "veth", "peer", "name", "other0")
    with inside(FAR_PATH), NetlinkSocket() as kernel:
        for seed in (1, 2, 3):
            hash_by_qp(kernel, seed)
        assert kernel.classifiers(kernel.links()["Ethernet0"].index) == [(QP_HASH_PRIORITY, 1)]
        assert kernel.classifiers(kernel.links()["far0"].index) == []
