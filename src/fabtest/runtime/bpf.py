"""The kernel programs a lab needs, assembled here: a few dozen instructions do not warrant a compiler on every machine.

``load_drop``: XDP that drops every frame, or a share of them, for failures without loss of carrier.
``load_roce_tap``: a classifier that copies RoCEv2 headers into a ring shared with us. ``load_roce_drop``: one that
drops RoCEv2 once captures and taps have seen it, so that a server's kernel does not answer it. ``load_qp_hash``: one that
makes ECMP hash on the destination queue pair.

Instruction encoding and helpers: linux/bpf.h, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from fabtest.errors import MachineError

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD = 0, 1, 5
_PROG_TYPE_SCHED_CLS, _PROG_TYPE_XDP = 3, 6
_MAP_TYPE_ARRAY, _MAP_TYPE_RINGBUF = 2, 27
_XDP_DROP, _XDP_PASS, _TC_ACT_OK, _TC_ACT_SHOT, _TC_ACT_UNSPEC = 1, 2, 0, 2, -1
_HELPER_KTIME_GET_NS = 5
#: bpf_get_prandom_u32()
_HELPER_GET_PRANDOM_U32 = 7
#: bpf_skb_load_bytes(skb, offset, to, length)
_HELPER_SKB_LOAD_BYTES = 26
#: bpf_ringbuf_reserve(map, size, flags), bpf_ringbuf_submit(record, flags)
_HELPER_RINGBUF_RESERVE, _HELPER_RINGBUF_SUBMIT = 131, 132
#: struct __sk_buff
_SKB_LEN, _SKB_IFINDEX = 0, 40
_PSEUDO_MAP_FD, _PSEUDO_MAP_VALUE = 1, 2
#: bpf_set_hash(skb, hash): what ECMP takes for the hash of a flow.
_HELPER_SET_HASH = 48
ROCE_PORT = 4791


class Program:
    """Instructions, one method each; jumps go to labels."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int | str, int]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Here."""
        self._labels[name] = len(self._code)

    def _add(self, opcode: int, dst: int = 0, src: int = 0, offset: int | str = 0, value: int = 0) -> None:
        self._code.append((opcode, dst, src, offset, value))

    def set(self, dst: int, value: int) -> None:
        """dst = value"""
        self._add(0xB7, dst, value=value)

    def copy(self, dst: int, src: int) -> None:
        """dst = src"""
        self._add(0xBF, dst, src)

    def load(self, size: int, at: int) -> None:
        """r0 = so many bytes of the frame at an offset, in host order; too short a frame ends the program with 0.

        The context must be in r6. r1 to r5 are lost.
        """
        self._add({1: 0x30, 2: 0x28, 4: 0x20}[size], value=at)

    def xor(self, dst: int, src: int) -> None:
        """dst ^= src (32 bits)"""
        self._add(0xAC, dst, src)

    def xor_value(self, dst: int, value: int) -> None:
        """dst ^= value (32 bits)"""
        self._add(0xA4, dst, value=value)

    def mask(self, dst: int, value: int) -> None:
        """dst &= value (32 bits)"""
        self._add(0x54, dst, value=value)

    def multiply(self, dst: int, value: int) -> None:
        """dst *= value (32 bits)"""
        self._add(0x24, dst, value=value)

    def shift_right(self, dst: int, bits: int) -> None:
        """dst >>= bits (32 bits)"""
        self._add(0x74, dst, value=bits)

    def copy32(self, dst: int, src: int) -> None:
        """dst = src (32 bits)"""
        self._add(0xBC, dst, src)

    def unless(self, dst: int, value: int, label: str) -> None:
        """Go to a label unless dst == value."""
        self._add(0x55, dst, offset=label, value=value)

    def if_less(self, dst: int, value: int, label: str) -> None:
        """Go to a label if dst < value (unsigned; value below 2**31)."""
        self._add(0xA5, dst, offset=label, value=value)

    def if_more(self, dst: int, value: int, label: str) -> None:
        """Go to a label if dst > value (unsigned; value below 2**31)."""
        self._add(0x25, dst, offset=label, value=value)

    def add(self, dst: int, value: int) -> None:
        """dst += value"""
        self._add(0x07, dst, value=value)

    def fetch32(self, dst: int, src: int, offset: int) -> None:
        """dst = 32 bits at src + offset"""
        self._add(0x61, dst, src, offset)

    def store32(self, dst: int, offset: int, src: int) -> None:
        """32 bits at dst + offset = src"""
        self._add(0x63, dst, src, offset)

    def store64(self, dst: int, offset: int, src: int) -> None:
        """64 bits at dst + offset = src"""
        self._add(0x7B, dst, src, offset)

    def count(self, dst: int) -> None:
        """Add 1 to the 64 bits dst points at, atomically; r1 is lost."""
        self.set(1, 1)
        self._add(0xDB, dst, 1)

    def map(self, dst: int, handle: int) -> None:
        """dst = a map"""
        self._add(0x18, dst, _PSEUDO_MAP_FD, value=handle)
        self._add(0)

    def map_value(self, dst: int, handle: int) -> None:
        """dst = address of the first value of an array"""
        self._add(0x18, dst, _PSEUDO_MAP_VALUE, value=handle)
        self._add(0)

    def if_zero(self, dst: int, label: str) -> None:
        """Go to a label if dst == 0."""
        self._add(0x15, dst, offset=label)

    def here(self) -> int:
        """How many instructions there are so far."""
        return len(self._code)

    def jump(self, label: str) -> None:
        """Go to a label."""
        self._add(0x05, offset=label)

    def call(self, helper: int) -> None:
        """Call a helper."""
        self._add(0x85, value=helper)

    def end(self, result: int) -> None:
        """return result"""
        self.set(0, result)
        self._add(0x95)

    def assemble(self) -> bytes:
        """The instructions as the kernel takes them."""
        out = []
        for n, (opcode, dst, src, offset, value) in enumerate(self._code):
            go = self._labels[offset] - n - 1 if isinstance(offset, str) else offset
            signed = value - (1 << 32) if value >= 1 << 31 else value
            out.append(struct.pack("=BBhi", opcode, src << 4 | dst, go, signed))
        return b"".join(out)


