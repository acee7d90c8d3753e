"""A change on a lab, with traffic: the fabric before, the change switch by switch, the fabric after, and a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from fabtest.change.apply import apply_switch, same_configuration
from fabtest.change.compare import StateChange, compare
from fabtest.change.configs import of_fabric
from fabtest.change.diff import ConfigDiff, Risk, config_diff
from fabtest.change.snapshot import Snapshot, take
from fabtest.checks.converge import wait_converged
from fabtest.checks.suites import STEADY, run_suites
from fabtest.checks.verdict import Outcome, Verdict
from fabtest.errors import ExecError, NotConverged, UsageError
from fabtest.model import Fabric
from fabtest.roce.send import NicAddress, nic_addresses
from fabtest.roce.stream import Path, Stream
from fabtest.runtime.base import Lab
from fabtest.sonic.config_db import render_config_db
from fabtest.sonic.routing_config import routing_form
from fabtest.topology.routing import reachable_pairs

#: Flows per pair of NICs, and seconds between two packets of a flow.
FLOWS, INTERVAL_S, FIRST_PORT = 8, 0.01, 0xC000
#: Pairs of NICs that carry traffic at most.
PAIRS = 8
WARM_UP_S = 1.0
#: Fields of PORT without an effect in a lab.
UNSEEN = frozenset({"speed", "fec", "lanes", "autoneg", "pfc_asym", "link_training"})
#: Beside BGP's own timers, the time a changed fabric is given.
SETTLE_S = 15.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One switch (or all at once) that was changed: rows changed, packets lost until the next step, the longest
    outage of a flow in milliseconds that began in it, and what FRR refused."""

    switches: tuple[str, ...]
    rows: int
    seconds: float
    lost: int
    outage_ms: float
    refused: str = ""


@dataclass(frozen=True)
class Trial:
    """All that was seen. ``reasons`` says why the change is not safe; it is if there are none."""

    diff: ConfigDiff
    before: tuple[Verdict, ...]
    after: tuple[Verdict, ...]
    steps: tuple[Step, ...]
    sent: int
    lost: int
    outage_ms: float
    bound_ms: int
    changes: tuple[StateChange, ...]
    snapshots: tuple[Snapshot, Snapshot]
    converged: str
    qos_expected: bool = False
    reasons: tuple[str, ...] = field(default=())

    @property
    def safe(self) -> bool:
        """Whether nothing got worse and traffic stood still no longer than allowed."""
        return not self.reasons


def changed_switches(before: Fabric, after: Fabric, order: Sequence[str]) -> list[str]:
    """Switches whose configuration differs, in the order given (those not named follow in the fabric's).

    Raises UsageError for a name that is no switch.
    """
    for name in order:
        if name not in before.switch:
            raise UsageError(f"there is no switch {name!r}", hint=f"switches: {', '.join(before.switch)}")
    names = [*dict.fromkeys(order), *(s.name for s in before.switches if s.name not in order)]
    return [n for n in names if not same_configuration(before, after, n)]


def check_change(before: Fabric, after: Fabric, order: Sequence[str]) -> None:
    """What can be known to be wrong before a lab is built. Raises UsageError."""
    for name in changed_switches(before, after, order):
        forms = [routing_form(render_config_db(f, f.switch[name])) for f in (before, after)]
        if forms[0] is not forms[1]:
            raise UsageError(
                f"{name}: FRR's configuration comes from {forms[0]} before and from {forms[1]} after the change",
                hint="SONiC restarts its routing container for that; bring AFTER up as a lab of its own",
            )


