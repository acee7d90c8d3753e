"""BPF without a compiler: an assembler, maps, and the system call.

Instruction encoding and commands: linux/bpf.h, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from fabtest.errors import MachineError

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD = 0, 1, 5
PROG_TYPE_SCHED_CLS, PROG_TYPE_XDP = 3, 6
_MAP_TYPE_ARRAY, _MAP_TYPE_RINGBUF = 2, 27
_PSEUDO_MAP_FD, _PSEUDO_MAP_VALUE = 1, 2


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

    def fetch16(self, dst: int, src: int, offset: int) -> None:
        """dst = 16 bits at src + offset, in the machine's order"""
        self._add(0x69, dst, src, offset)

    def fetch8(self, dst: int, src: int, offset: int) -> None:
        """dst = 8 bits at src + offset"""
        self._add(0x71, dst, src, offset)

    def if_beyond(self, dst: int, src: int, label: str) -> None:
        """Go to a label if dst > src (unsigned)."""
        self._add(0x2D, dst, src, label)

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


def load(program: Program, kind: int, what: str) -> int:
    """Have the kernel check and take a program; its descriptor. Raises MachineError."""
    text = program.assemble()
    code = ctypes.create_string_buffer(text)
    licence = ctypes.create_string_buffer(b"GPL")
    attr = struct.pack("=IIQQIIQI", kind, len(text) // 8, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0)
    return _bpf(_PROG_LOAD, attr, f"load the {what} program")
