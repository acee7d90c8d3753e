"""Statistics that judge hashing, and verdicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabtest.checks.stats import flows_needed, spread, tolerance
from fabtest.checks.verdict import Finding, Outcome, judge


@pytest.mark.parametrize("paths", [2, 4, 8, 16, 64])
def test_chance_is_fair(paths: int) -> None:
    rng = np.random.default_rng(1)
    judged = [spread(rng.multinomial(flows_needed(paths), [1 / paths] * paths).tolist()) for _ in range(300)]
    assert sum(s.fair for s in judged) >= 297
    assert sum(s.within_sonic for s in judged) >= 290


@pytest.mark.parametrize("counts", [[1000, 0], [600, 400], [300, 300, 300, 100], [1200, 0, 0, 0], [290, 310, 300, 400]])
def test_bias_is_not(counts: list[int]) -> None:
    assert not spread(counts).fair


@pytest.mark.parametrize(("paths", "leaves"), [(16, 40), (32, 40), (64, 2), (64, 40)])
def test_a_fair_hash_over_many_paths_is_within_tolerance(paths: int, leaves: int) -> None:
    rng = np.random.default_rng(2)
    flows = min(0x4000, flows_needed(paths))
    alarms = 0
    for _ in range(20):
        spreads = [spread(rng.multinomial(flows, [1 / paths] * paths).tolist()) for _ in range(leaves)]
        alarms += any(s.worst > tolerance(flows, paths, leaves) for s in spreads)
    assert alarms == 0
    assert tolerance(flows_needed(2), 2, 1) == 0.25


def test_edges() -> None:
    assert spread([500]).fair
    assert not spread([0, 0]).fair
    assert spread([500, 500]).worst == 0
    assert spread([750, 250]).worst == pytest.approx(0.5)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=64))
def test_never_raises_and_p_is_a_probability(counts: list[int]) -> None:
    assert 0 <= spread(counts).p_value <= 1


def test_a_verdict_names_every_place() -> None:
    findings = [Finding(f"leaf{n}", "is wrong") for n in range(12)]
    verdict = judge("x.y", "good", findings, n=3)
    assert verdict.outcome is Outcome.FAIL
    assert len(verdict.where) == 12
    assert "and 7 more" in verdict.sentence
    assert judge("x.y", "good", []).passed