def _bpf(command: int, attr: bytes, what: str) -> int:
    """The system call. Raises MachineError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise MachineError(f"no bpf system call known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, command, ctypes.create_string_buffer(attr, 128), 128))
    if result < 0:
        reason = os.strerror(ctypes.get_errno())
        raise MachineError(f"cannot {what}: {reason}", hint="it needs BPF and root")
    return result


def create_ring(size: int) -> int:
    """A ring buffer of so many bytes, a power of two of at least a page; its descriptor. Raises MachineError."""
    return _bpf(_MAP_CREATE, struct.pack("=5I", _MAP_TYPE_RINGBUF, 0, 0, size, 0), "make a BPF ring buffer")


def create_counter() -> int:
    """An array of one 64-bit number; its descriptor. Raises MachineError."""
    return _bpf(_MAP_CREATE, struct.pack("=5I", _MAP_TYPE_ARRAY, 4, 8, 1, 0), "make a BPF counter")


def read_counter(handle: int) -> int:
    """What a counter says. Raises MachineError."""
    key, value = ctypes.c_uint32(0), ctypes.c_uint64(0)
    attr = struct.pack("=IxxxxQQQ", handle, ctypes.addressof(key), ctypes.addressof(value), 0)
    _bpf(_MAP_LOOKUP, attr, "read a BPF counter")
    return value.value


def _load(program: Program, kind: int, what: str) -> int:
    text = program.assemble()
    code = ctypes.create_string_buffer(text)
    licence = ctypes.create_string_buffer(b"GPL")
    attr = struct.pack("=IIQQIIQI", kind, len(text) // 8, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0)
    return _bpf(_PROG_LOAD, attr, f"load the {what} program")


def load_drop(share: float = 1.0) -> int:
    """XDP that drops a share of all frames (0 to 1), each at random; the descriptor may be closed once it is attached.

    Raises MachineError.
    """
    program = Program()
    if share < 1:
        program.call(_HELPER_GET_PRANDOM_U32)
        program.shift_right(0, 1)
        program.if_less(0, round(share * 0x7FFFFFFF), "drop")
        program.end(_XDP_PASS)
        program.label("drop")
    program.end(_XDP_DROP)
    return _load(program, _PROG_TYPE_XDP, "frame-dropping")


def _roce_over(program: Program, family: int, otherwise: str) -> None:
    """Go on only with UDP to port 4791 over IPv4 without options, or IPv6."""
    program.load(2, 12)
    program.unless(0, 0x0800 if family == 4 else 0x86DD, otherwise)
    if family == 4:
        program.load(1, 14)
        program.unless(0, 0x45, otherwise)
    program.load(1, 23 if family == 4 else 20)
    program.unless(0, 17, otherwise)
    program.load(2, 36 if family == 4 else 56)
    program.unless(0, ROCE_PORT, otherwise)


def load_roce_drop() -> int:
    """A classifier for the ingress of a server's port. Raises MachineError."""
    program = Program()
    program.copy(6, 1)
    _roce_over(program, 4, "six")
    program.end(_TC_ACT_SHOT)
    program.label("six")
    _roce_over(program, 6, "pass")
    program.end(_TC_ACT_SHOT)
    program.label("pass")
    program.end(_TC_ACT_UNSPEC)
    return _load(program, _PROG_TYPE_SCHED_CLS, "RoCE-dropping")


