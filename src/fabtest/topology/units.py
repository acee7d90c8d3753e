"""Speeds, break-out modes and names as people write them."""

from __future__ import annotations

import re

#: A host name label (RFC 1123) short enough for a network namespace, a container and a Redis key.
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
_SPEED = re.compile(r"(\d{1,5})([MGT])\Z")
_SCALE = {"M": 10**6, "G": 10**9, "T": 10**12}
_BREAKOUT = re.compile(r"([1-8])x(\d{1,4}G)\Z")

#: Electrical lanes of a port at each speed on a switch of 50 or 100 Gbit/s SerDes, as SONiC device files have them.
DEFAULT_LANES = {10: 1, 25: 1, 40: 4, 50: 2, 100: 4, 200: 4, 400: 8, 800: 8, 1600: 8}


def parse_speed(text: str) -> int:
    """``400G`` to bit/s. Raises ValueError."""
    match = _SPEED.match(text)
    if not match or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a speed: write it as 400G")
    return int(match[1]) * _SCALE[match[2]]


def format_speed(bits: int) -> str:
    """bit/s to ``400G``."""
    for letter in ("G", "M"):
        if bits % _SCALE[letter] == 0:
            return f"{bits // _SCALE[letter]}{letter}"
    return f"{bits}"


def parse_breakout(text: str) -> tuple[int, int]:
    """``2x400G`` to (2, bit/s of each). Raises ValueError."""
    match = _BREAKOUT.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a break-out mode: write it as 2x400G")
    return int(match[1]), parse_speed(match[2])


def generated_mac(kind: int, a: int, b: int) -> str:
    """A locally administered address: 02, a kind, 24 bits of a, 8 bits of b."""
    return f"02:{kind:02x}:{a >> 16 & 255:02x}:{a >> 8 & 255:02x}:{a & 255:02x}:{b & 255:02x}"
