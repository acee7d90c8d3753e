"""Suite failover: break it under traffic, measure, mend it."""

from typing import Any

from fabtest.checks import failover


def test_link_carrier(lab: Any, verdict: Any) -> None:
    verdict(failover.link_carrier, lab)


def test_link_silent(lab: Any, verdict: Any) -> None:
    verdict(failover.link_silent, lab)


def test_spine(lab: Any, verdict: Any) -> None:
    verdict(failover.spine, lab)


def test_server_link(lab: Any, verdict: Any) -> None:
    verdict(failover.server_link, lab)


def test_plane(lab: Any, verdict: Any) -> None:
    verdict(failover.plane, lab)


def test_transport(lab: Any, verdict: Any) -> None:
    verdict(failover.transport, lab)
