"""Sizes, times and rates as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB)?\Z")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min)\Z")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(bps|kbps|Mbps|Gbps|pps|kpps)\Z")
_BYTES = {None: 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_BITS = {"bps": 1, "kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9}


def parse_size(text: str | int) -> int:
    """``4MB`` or a number to bytes. Raises ValueError."""
    match = _SIZE.match(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a size: write it as 64KB, 4MB or 1GiB")
    return int(min(float(match[1]), 1e18) * _BYTES[match[2]])


def parse_time(text: str) -> int:
    """``10ms`` to nanoseconds. Raises ValueError."""
    match = _TIME.match(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a time: write it as 500us, 10ms or 2s")
    return int(min(float(match[1]), 1e18) * _NS[match[2]])


def parse_rate(text: str, packet: int) -> float:
    """``2Gbps``, or ``10kpps`` of packets of so many bytes, to bit/s. Raises ValueError."""
    match = _RATE.match(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a rate: write it as 500Mbps, 2Gbps or 10kpps")
    if match[2].endswith("pps") and not match[2].endswith("bps"):
        return float(match[1]) * (1000 if match[2] == "kpps" else 1) * packet * 8
    return float(match[1]) * _BITS[match[2]]


def format_size(count: float) -> str:
    """Bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} B"


def format_rate(bits: float) -> str:
    """bit/s for people."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}"
    return f"{bits:.0f} bit/s"
