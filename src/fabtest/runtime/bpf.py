"""The one kernel program a lab needs for now: XDP that drops every frame, for failures without loss of carrier."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from fabtest.errors import MachineError

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_LOAD, _PROG_TYPE_XDP, _XDP_DROP = 5, 6, 1
#: r0 = XDP_DROP; exit
_PROGRAM = struct.pack("=BBhi", 0xB7, 0, 0, _XDP_DROP) + struct.pack("=BBhi", 0x95, 0, 0, 0)


def load_drop() -> int:
    """Load the program; the descriptor may be closed once it is attached. Raises MachineError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise MachineError(f"no bpf system call known for {platform.machine()}")
    code = ctypes.create_string_buffer(_PROGRAM)
    licence = ctypes.create_string_buffer(b"GPL")
    attr = ctypes.create_string_buffer(
        struct.pack("=IIQQIIQI", _PROG_TYPE_XDP, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0), 128
    )
    libc = ctypes.CDLL(None, use_errno=True)
    handle = int(libc.syscall(number, _PROG_LOAD, attr, 128))
    if handle < 0:
        reason = os.strerror(ctypes.get_errno())
        raise MachineError(f"cannot load the frame-dropping program: {reason}", hint="silent loss needs BPF and root")
    return handle
