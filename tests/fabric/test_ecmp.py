"""Suite ecmp: widths, spreading, one path per flow, local rails, independent tiers."""

from typing import Any

import pytest

from fabtest.checks import ecmp


@pytest.fixture(scope="module")
def measured(lab: Any) -> ecmp.Measurement:
    """Flows of every leaf, sent once (when first asked for) and judged by two tests."""
    return ecmp.Measurement(lab)


def test_width(lab: Any, verdict: Any) -> None:
    verdict(ecmp.width, lab)


def test_asic_width(lab: Any, verdict: Any) -> None:
    verdict(ecmp.asic_width, lab)


def test_spread(lab: Any, verdict: Any, measured: ecmp.Measurement) -> None:
    verdict(ecmp.spreading, lab, measured)


def test_polarisation(lab: Any, verdict: Any, measured: ecmp.Measurement) -> None:
    verdict(ecmp.polarisation, lab, measured)


def test_one_path(lab: Any, verdict: Any) -> None:
    verdict(ecmp.one_path, lab)


def test_local(lab: Any, verdict: Any) -> None:
    verdict(ecmp.local, lab)