def run_trial(
    lab: Lab, after: Fabric, runtime: str, *, order: Sequence[str] = (), at_once: bool = False,
    pause: float = 2.0, timeout: float = 120.0, bound_ms: int | None = None, qos_expected: bool = False,
    suites: Sequence[str] = STEADY, say: Say = lambda text: None,
) -> Trial:  # fmt: skip
    """Change a lab that is up and converged to the configurations of ``after``. The lab is left changed.

    ``pause``: seconds from one switch to the next; ``bound_ms``: longest outage of a flow that is safe (default: the
    fabric's for a failure with loss of carrier); ``qos_expected``: QoS is meant to change, so only the linter and the
    suites judge it.
    """
    before = lab.fabric
    bound = before.failover.carrier_ms if bound_ms is None else bound_ms
    names = changed_switches(before, after, order)
    say("suites before the change")
    first = run_suites(lab, suites)
    old = take(lab, runtime)
    changed = lab.with_fabric(after)
    traffic = _Traffic(lab)
    steps: list[_Open] = []
    missing = ""
    traffic.start()
    try:
        time.sleep(WARM_UP_S)
        for group in [names] if at_once and names else [[n] for n in names]:
            say(f"changing {', '.join(group)}")
            steps.append(_apply(lab, after, group))
            time.sleep(pause)
        say("waiting for the fabric")
        missing = _settle(changed, timeout)
    finally:
        traffic.stop()
    say("suites after the change")
    last = run_suites(changed, suites)
    new = take(changed, runtime)
    diff = config_diff(of_fabric(before, "before"), of_fabric(after, "after"))
    done = tuple(traffic.step(s, following) for s, following in zip_longest(steps, steps[1:]))
    changes = tuple(compare(old, new))
    trial = Trial(
        diff, tuple(first), tuple(last), done, traffic.sent, traffic.lost, traffic.outage_ms, bound, changes,
        (old, new), missing, qos_expected,
    )  # fmt: skip
    return replace(trial, reasons=tuple(_reasons(trial)))


def _settle(lab: Lab, timeout: float) -> str:
    """Until the fabric is as the changed configurations design it; else what is missing.

    A session that has not come back after a hold time, a connect retry and a little will not.
    """
    bgp = lab.fabric.bgp
    try:
        wait_converged(lab, min(timeout, bgp.hold_s + bgp.connect_s + SETTLE_S))
    except NotConverged as error:
        lines = error.message.partition("\nlast lines")[0].splitlines()
        return "not as the changed configurations design it:" + ";".join(lines[1:]).replace("  ", " ")
    time.sleep(0.5)
    return ""


@dataclass(slots=True)
class _Open:
    """A step whose losses are not yet counted."""

    switches: tuple[str, ...]
    rows: int
    at: float
    refused: str


def _apply(lab: Lab, after: Fabric, names: Sequence[str]) -> _Open:
    at = time.monotonic()
    rows, refused = 0, []
    for name in names:
        try:
            rows += apply_switch(lab, name, after)
        except ExecError as error:
            refused.append(error.message)
    return _Open(tuple(names), rows, at, "; ".join(refused))


class _Traffic:
    """Streams of numbered RoCEv2 packets between NICs on different leaves, both ways."""

    def __init__(self, lab: Lab) -> None:
        self.streams = [
            Stream(lab, (Path(*ends),), range(FIRST_PORT, FIRST_PORT + FLOWS), interval=INTERVAL_S)
            for a, b in _pairs(lab)
            for ends in ((a, b), (b, a))
        ]
        self.sent = self.lost = 0
        self.outage_ms = 0.0
        self.ended = 0.0

    def start(self) -> None:
        for stream in self.streams:
            stream.start()

    def stop(self) -> None:
        self.ended = time.monotonic()
        results = [stream.stop() for stream in self.streams]
        self.sent, self.lost = sum(r.sent for r in results), sum(r.lost for r in results)
        self.outage_ms = max((r.outage_ms for r in results), default=0.0)

    def step(self, this: _Open, following: _Open | None) -> Step:
        """What was lost from one step to the next."""
        until = following.at if following else self.ended
        lost = 0
        longest = 0.0
        for stream in self.streams:
            for record in stream.records:
                run = 0
                for number, at in enumerate(record.sent):
                    if not this.at <= at < until:
                        continue
                    if number in record.arrived:
                        run = 0
                    else:
                        lost += 1
                        run += 1
                        longest = max(longest, run * stream.interval * 1000)
        return Step(this.switches, this.rows, round(until - this.at, 2), lost, longest, this.refused)


