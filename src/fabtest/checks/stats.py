"""Statistics of hashing: does a spread of flows over equal paths look like chance? Pure.

A hash is judged by what chance would do. Flows over ``k`` paths are multinomial with equal shares: Pearson's
chi-square has ``k-1`` degrees of freedom, and the fullest path follows the maximum of ``k`` binomials. SONiC's own
test asks that no path is more than 25 % off the mean (sonic-mgmt ecmp/test_fgnhg.py and fib tests), which only means
something with enough flows: at 300 flows a path, 25 % are four standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: A fair hash is called unfair once in a thousand runs; a broken one (all on one path) is at 1e-200.
ALPHA = 0.001
SONIC_TOLERANCE = 0.25
FLOWS_PER_PATH = 300
MIN_FLOWS = 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """How flows spread over paths. ``worst`` is the largest deviation of a path from the mean, as a share of it."""

    counts: tuple[int, ...]
    p_value: float
    max_over_mean: float
    max_expected: float
    worst: float

    @property
    def fair(self) -> bool:
        """Whether chance explains it."""
        return self.p_value >= ALPHA and self.max_over_mean <= self.max_expected

    @property
    def within_sonic(self) -> bool:
        """Whether every path is within 25 % of the mean."""
        return self.worst <= SONIC_TOLERANCE


def flows_needed(paths: int) -> int:
    """Flows for a judgement over so many paths."""
    return max(MIN_FLOWS, FLOWS_PER_PATH * paths)


def tolerance(flows: int, paths: int, judged: int) -> float:
    """How far from the mean a path may be, as a share: SONiC's 25 %, or what chance does once in a thousand runs of
    ``judged`` spreads if that is more (many paths and few flows)."""
    from scipy import stats

    deviation = math.sqrt((1 - 1 / paths) * paths / flows) if flows else math.inf
    return max(SONIC_TOLERANCE, float(stats.norm.isf(ALPHA / (2 * paths * judged))) * deviation)


def spread(counts: Sequence[int]) -> Spread:
    """Judge flow counts per path (paths without a flow included). One path is always fair."""
    total, k = sum(counts), len(counts)
    if k < 2 or total == 0:
        return Spread(tuple(counts), 1.0 if k < 2 else 0.0, 1.0 if k < 2 else math.inf, 1.0, 0.0 if k < 2 else 1.0)
    from scipy import stats

    mean = total / k
    statistic = sum((c - mean) ** 2 for c in counts) / mean
    p_value = float(stats.chi2.sf(statistic, k - 1))
    # The fullest of k paths stays below this with probability 1 - ALPHA (union bound over k binomials).
    limit = float(stats.binom.isf(ALPHA / k, total, 1 / k))
    return Spread(tuple(counts), p_value, max(counts) / mean, limit / mean, max(abs(c - mean) for c in counts) / mean)
