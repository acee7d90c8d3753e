"""The kernel programs a lab needs: a few dozen instructions do not warrant a compiler on every machine.

``load_drop``: XDP that drops every frame, or a share of them, for failures without loss of carrier.
``load_roce_tap``: a classifier that copies RoCEv2 frames into a ring shared with us. ``load_roce_drop``: one that drops
them once captures and taps have seen them, so that a server's kernel does not answer. ``load_qp_hash``: one that makes
ECMP hash on the destination queue pair.

Helpers: linux/bpf.h.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from fabtest.runtime.bpf import PROG_TYPE_SCHED_CLS, PROG_TYPE_XDP, Program, load

_XDP_DROP, _XDP_PASS, _TC_ACT_SHOT, _TC_ACT_UNSPEC = 1, 2, 2, -1
_HELPER_KTIME_GET_NS = 5
#: bpf_get_prandom_u32()
_HELPER_GET_PRANDOM_U32 = 7
#: bpf_skb_load_bytes(skb, offset, to, length)
_HELPER_SKB_LOAD_BYTES = 26
#: bpf_skb_pull_data(skb, length)
_HELPER_SKB_PULL_DATA = 39
#: bpf_ringbuf_reserve(map, size, flags), bpf_ringbuf_submit(record, flags)
_HELPER_RINGBUF_RESERVE, _HELPER_RINGBUF_SUBMIT = 131, 132
#: struct __sk_buff
_SKB_LEN, _SKB_IFINDEX, _SKB_DATA, _SKB_DATA_END = 0, 40, 76, 80
#: bpf_set_hash(skb, hash): what ECMP takes for the hash of a flow.
_HELPER_SET_HASH = 48
ROCE_PORT = 4791


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
    return load(program, PROG_TYPE_XDP, "frame-dropping")


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
    return load(program, PROG_TYPE_SCHED_CLS, "RoCE-dropping")


#: A record of a tap: CLOCK_MONOTONIC in ns (64 bits), bytes on the wire and interface index (32 each), then the frame.
TAP_FRAME = 16
#: The shortest RoCEv2 frame: Ethernet, IPv4, UDP, BTH, ICRC. A UDP header over IPv6 stands in as many bytes.
_SHORTEST = 14 + 20 + 8 + 12 + 4


@dataclass(frozen=True, slots=True)
class Tap:
    """Where a tap puts frames: descriptors of two rings and a counter.

    ``ring`` gets the first ``keep`` bytes of every frame; ``full`` counts those that found no room. One in ``one_in``
    frames (a power of two; 0 for none), at random, goes to ``sample`` as well, if it has no more than ``keep_sample``
    bytes and there is room.
    """

    ring: int
    keep: int
    full: int
    sample: int
    keep_sample: int
    one_in: int


def load_roce_tap(tap: Tap, *, final: bool) -> int:
    """A classifier for the ingress of a server's port that copies RoCEv2 frames. ``final``: it then drops them; else it
    leaves them to the classifiers after it. Raises MachineError."""
    verdict = _TC_ACT_SHOT if final else _TC_ACT_UNSPEC
    program = Program()
    program.copy(6, 1)
    _see(program, "pull")
    program.label("seen")
    program.fetch16(0, 9, 12)
    program.unless(0, socket.htons(0x0800), "six")
    program.fetch8(0, 9, 14)
    program.unless(0, 0x45, "pass")
    program.fetch8(0, 9, 23)
    program.unless(0, 17, "pass")
    program.fetch16(0, 9, 36)
    program.unless(0, socket.htons(ROCE_PORT), "pass")
    program.jump("ours")
    program.label("six")
    program.unless(0, socket.htons(0x86DD), "pass")
    program.fetch8(0, 9, 20)
    program.unless(0, 17, "pass")
    program.fetch16(0, 9, 56)
    program.unless(0, socket.htons(ROCE_PORT), "pass")
    program.label("ours")
    program.fetch32(8, 6, _SKB_LEN)
    program.if_less(8, _SHORTEST, "pass")
    _record(program, tap.ring, tap.keep, "full")
    if tap.one_in:
        program.call(_HELPER_GET_PRANDOM_U32)
        program.mask(0, tap.one_in - 1)
        program.unless(0, 0, "done")
        program.if_more(8, tap.keep_sample, "done")
        _record(program, tap.sample, tap.keep_sample, "done")
        program.label("done")
    program.end(verdict)
    program.label("full")
    program.map_value(2, tap.full)
    program.count(2)
    program.end(verdict)
    program.label("pull")  # the kernel keeps them apart from what it may touch
    program.copy(1, 6)
    program.set(2, _SHORTEST)
    program.call(_HELPER_SKB_PULL_DATA)
    _see(program, "pass")
    program.jump("seen")
    program.label("pass")
    program.end(_TC_ACT_UNSPEC)
    return load(program, PROG_TYPE_SCHED_CLS, "RoCE-tapping")


def _see(program: Program, otherwise: str) -> None:
    """r9 = where the frame starts, with all headers up to UDP to be read there; else go to a label."""
    program.fetch32(9, 6, _SKB_DATA)
    program.fetch32(2, 6, _SKB_DATA_END)
    program.copy(1, 9)
    program.add(1, _SHORTEST)
    program.if_beyond(1, 2, otherwise)


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
    return load(program, PROG_TYPE_SCHED_CLS, "QP-hashing")


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
