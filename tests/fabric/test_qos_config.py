"""Suite qos-config: what runs is what was intended, on every cabled port of every switch."""

from typing import Any

from fabtest.checks import qos_config


def test_maps(lab: Any, verdict: Any) -> None:
    verdict(qos_config.maps, lab)


def test_pfc(lab: Any, verdict: Any) -> None:
    verdict(qos_config.pfc, lab)


def test_ecn(lab: Any, verdict: Any) -> None:
    verdict(qos_config.ecn, lab)


def test_schedulers(lab: Any, verdict: Any) -> None:
    verdict(qos_config.schedulers, lab)


def test_buffers(lab: Any, verdict: Any) -> None:
    verdict(qos_config.buffers, lab)


def test_watchdog(lab: Any, verdict: Any) -> None:
    verdict(qos_config.watchdog, lab)


def test_asic(lab: Any, verdict: Any) -> None:
    verdict(qos_config.asic, lab)
