"""The suites as functions: what ``lab-test`` runs through pytest, for code that wants the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fabtest.checks.verdict import NotApplicable, Verdict
from fabtest.runtime.base import Lab

if TYPE_CHECKING:
    from fabtest.checks.ecmp import Measurement

Check = Callable[[Lab], Verdict]


def _checks(lab: Lab) -> dict[str, tuple[Check, ...]]:
    """Suite -> its checks, in the order of the suite's file. Flows are sent once for the two checks that share them."""
    from fabtest.checks import ecmp, failover, qos_config, underlay  # with numpy and scipy: not for the names alone

    measured: list[Measurement] = []

    def once(check: Callable[[Lab, Measurement], Verdict]) -> Check:
        def run(lab: Lab) -> Verdict:
            if not measured:
                measured.append(ecmp.Measurement(lab))
            return check(lab, measured[0])

        return run

    return {
        "underlay": (
            underlay.links_up, underlay.cabling, underlay.sessions, underlay.routes, underlay.mtu,
            *(partial(underlay.reachability, family=family) for family in lab.fabric.families),
        ),
        "ecmp": (
            ecmp.width, ecmp.asic_width, once(ecmp.spreading), once(ecmp.polarisation), ecmp.one_path, ecmp.local,
        ),
        "qos-config": (
            qos_config.maps, qos_config.pfc, qos_config.ecn, qos_config.schedulers, qos_config.buffers,
            qos_config.watchdog, qos_config.asic,
        ),
        "failover": (
            failover.link_carrier, failover.link_silent, failover.spine, failover.server_link, failover.plane,
            failover.transport,
        ),
    }  # fmt: skip


SUITES = ("underlay", "ecmp", "qos-config", "failover")
#: Those that break nothing.
STEADY = SUITES[:3]


def run_suites(lab: Lab, suites: Sequence[str] = SUITES) -> list[Verdict]:
    """Verdicts of the checks of some suites; what does not apply to the fabric is left out."""
    return list(_verdicts(lab, suites))


def _verdicts(lab: Lab, suites: Sequence[str]) -> Iterator[Verdict]:
    checks = _checks(lab)
    for suite in suites:
        for check in checks[suite]:
            try:
                yield check(lab)
            except NotApplicable:
                continue
