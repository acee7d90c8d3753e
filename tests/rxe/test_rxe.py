"""Against Linux's own RoCE driver: a Debian kernel with rdma_rxe in qemu, and our transport at the other end of its wire.

Opt-in: `pytest tests/rxe`. Needs qemu-system-x86, busybox-static, gcc, libibverbs-dev, ibverbs-providers, iproute2 and
a Debian kernel package, which is downloaded once with apt-get; skips where any is missing. No root, no network: the
guest's Ethernet frames are UDP datagrams on loopback. Takes about a minute, since the guest is emulated.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from fabtest.roce.frames import Flow, RocePacket, finish, header, read
from fabtest.roce.opcodes import EXTENSION_BYTES, Op
from fabtest.roce.transport import Arrived, Message, Region, Reply, Requester, Responder, Verb

OURS, GUEST = ip_address("10.77.0.1"), ip_address("10.77.0.2")
OUR_MAC, GUEST_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
OUR_QPN, OUR_PSN, OUR_VA, OUR_RKEY = 0x11, 0xFFFFFE, 0x10000000, 0x4D2
MTU = 1024
CACHE = Path(os.environ.get("FABTEST_RXE_CACHE", "/var/tmp/fabtest-rxe"))
MODULES = ("e1000", "rdma_rxe")
INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
{insert}
/bin/busybox ip link set lo up
/bin/busybox ip addr add 10.77.0.2/24 dev eth0
/bin/busybox ip link set eth0 up
/bin/busybox arp -s 10.77.0.1 02:00:00:00:00:01
/usr/bin/rdma link add rxe0 type rxe netdev eth0
/bin/busybox mkdir -p /dev/infiniband
for f in /sys/class/infiniband_verbs/uverbs*; do
  IFS=: read major minor < $f/dev
  [ -e /dev/infiniband/${{f##*/}} ] || /bin/busybox mknod /dev/infiniband/${{f##*/}} c $major $minor
done
/bin/busybox sleep 1
/peer {arguments}
/bin/busybox poweroff -f
"""


def _fnv(data: bytes) -> int:
    value = 2166136261
    for byte in data:
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


def pattern(at: int, count: int) -> bytes:
    """What the guest's buffer holds at first."""
    return bytes((i * 7 + 3) & 0xFF for i in range(at, at + count))


# ------------------------------------------------------------------------------------------------ the guest


def _kernel() -> Path:
    """A Debian kernel, unpacked; downloaded once."""
    unpacked = CACHE / "kernel"
    if not list(unpacked.glob("boot/vmlinuz-*")):
        CACHE.mkdir(parents=True, exist_ok=True)
        found = subprocess.run(
            ["apt-cache", "search", "--names-only", "^linux-image-6.1.0-[0-9]+-amd64$"], capture_output=True, text=True
        ).stdout.split("\n")
        names = sorted((line.split()[0] for line in found if line), key=lambda n: int(n.split("-")[3]))
        if not names:
            pytest.skip("no Debian 6.1 kernel package is known to apt")
        done = subprocess.run(["apt-get", "download", names[-1]], cwd=CACHE, capture_output=True, text=True)
        package = next(iter(CACHE.glob(f"{names[-1]}_*.deb")), None)
        if package is None:
            pytest.skip(f"the kernel package cannot be downloaded: {done.stderr.strip()[-200:]}")
        subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
        package.unlink()
    return unpacked


def _module_files(kernel: Path) -> list[Path]:
    """The modules wanted and those they depend on, in the order to insert them."""
    known = {f.name.removesuffix(".ko").replace("-", "_"): f for f in kernel.glob("lib/modules/*/kernel/**/*.ko")}
    order: list[Path] = []

    def add(name: str) -> None:
        file = known.get(name.replace("-", "_"))
        if file is None or file in order:
            return
        match = re.search(rb"\0depends=([^\0]*)\0", file.read_bytes())
        for dependency in match[1].decode().split(",") if match and match[1] else []:
            add(dependency)
        order.append(file)

    for name in ("crc32_generic", *MODULES):
        add(name)
    return order


