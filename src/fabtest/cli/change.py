"""config-diff, lab-snapshot, lab-verify, change-test."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from fabtest.cli.common import JSON, LAB, err, fabtest_task, out, print_json, print_table, the_lab
from fabtest.cli.stages import Stages
from fabtest.errors import LabError, UsageError

if TYPE_CHECKING:
    from fabtest.change.compare import StateChange
    from fabtest.change.diff import ConfigDiff
    from fabtest.change.trial import Trial
    from fabtest.lint.run import Finding

SIDE = "a folder of configurations, a topology (file or shipped name), or the name of a running lab"
SHOWN = 40


@fabtest_task(positional=["before", "after"], help={"before": SIDE, "after": SIDE, "json": JSON})
def config_diff(c: Any, before: str, after: str, json: bool = False) -> None:
    """What two sets of configurations do differently, the riskiest first: config-diff A B.

    QoS is compared by its effect on each port, FRR by statement; below that, what the linter finds in one and not in
    the other. Exit code 0: no difference; 1: some.
    """
    from fabtest.change.configs import configs_of
    from fabtest.change.diff import config_diff as compared

    diff = compared(configs_of(before), configs_of(after))
    if json:
        print_json(diff_json(diff))
    else:
        _show_diff(diff)
    if diff.changes:
        raise Exit(code=1)


def diff_json(diff: ConfigDiff) -> dict[str, Any]:
    """For ``--json``; keys are part of the interface."""
    return {
        "changes": [
            {"risk": x.risk.name.lower(), "switch": x.switch, "where": x.where, "before": x.before, "after": x.after}
            for x in diff.changes
        ],
        "lint": {"gained": [_finding(f) for f in diff.gained], "lost": [_finding(f) for f in diff.lost]},
    }


def _finding(f: Finding) -> dict[str, str]:
    return {"switch": f.switch, "rule": f.rule, "severity": f.severity.name.lower(), "where": f.where, "what": f.what}


def _show_diff(diff: ConfigDiff) -> None:
    if not diff.changes:
        out.print("no difference")
        return
    rows = [[x.risk.name.lower(), x.switch, x.where, x.before or "-", x.after or "-"] for x in diff.changes]
    print_table(["RISK", "SWITCH", "WHERE", "BEFORE", "AFTER"], rows)
    for word, found in (("now found", diff.gained), ("no longer found", diff.lost)):
        if found:
            out.print(f"\n{word} by config-lint:")
            for f in found:
                out.print(f"  {f.switch}: {f.severity.name.lower()} {f.rule}: {f.where} {f.what}")


@fabtest_task(help={"lab": LAB, "out": "file to write; default <lab>.snapshot.json"})
def lab_snapshot(c: Any, lab: str = "", out: str = "") -> None:
    """Keep the state of a lab: routes with their next hops, sessions, ports, QoS in every database."""
    from fabtest.change.snapshot import take, write
    from fabtest.runtime.labs import runtime_of

    live = the_lab(lab)
    snapshot = take(live, runtime_of(live.name).name)
    troubled = [name for name, state in snapshot.switches.items() if state.trouble]
    if troubled:
        raise LabError(
            f"{troubled[0]} does not answer: {snapshot.switches[troubled[0]].trouble}",
            hint="a golden state needs every switch; see `lab-status`",
        )
    target = Path(out or f"{live.name}.snapshot.json")
    write(snapshot, target)
    routes = sum(len(s.routes) for s in snapshot.switches.values())
    print(f"{target}: {len(snapshot.switches)} switches, {routes} routes")


@fabtest_task(positional=["snapshot"], help={"snapshot": "a file of `lab-snapshot`", "lab": LAB, "json": JSON})
def lab_verify(c: Any, snapshot: str, lab: str = "", json: bool = False) -> None:
    """Compare a lab with a state that was kept: lab-verify FILE. Exit code 0: the same; 1: something differs."""
    from fabtest.change.compare import compare
    from fabtest.change.snapshot import read, take
    from fabtest.runtime.labs import runtime_of

    golden = read(Path(snapshot))
    live = the_lab(lab)
    changes = compare(golden, take(live, runtime_of(live.name).name))
    if json:
        print_json({
            "lab": live.name, "snapshot": snapshot, "taken": golden.at, "same": not changes,
            "changes": [change_json(x) for x in changes],
        })  # fmt: skip
    elif changes:
        _show_changes(changes)
    else:
        out.print(f"lab {live.name} is as it was at {golden.at}: {len(golden.switches)} switches")
    if changes:
        raise Exit(code=1)


def change_json(x: StateChange) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "kind": x.kind, "switch": x.switch, "where": x.where, "before": x.before, "after": x.after, "worse": x.worse
    }  # fmt: skip


def _show_changes(changes: list[StateChange]) -> None:
    rows = [
        ["worse" if x.worse else "", x.kind, x.switch, x.where, x.before or "-", x.after or "-"]
        for x in changes[:SHOWN]
    ]
    print_table(["", "KIND", "SWITCH", "WHERE", "BEFORE", "AFTER"], rows)
    if len(changes) > SHOWN:
        err.print(f"and {len(changes) - SHOWN} more (--json has them all)")


@fabtest_task(
    positional=["before", "after"],
    help={
        "before": "the fabric as it is: a topology (file or shipped name), or a folder of configurations",
        "after": "the same fabric with other configurations: a folder, or a topology of the same cables",
        "order": "switches in the order they are to be changed, with commas; others follow in the fabric's order",
        "at-once": "change all switches at once, not one after another",
        "pause": "seconds from one switch to the next",
        "timeout": "seconds to wait for convergence, before and after",
        "expect-qos": "QoS is meant to change: judge it by config-lint and the suites only, not by being different",
        "failover": "run the failover suite too, before and after (half a minute each)",
        "outage": "longest outage of a flow, in milliseconds, that is safe; default: the fabric's failover bound",
        "name": "name of the lab; default: the fabric's",
        "runtime": "netns or containerlab, as in lab-up",
        "keep": "leave the changed lab up",
        "json": JSON,
    },
)
def change_test(
    c: Any,
    before: str,
    after: str,
    order: str = "",
    at_once: bool = False,
    pause: float = 2.0,
    timeout: float = 120.0,
    expect_qos: bool = False,
    failover: bool = False,
    outage: int = 0,
    name: str = "",
    runtime: str = "",
    keep: bool = False,
    json: bool = False,
) -> None:
    """Try a change on a lab, with RoCE traffic running, and say whether it is safe: change-test BEFORE AFTER.

    Brings BEFORE up and runs the suites; changes switch by switch to AFTER; runs the suites again, and compares.
    Exit code 0: safe; 1: not safe; 6: BEFORE did not converge.
    """
    from fabtest.change.configs import changed_fabric
    from fabtest.change.trial import check_change, run_trial
    from fabtest.checks.converge import wait_converged
    from fabtest.checks.suites import STEADY, SUITES
    from fabtest.importer.load import fabric_of
    from fabtest.runtime.labs import chosen
    from fabtest.runtime.namespaces import require_root
    from fabtest.runtime.state import LabFolder

    require_root()
    if outage < 0 or pause < 0 or timeout <= 0:
        raise UsageError("--outage, --pause and --timeout are not negative")
    fabric, source = fabric_of(before)
    changed, changed_source = changed_fabric(fabric, after)
    wanted = [n for n in order.split(",") if n]
    check_change(fabric, changed, wanted)
    labs = chosen(runtime, fabric.emulation.runtime)
    lab_name = name or fabric.name
    start = time.monotonic()
    with LabFolder(lab_name).lock():
        with Stages() as stages:
            lab = labs.deploy(fabric, source, lab_name, stages.begin)
            try:
                stages.begin("converge", 0, len(fabric.switches))
                wait_converged(lab, timeout, lambda done, total: stages.begin("converge", done, total))
            except BaseException:
                labs.destroy(lab_name)
                raise
        try:
            trial = run_trial(
                lab, changed, labs.name, order=wanted, at_once=at_once, pause=pause,
                timeout=timeout, bound_ms=outage or None, qos_expected=expect_qos,
                suites=SUITES if failover else STEADY,
                say=lambda text: err.print(text, style="dim"),
            )  # fmt: skip
        finally:
            if not keep:
                labs.destroy(lab_name)
            else:
                LabFolder(lab_name).keep(changed, changed_source)
    seconds = round(time.monotonic() - start, 1)
    if json:
        print_json(trial_json(trial, lab_name, seconds))
    else:
        _show_trial(trial)
        out.print(f"\n{'safe' if trial.safe else 'NOT SAFE'} (in {seconds} s)")
        for reason in trial.reasons:
            out.print(f"  {reason}")
    if not trial.safe:
        raise Exit(code=1)


def trial_json(t: Trial, lab: str, seconds: float) -> dict[str, Any]:
    """For ``--json``; keys are part of the interface."""
    return {
        "lab": lab,
        "safe": t.safe,
        "reasons": list(t.reasons),
        "seconds": seconds,
        "diff": diff_json(t.diff),
        "steps": [
            {
                "switches": list(s.switches), "rows": s.rows, "seconds": s.seconds, "lost": s.lost,
                "outage_ms": round(s.outage_ms), "refused": s.refused,
            }
            for s in t.steps
        ],
        "traffic": {"sent": t.sent, "lost": t.lost, "outage_ms": round(t.outage_ms), "bound_ms": t.bound_ms},
        "suites": {"before": [v.as_json() for v in t.before], "after": [v.as_json() for v in t.after]},
        "state": [change_json(x) for x in t.changes],
    }  # fmt: skip


def _show_trial(t: Trial) -> None:
    if not t.steps:
        out.print("the configurations are the same; nothing was changed")
    else:
        rows = [
            [", ".join(s.switches), str(s.rows), f"{s.lost}", f"{s.outage_ms:.0f} ms", s.refused or "-"]
            for s in t.steps
        ]
        print_table(["CHANGED", "ROWS", "LOST", "LONGEST OUTAGE", "REFUSED"], rows)
    out.print(f"traffic: {t.lost} of {t.sent} packets lost, at most {t.outage_ms:.0f} ms of a flow\n")
    rows = []
    after = {v.check: v for v in t.after}
    for name in dict.fromkeys([*(v.check for v in t.before), *after]):
        was = next((str(v.outcome) for v in t.before if v.check == name), "-")
        rows.append([name, was, str(after[name].outcome) if name in after else "-"])
    for word, value in _figures(t):
        rows.append([word, *value])
    print_table(["", "BEFORE", "AFTER"], rows)
    if t.changes:
        out.print()
        _show_changes(list(t.changes))


def _figures(t: Trial) -> list[tuple[str, tuple[str, str]]]:
    """Routes, widths, sessions, MTU: side by side."""
    sides = []
    for snapshot in t.snapshots:
        states = snapshot.switches.values()
        widths = sorted(len(ports) for s in states for ports in s.routes.values())
        sides.append((
            str(sum(len(s.routes) for s in states)),
            f"{widths[0]}-{widths[-1]}" if widths else "-",
            f"{sum(x == 'Established' for s in states for x in s.sessions.values())}"
            f"/{sum(len(s.sessions) for s in states)}",
            f"{sum(p.startswith('up') for s in states for p in s.ports.values())}"
            f"/{sum(len(s.ports) for s in states)}",
        ))  # fmt: skip
    words = ("routes", "ECMP width", "BGP sessions up", "ports up")
    return [(word, (a, b)) for word, a, b in zip(words, *sides, strict=True)]
