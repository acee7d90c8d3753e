"""Suite underlay: cables, MTU, reachability, sessions, routes."""

from typing import Any

import pytest

from fabtest.checks import underlay


def test_links(lab: Any, verdict: Any) -> None:
    verdict(underlay.links_up, lab)


def test_cabling(lab: Any, verdict: Any) -> None:
    verdict(underlay.cabling, lab)


def test_sessions(lab: Any, verdict: Any) -> None:
    verdict(underlay.sessions, lab)


def test_routes(lab: Any, verdict: Any) -> None:
    verdict(underlay.routes, lab)


def test_mtu(lab: Any, verdict: Any) -> None:
    verdict(underlay.mtu, lab)


@pytest.mark.parametrize("family", [4, 6])
def test_reachability(lab: Any, verdict: Any, family: int) -> None:
    if family not in lab.fabric.families:
        pytest.skip(f"not applicable: the fabric has no IPv{family}")
    verdict(underlay.reachability, lab, family)
