"""The ICRC of many frames at once: CRC-32 is linear, so a changed field changes it by a table entry per byte.

For a frame of fixed length, ``ICRC(frame with new bytes) = ICRC(frame) XOR T[distance][old ^ new]`` for each changed
byte, where ``distance`` is how many bytes follow it. Tables are exact, not an approximation.
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


@cache
def byte_table(distance: int) -> U32:
    """Shape (256,): what a byte followed by ``distance`` bytes adds to a CRC-32, by its change."""
    tail = bytes(distance)
    rest = zlib.crc32(b"\0" + tail)
    bits = [zlib.crc32(bytes([1 << bit]) + tail) ^ rest for bit in range(8)]
    table = np.zeros(256, dtype=np.uint32)
    for bit in range(8):
        table[1 << bit : 2 << bit] = table[: 1 << bit] ^ np.uint32(bits[bit])
    table.setflags(write=False)
    return table


@cache
def word_tables(distance: int) -> U32:
    """Shape (4, 256): the same for a big-endian 32-bit word with ``distance`` bytes after it, high byte first."""
    return np.stack([byte_table(distance + 3 - n) for n in range(4)])


def word_change(tables: U32, words: U32) -> U32:
    """Shape of ``words``: the change of the CRC when words of zero become ``words``."""
    change: U32 = tables[3].take(words & np.uint32(0xFF))
    change ^= tables[2].take((words >> np.uint32(8)) & np.uint32(0xFF))
    change ^= tables[1].take((words >> np.uint32(16)) & np.uint32(0xFF))
    change ^= tables[0].take(words >> np.uint32(24))
    return change


def psn_change(tables: U32, psn: U32) -> U32:
    """The same for PSNs, whose high byte is zero."""
    change: U32 = tables[3].take(psn & np.uint32(0xFF))
    change ^= tables[2].take((psn >> np.uint32(8)) & np.uint32(0xFF))
    change ^= tables[1].take(psn >> np.uint32(16))
    return change