#: A record of a tap: CLOCK_MONOTONIC in ns (64 bits), bytes on the wire and interface index (32 each), then the frame.
TAP_FRAME = 16
_SHORTEST = 14 + 20 + 8 + 12 + 4


def load_roce_tap(ring: int, keep: int, full: int, sample: int, keep_sample: int, one_in: int) -> int:
    """A classifier for the ingress of a server's port: copies the first ``keep`` bytes of each RoCEv2 frame into a
    record of a ring; ``full`` counts those that found no room. One in ``one_in`` frames (a power of two) at random
    goes whole into the ring ``sample`` too, if it is no longer than ``keep_sample`` and there is room; 0: none.

    It leaves the frame to the classifiers after it. Raises MachineError.
    """
    program = Program()
    program.copy(6, 1)
    _roce_over(program, 4, "six")
    program.jump("ours")
    program.label("six")
    _roce_over(program, 6, "pass")
    program.label("ours")
    program.fetch32(8, 6, _SKB_LEN)
    program.if_less(8, _SHORTEST, "pass")
    _record(program, ring, keep, "full")
    if one_in:
        program.call(_HELPER_GET_PRANDOM_U32)
        program.mask(0, one_in - 1)
        program.unless(0, 0, "pass")
        program.if_more(8, keep_sample, "pass")
        _record(program, sample, keep_sample, "pass")
    program.end(_TC_ACT_UNSPEC)
    program.label("full")
    program.map_value(2, full)
    program.count(2)
    program.label("pass")
    program.end(_TC_ACT_UNSPEC)
    return _load(program, _PROG_TYPE_SCHED_CLS, "RoCE-tapping")


def _record(program: Program, ring: int, keep: int, full: str) -> None:
    """Put a frame into a ring; its length must be in r8 and its context in r6. r7 is lost."""
    program.map(1, ring)
    program.set(2, TAP_FRAME + keep)
    program.set(3, 0)
    program.call(_HELPER_RINGBUF_RESERVE)
    program.if_zero(0, full)
    program.copy(7, 0)
    program.call(_HELPER_KTIME_GET_NS)
    program.store64(7, 0, 0)
    program.store32(7, 8, 8)
    program.fetch32(1, 6, _SKB_IFINDEX)
    program.store32(7, 12, 1)
    here = f"short {program.here()}"
    program.copy(4, 8)
    program.if_less(4, keep, here)
    program.set(4, keep)
    program.label(here)
    program.copy(1, 6)
    program.set(2, 0)
    program.copy(3, 7)
    program.add(3, TAP_FRAME)
    program.call(_HELPER_SKB_LOAD_BYTES)
    program.copy(1, 7)
    program.set(2, 0)
    program.call(_HELPER_RINGBUF_SUBMIT)


def load_qp_hash(salt: int) -> int:
    """A classifier for the ingress of a switch's ports: the flow's hash becomes one of the addresses, the UDP source
    port and the destination QP, with a salt of the switch's own. Raises MachineError."""
    program = Program()
    program.copy(6, 1)
    _roce_over(program, 4, "six")
    program.set(7, salt)
    for size, at in ((4, 26), (4, 30), (2, 34)):
        _mix(program, size, at)
    _mix(program, 4, 46, 0xFFFFFF)  # the QP without FECN and BECN, which switches set
    program.jump("done")
    program.label("six")
    _roce_over(program, 6, "pass")
    program.set(7, salt)
    for at in range(22, 54, 4):
        _mix(program, 4, at)
    _mix(program, 2, 54)
    _mix(program, 4, 66, 0xFFFFFF)
    program.label("done")
    program.copy(1, 6)
    program.copy(2, 7)
    program.call(_HELPER_SET_HASH)
    program.label("pass")
    program.end(_TC_ACT_UNSPEC)
    return _load(program, _PROG_TYPE_SCHED_CLS, "QP-hashing")


def _mix(program: Program, size: int, at: int, mask: int = 0) -> None:
    """r7 = a hash of r7 and a field (multiply and xor-shift; constants of MurmurHash3's finaliser)."""
    program.load(size, at)
    if mask:
        program.mask(0, mask)
    program.xor(7, 0)
    program.multiply(7, 0x85EBCA6B)
    program.copy32(8, 7)
    program.shift_right(8, 13)
    program.xor(7, 8)
    program.multiply(7, 0xC2B2AE35)
    program.copy32(8, 7)
    program.shift_right(8, 16)
    program.xor(7, 8)
