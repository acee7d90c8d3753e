"""Expectations of a uniform hash against the published table, and when a spread counts as unfair."""

from __future__ import annotations

import numpy as np
import pytest

from fabtest.checks.entropy import Choice, Entropy, _together, advice, expectation


@pytest.mark.parametrize(
    ("k", "n", "most", "jain"),
    [(4, 4, 2.13, 0.616), (8, 8, 2.60, 0.560), (8, 64, 1.53, 0.903), (16, 256, 1.47, 0.945), (64, 4096, 1.30, 0.985)],
)
def test_expectations(k: int, n: int, most: float, jain: float) -> None:
    """4,000 trials each, of a uniform hash (the numbers of paths and flows a fabric of GPUs has)."""
    seen, worst, index = expectation(n, k)
    assert seen == pytest.approx(most, rel=0.02)
    assert index == pytest.approx(jain, rel=0.02)
    assert worst > seen


def choice(counts: list[int]) -> Choice:
    total, k = sum(counts), len(counts)
    ports = {f"Ethernet{n}": c for n, c in enumerate(counts)}
    return Choice("leaf1", "leaf", total, ports, max(counts) * k / total, expectation(total, k)[0], 0.9, 0.9)


def test_few_flows_at_many_leaves_are_judged_together() -> None:
    rng = np.random.default_rng(3)
    values = []
    for _ in range(60):
        fair = [choice(list(map(int, rng.multinomial(32, [1 / 8] * 8)))) for _ in range(32)]
        values.append(_together(fair)[0])
    assert 0.3 < float(np.mean(values)) < 0.7, "a fair hash gives any p alike"
    assert min(values) > 1e-4
    # Eight queue pairs that share a path: each leaf alone could be chance, all together cannot.
    lumpy = [choice([8 * int(x) for x in rng.multinomial(4, [1 / 8] * 8)]) for _ in range(32)]
    p, used, paths = _together(lumpy)
    assert p < 1e-50
    assert used < paths == 256


@pytest.mark.parametrize(("flows", "paths"), [(2, 32), (3, 16), (8, 32), (4, 8), (32, 8)])
def test_a_handful_of_flows_is_not_called_unfair(flows: int, paths: int) -> None:
    """A uniform hash with few flows: as often unfair as the bound says, not more."""
    rng = np.random.default_rng(flows * paths)
    counts = rng.multinomial(flows, [1 / paths] * paths, size=400)
    values = {tuple(sorted(c)): None for c in counts.tolist()}
    p = {key: _together([choice(list(key))])[0] for key in values}
    unfair = sum(p[tuple(sorted(c))] < 2.5e-4 for c in counts.tolist())
    assert unfair <= 1
    assert _together([choice([flows * 30] + [0] * (paths - 1))])[0] < 1e-9


def test_advice() -> None:
    few = Entropy((choice([8, 4, 4, 4, 4, 4, 4, 0]),), 32, 32, 0, 32)
    assert any("4 times as many QPs" in text for text in advice(few))
    shared = Entropy((choice([32, 0, 0, 0, 0, 0, 0, 0]),), 32, 32, 0, 4)
    assert advice(shared)[0].startswith("32 QPs share 4 flows")
    plenty = Entropy((choice([128] * 8),), 1024, 1024, 0, 1024)
    assert advice(plenty) == []
