"""PFC headroom: how many bytes can still arrive on a port after it has sent PAUSE.

Formula and constants of sonic-swss ``cfgmgr/buffer_headroom_mellanox.lua`` (``buffer_headroom_vs.lua`` is a link to
it) and its ASIC table: in bytes, both directions of the cable, the peer's response time, the frame it had begun,
and the loss of small packets in cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

#: Pause quanta a peer may take to react, by speed in Mbit/s (IEEE 802.3 annex 31B); one is 512 bit times, 64 bytes.
PAUSE_QUANTA = {
    800_000: 905, 400_000: 905, 200_000: 453, 100_000: 394, 50_000: 147, 40_000: 118, 25_000: 80, 10_000: 67,
    1_000: 2, 100: 1,
}  # fmt: skip
SPEED_IN_CABLE = 198e6
CELL = 144
MAC_PHY_DELAY = 819
PIPELINE_LATENCY = 18 * 1024
SMALLEST_PACKET = 64
#: LOSSLESS_TRAFFIC_PATTERN|AZURE of buffers_config.j2.
LOSSLESS_MTU = 1024
SMALL_PACKET_PERCENTAGE = 50


@dataclass(frozen=True, slots=True)
class Headroom:
    """BUFFER_PROFILE values of a lossless priority group, in bytes, without a shared headroom pool."""

    size: int
    xon: int
    xoff: int


def headroom(speed: int, cable_m: int, mtu: int) -> Headroom:
    """Headroom of a port of ``speed`` bit/s with ``cable_m`` metres of cable and ``mtu`` bytes."""
    mbps = speed // 10**6
    on_cable = 2 * cable_m * mbps * 1e9 / SPEED_IN_CABLE / 8000
    peer_response = _quanta(mbps) * 64
    propagation = mtu + on_cable + MAC_PHY_DELAY + peer_response
    xoff = _up(LOSSLESS_MTU + propagation * _cell_occupancy())
    xon = _up(PIPELINE_LATENCY)
    return Headroom(xon + xoff, xon, xoff)


def _quanta(mbps: int) -> int:
    """Of the next listed speed upwards, since a table has gaps."""
    return PAUSE_QUANTA[min((s for s in PAUSE_QUANTA if s >= mbps), default=max(PAUSE_QUANTA))]


def _cell_occupancy() -> float:
    worst = CELL / SMALLEST_PACKET if CELL > 2 * SMALLEST_PACKET else 2 * CELL / (1 + CELL)
    mean = (SMALL_PACKET_PERCENTAGE * SMALLEST_PACKET + (100 - SMALL_PACKET_PERCENTAGE) * LOSSLESS_MTU) / 100
    by_byte = SMALL_PACKET_PERCENTAGE * SMALLEST_PACKET / mean
    return (100 - by_byte + by_byte * worst) / 100


def _up(size: float) -> int:
    """To whole KiB, as SONiC does."""
    return ceil(size / 1024) * 1024