def _pairs(lab: Lab) -> list[tuple[NicAddress, NicAddress]]:
    """A NIC of each leaf with one of the next leaf it should reach; where there is none (rails without spines, a
    single leaf), with one of another server on its own."""
    family = lab.fabric.families[0]
    by_leaf: dict[str, list[NicAddress]] = {}
    for server in lab.fabric.servers:
        for n in nic_addresses(lab, server.name, family):
            by_leaf.setdefault(n.port.leaf.node, []).append(n)
    reach = reachable_pairs(lab.fabric)
    names = list(by_leaf)
    found: dict[frozenset[str], tuple[NicAddress, NicAddress]] = {}
    for i, name in enumerate(names):
        src = by_leaf[name][0]
        others = (names[(i + step) % len(names)] for step in range(1, len(names)))
        far = next((other for other in others if reach.get((name, other), False)), name)
        dst = next((n for n in by_leaf[far] if n.server != src.server), None)
        if dst is not None:
            found.setdefault(frozenset((name, far)), (src, dst))
    pairs = list(found.values())
    return pairs if len(pairs) <= PAIRS else [pairs[i * len(pairs) // PAIRS] for i in range(PAIRS)]


def _reasons(t: Trial) -> Iterator[str]:
    """Why a change is not safe."""
    for step in t.steps:
        if step.refused:
            yield f"{', '.join(step.switches)}: {step.refused}"
    if t.outage_ms > t.bound_ms and t.steps:
        worst = max(t.steps, key=lambda s: s.outage_ms)
        yield (
            f"a flow stood still for {t.outage_ms:.0f} ms while {', '.join(worst.switches)} changed "
            f"({t.bound_ms} ms allowed)"
        )
    if t.converged:
        yield t.converged
    had = {v.check: v for v in t.before}
    for v in t.after:
        was = had.get(v.check)
        if v.outcome is Outcome.FAIL and (was is None or was.outcome is not Outcome.FAIL):
            yield f"{v.check}: {v.sentence}"
    worse = [c for c in t.changes if c.worse]
    for kind, word in (
        ("switch", "switches do not answer"), ("session", "BGP sessions are lost"), ("route", "routes are lost"),
        ("ecmp", "routes have fewer paths"), ("port", "ports are down or take smaller packets"),
        ("qos", "settings of QoS are gone or others"),
    ):  # fmt: skip
        if kind == "qos" and t.qos_expected:
            continue
        alike = [c for c in worse if c.kind == kind]
        if alike:
            shown = "; ".join(str(c) for c in alike[:3]) + (f"; and {len(alike) - 3} more" if len(alike) > 3 else "")
            yield f"{len(alike)} {word}: {shown}"
    for x in t.diff.changes:
        # A lab has no line rate and no optics: what these do it cannot show.
        if x.risk is Risk.HIGH and x.where.startswith("PORT|") and x.where.rpartition("|")[2] in UNSEEN and x.before:
            yield f"{x.switch}: {x.where} is {x.after or 'not set'}, was {x.before}: a lab cannot show what that does"
        if x.where.startswith("frr.conf: ") and x.where.endswith(" bfd") and not x.after:
            yield f"{x.switch}: {x.where.removeprefix('frr.conf: ')} is gone: failures are seen later"
        if x.where.startswith(("BGP_NEIGHBOR|", "BGP_PEER_GROUP|")) and x.where.endswith("|bfd") and x.before == "true":
            yield f"{x.switch}: {x.where} is {x.after or 'not set'}: failures are seen later"
    for f in t.diff.gained:
        yield f"config-lint: {f.switch}: {f.rule} {f.where} {f.what}"