def _libraries(program: str) -> set[str]:
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(/\S+) \(0x", out))


def _newc(entries: dict[str, tuple[int, bytes]]) -> bytes:
    """An initramfs: path -> (mode, content)."""
    out = b""
    for inode, (name, (mode, content)) in enumerate([*entries.items(), ("TRAILER!!!", (0, b""))], 1):
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        out += head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
    return out


def _initramfs(folder: Path) -> Path:
    peer = folder / "peer"
    subprocess.run(["gcc", "-O1", "-o", str(peer), str(Path(__file__).with_name("peer.c")), "-libverbs"], check=True)
    rdma = shutil.which("rdma", path="/usr/bin:/sbin:/usr/sbin:/bin")
    provider = next(iter(Path("/usr/lib").glob("*/libibverbs/librxe-rdmav*.so")), None)
    if rdma is None or provider is None:
        pytest.skip("iproute2's rdma or the rxe provider of ibverbs-providers is missing")
    files = {"peer": peer, "usr/bin/rdma": Path(rdma), str(provider).lstrip("/"): provider}
    files["etc/libibverbs.d/rxe.driver"] = Path("/etc/libibverbs.d/rxe.driver")
    files["bin/busybox"] = Path(shutil.which("busybox") or "")
    for program in (str(peer), rdma, str(provider)):
        for library in _libraries(program):
            files[library.lstrip("/")] = Path(library)
    modules = _module_files(_kernel())
    for file in modules:
        files[f"modules/{file.name}"] = file
    insert = "\n".join(f"/bin/busybox insmod /modules/{file.name}" for file in modules)
    arguments = f"{OUR_QPN:x} {OUR_PSN:x} {OUR_VA:x} {OUR_RKEY:x}"
    entries: dict[str, tuple[int, bytes]] = {}
    for name in sorted(
        {str(p) for f in [*files, "proc/x", "sys/x", "dev/x"] for p in Path(f).parents if str(p) != "."}
    ):
        entries[name] = (0o040755, b"")
    entries["init"] = (0o100755, INIT.format(insert=insert, arguments=arguments).encode())
    for name, source in files.items():
        entries[name] = (0o100755, source.read_bytes())
    image = folder / "initramfs"
    image.write_bytes(_newc(entries))
    return image


class Guest:
    """The emulated machine: its console, and its wire as a UDP socket."""

    def __init__(self, folder: Path) -> None:
        image = _initramfs(folder)
        kernel = next(iter(_kernel().glob("boot/vmlinuz-*")))
        self.wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.wire.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._there = ("127.0.0.1", port)
        self._machine = subprocess.Popen(
            [
                "qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-smp", "1", "-nographic", "-no-reboot", "-nodefaults",
                "-serial", "stdio", "-kernel", str(kernel), "-initrd", str(image),
                "-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on",
                "-netdev", f"socket,id=n0,udp=127.0.0.1:{self.wire.getsockname()[1]},localaddr=127.0.0.1:{port}",
                "-device", f"e1000,netdev=n0,mac={GUEST_MAC.hex(':')},romfile=",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self._machine.stdout is not None
        self._console = self._machine.stdout
        os.set_blocking(self._console.fileno(), False)
        self.text = ""

    def send(self, frame: bytes) -> None:
        self.wire.sendto(frame, self._there)

    def frames(self, seconds: float) -> Iterator[bytes]:
        """Frames that come within a moment; the console is read meanwhile."""
        ends: list[Any] = [self.wire, self._console]
        ready, _, _ = select.select(ends, [], [], seconds)
        if self._console in ready:
            self.text += (self._console.read() or b"").decode(errors="replace")
        if self.wire in ready:
            while select.select([self.wire], [], [], 0)[0]:
                yield self.wire.recv(65536)

    def close(self) -> None:
        self._machine.kill()
        self._machine.wait()
        self._console.close()
        self.wire.close()


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    for program in ("qemu-system-x86_64", "gcc", "busybox", "dpkg-deb", "apt-get", "ldd"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not Path("/usr/include/infiniband/verbs.h").is_file():
        pytest.skip("libibverbs-dev is not installed")
    machine = Guest(tmp_path_factory.mktemp("rxe"))
    try:
        yield machine
    finally:
        machine.close()


# ------------------------------------------------------------------------------------------------ our end


class OurEnd:
    """A queue pair of ours on the guest's wire."""

    def __init__(self, guest: Guest, qpn: int, psn: int) -> None:
        self.guest, self.qpn = guest, qpn
        self.memory = bytearray(hashlib.sha256(b"fabtest").digest() * 1024)
        self.requester = Requester(first_psn=OUR_PSN, mtu=MTU, window=8, ack_every=4, timeout_ns=2 * 10**9)
        self.responder = Responder(psn, MTU, Region(OUR_RKEY, OUR_VA, self.memory))
        self.payloads: dict[int, bytes] = {}
        self.answers: dict[int, bytes] = {}
        self.received: list[RocePacket] = []
        self.done: list[int] = []
        self.bad_icrc = 0

    def post(self, number: int, verb: Verb, payload: bytes, **words: int) -> None:
        self.payloads[number] = payload
        self.requester.post(Message(number, verb, len(payload), **words))  # type: ignore[arg-type]

    def _frame(self, opcode: int, psn: int, payload: bytes, extended: bytes, ack: bool = False) -> None:
        flow = Flow(OURS, GUEST, 0xC123, self.qpn)
        head = header(flow, OUR_MAC, GUEST_MAC, opcode, len(payload), extended=extended, ack=ack, psn=psn)
        self.guest.send(finish(head, payload))

    def turn(self) -> None:
        now = time.monotonic_ns()
        self.requester.expired(now)
        for opcode, psn, ask, length, offset, message in self.requester.take(8, now):
            size = EXTENSION_BYTES[opcode]
            extended = b""
            if opcode in (Op.FETCH_ADD, Op.COMPARE_SWAP):
                extended = struct.pack("!QIQQ", message.va, message.rkey, message.swap, message.compare)
            elif size >= 16:
                dma = length if opcode == Op.RDMA_READ_REQUEST else message.length
                extended = struct.pack(
                    "!QII", message.va + (offset if opcode == Op.RDMA_READ_REQUEST else 0), message.rkey, dma
                )
            if size in (4, 20):
                extended += struct.pack("!I", message.immediate or 0)
            data = (
                b""
                if opcode in (Op.RDMA_READ_REQUEST, Op.FETCH_ADD)
                else self.payloads[message.number][offset : offset + length]
            )
            self._frame(opcode, psn, data, extended, ask)
        for frame in self.guest.frames(0.02):
            if frame[12:14] == b"\x08\x06":
                self._arp(frame)
                continue
            packet = read(frame)
            if packet is None or packet.dqpn != OUR_QPN:
                continue
            if not packet.icrc_ok:
                self.bad_icrc += 1
                continue
            self._take(packet, time.monotonic_ns())

    def _arp(self, frame: bytes) -> None:
        if frame[20:22] == b"\0\1" and frame[38:42] == OURS.packed:
            answer = frame[6:12] + OUR_MAC + frame[12:20] + b"\0\2" + OUR_MAC + OURS.packed + frame[22:32]
            self.guest.send(answer.ljust(60, b"\0"))

    def _take(self, packet: RocePacket, now: int) -> None:
        op = packet.opcode & 0x1F
        if op == Op.ACKNOWLEDGE:
            self.requester.acknowledge(packet.psn, packet.syndrome, now)
        elif op == Op.ATOMIC_ACKNOWLEDGE or Op.RDMA_READ_RESPONSE_FIRST <= op <= Op.RDMA_READ_RESPONSE_ONLY:
            waiting = self.requester.pending()[0].number
            if self.requester.respond(packet.opcode, packet.psn, now):
                data = packet.payload if op != Op.ATOMIC_ACKNOWLEDGE else struct.pack("<Q", packet.original)
                self.answers[waiting] = self.answers.get(waiting, b"") + data
        else:
            self.received.append(packet)
            for reply in self.responder.receive(Arrived(
                packet.opcode, packet.psn, packet.ack_request, packet.length, packet.immediate, packet.va, packet.rkey,
                packet.dma_length, packet.swap, packet.compare, packet.payload,
            )):  # fmt: skip
                self._reply(reply)
        self.done += [m.number for m in self.requester.completed]
        self.requester.completed.clear()

    def _reply(self, reply: Reply) -> None:
        aeth = struct.pack("!I", reply.syndrome << 24 | reply.msn)
        extended = (aeth + struct.pack("!Q", reply.original))[: EXTENSION_BYTES[reply.opcode]]
        data = self.responder.memory.read(reply.va, reply.length) if reply.length else b""
        self._frame(reply.opcode, reply.psn, data, extended)


def _until(end: OurEnd | None, guest: Guest, text: str, seconds: float) -> re.Match[str]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if end is not None:
            end.turn()
        else:
            for frame in guest.frames(0.2):
                del frame
        match = re.search(text, guest.text)
        if match:
            return match
        assert "FAILED" not in guest.text, guest.text
    raise AssertionError(f"no {text!r} within {seconds} s:\n{guest.text[-2000:]}")


def test_both_ways(guest: Guest) -> None:
    """SEND, WRITE, READ and an atomic to rxe and from rxe: it accepts our packets and we accept its."""
    ready = _until(None, guest, r"READY qpn=(\w+) psn=(\w+) va=(\w+) rkey=(\w+)\s", 120)
    qpn, psn, va, rkey = (int(x, 16) for x in ready.groups())
    end = OurEnd(guest, qpn, psn)
    # Ours to the guest; the first packets pass the wrap of the PSN.
    sent = bytes(range(256)) * 12
    end.post(0, Verb.SEND, sent[:3000])
    end.post(1, Verb.WRITE, sent[:2500], va=va + 65536, rkey=rkey, immediate=0x1234)
    end.post(2, Verb.WRITE, sent[100:2600], va=va + 65536 + 2500, rkey=rkey)
    end.post(3, Verb.READ, bytes(5000), va=va + 40000, rkey=rkey)
    end.post(4, Verb.FETCH_ADD, bytes(8), va=va + 4096 * 9, rkey=rkey, swap=1)
    end.post(5, Verb.SEND, b"x", immediate=0xCAFE)
    deadline = time.monotonic() + 60
    while len(end.done) < 6 and time.monotonic() < deadline:
        end.turn()
        assert not end.requester.failed, end.requester.failed
    assert end.done == [0, 1, 2, 3, 4, 5]
    assert end.answers[3] == pattern(40000, 5000)
    assert end.answers[4] == pattern(4096 * 9, 8)
    # The guest's to us.
    end.post(6, Verb.SEND, b"GO")
    _until(end, guest, r"DONE\s", 60)
    lines = [line.strip() for line in guest.text.splitlines()]
    received = [line for line in lines if line.startswith("RECV")]
    assert received[0] == f"RECV status=0 opcode=128 len=3000 imm=0 hash={_fnv(sent[:3000]):08x}"
    assert received[1].startswith("RECV status=0 opcode=129 len=2500 imm=1234"), "a WRITE with immediate data"
    assert received[2].startswith(f"RECV status=0 opcode=128 len=1 imm=cafe hash={_fnv(b'x'):08x}")
    assert f"WRITTEN hash={_fnv(sent[:2500] + sent[100:2600]):08x}" in lines
    assert [line for line in lines if line.startswith("SENT")] == [
        f"SENT id={100 + n} status=0 (success)" for n in range(5)
    ]
    before = hashlib.sha256(b"fabtest").digest() * 1024
    added = struct.unpack_from("<Q", before, 8192)[0]
    assert f"READ hash={_fnv(before[:5000]):08x} atomic={added:x}" in lines
    assert struct.unpack_from("<Q", end.memory, 8192)[0] == (added + 5) % 2**64
    assert bytes(end.memory[16384 : 16384 + 3000]) == pattern(42000, 1) + pattern(41001, 2999), "both WRITEs are there"
    opcodes = [p.name for p in end.received]
    assert opcodes[:3] == ["RC_SEND_FIRST", "RC_SEND_MIDDLE", "RC_SEND_LAST_WITH_IMMEDIATE"]
    assert end.responder.delivered[0] == 0xABC0
    assert end.bad_icrc == 0
    assert end.requester.counters.messages_failed == 0
    assert not end.responder.failed
