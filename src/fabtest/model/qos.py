"""What the fabric's operator wants from queues, in the field's own terms and in bytes and per cent.

Scaling to a port's speed and the arithmetic of headroom belong to ``fabtest.sonic``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EcnCurve:
    """A WRED/ECN marking curve: no mark below ``kmin`` bytes, ``pmax`` per cent at ``kmax`` bytes, all above."""

    kmin: int
    kmax: int
    pmax: int


@dataclass(frozen=True, slots=True)
class Watchdog:
    """PFC watchdog of SONiC (table PFC_WD); times in milliseconds."""

    action: str = "drop"
    detection_ms: int = 200
    restoration_ms: int = 200
    poll_ms: int = 200


@dataclass(frozen=True, slots=True)
class QosIntent:
    """One class of RoCE traffic beside best effort and congestion notification (CNP).

    ``profile`` is the name in the topology file. ``ecn_at_100g`` is the marking curve of a 100 Gbit/s port;
    thresholds grow in proportion to speed, as the bandwidth-delay product does. ``ecn`` None: no marking.
    ``pfc_priorities`` empty: no priority is paused.
    """

    profile: str
    roce_dscp: int = 26
    roce_tc: int = 3
    cnp_dscp: int = 48
    cnp_tc: int = 6
    pfc_priorities: tuple[int, ...] = (3,)
    ecn_at_100g: EcnCurve | None = None
    roce_weight: int = 60
    best_effort_weight: int = 20
    watchdog: Watchdog | None = None
    buffer_bytes: int = 64 * 1024 * 1024
    dynamic_th: int = 0

    @property
    def lossless(self) -> bool:
        """Whether any priority is paused instead of dropped."""
        return bool(self.pfc_priorities)
