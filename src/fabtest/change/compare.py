"""What became of a fabric between two snapshots, and whether it is worse. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fabtest.change.snapshot import Snapshot, SwitchState
from fabtest.lint.run import natural

ESTABLISHED = "Established"


@dataclass(frozen=True, slots=True)
class StateChange:
    """One difference. ``kind`` is ``route``, ``ecmp``, ``session``, ``port`` or ``qos``; ``worse`` if something was
    lost: a route, a path, a session, a link, bytes of MTU, or anything that QoS had, which is gone or another now."""

    kind: str
    switch: str
    where: str
    before: str
    after: str
    worse: bool

    def __str__(self) -> str:
        return f"{self.switch}: {self.where}: {self.before or 'not there'} -> {self.after or 'not there'}"


def compare(before: Snapshot, after: Snapshot) -> list[StateChange]:
    """Every difference, what is worse first."""
    found: list[StateChange] = []
    for name in sorted({*before.switches, *after.switches}, key=natural):
        a, b = before.switches.get(name), after.switches.get(name)
        if a is None or b is None:
            found.append(
                StateChange("switch", name, "the switch", "there" if a else "", "there" if b else "", b is None)
            )
            continue
        if a.trouble != b.trouble:
            found.append(
                StateChange(
                    "switch", name, "its daemons", a.trouble or "answer", b.trouble or "answer", bool(b.trouble)
                )
            )
            continue
        found += _switch(name, a, b)
    return sorted(found, key=lambda c: not c.worse)


def _switch(name: str, a: SwitchState, b: SwitchState) -> Iterator[StateChange]:
    for prefix in {**a.routes, **b.routes}:
        paths, now_paths = a.routes.get(prefix), b.routes.get(prefix)
        if paths is None or now_paths is None:
            yield StateChange("route", name, prefix, _paths(paths), _paths(now_paths), now_paths is None)
        elif paths != now_paths:
            kind = "ecmp" if len(paths) != len(now_paths) else "route"
            yield StateChange(kind, name, prefix, _paths(paths), _paths(now_paths), len(now_paths) < len(paths))
    for peer in {**a.sessions, **b.sessions}:
        was, now = a.sessions.get(peer, ""), b.sessions.get(peer, "")
        if was != now:
            yield StateChange("session", name, f"BGP with {peer}", was, now, was == ESTABLISHED)
    for port in {**a.ports, **b.ports}:
        was, now = a.ports.get(port, ""), b.ports.get(port, "")
        if was != now:
            yield StateChange("port", name, port, was, now, _port_worse(was, now))
    yield from _qos(name, a, b)


def _paths(ports: list[str] | None) -> str:
    if ports is None:
        return ""
    return f"{len(ports)} path{'s' if len(ports) != 1 else ''} ({', '.join(sorted(ports, key=natural))})"


def _port_worse(was: str, now: str) -> bool:
    def parts(text: str) -> tuple[bool, int]:
        state, _, mtu = text.partition(", MTU ")
        return state == "up", int(mtu) if mtu.isdigit() else 0

    (up, mtu), (up_now, mtu_now) = parts(was), parts(now)
    return (up and not up_now) or mtu_now < mtu


def _qos(name: str, a: SwitchState, b: SwitchState) -> Iterator[StateChange]:
    """Places that changed alike are one difference."""
    alike: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for db in {**a.qos, **b.qos}:
        old, new = a.qos.get(db, {}), b.qos.get(db, {})
        for where in {**old, **new}:
            x, y = old.get(where, {}), new.get(where, {})
            for what in {**x, **y}:
                if x.get(what) != y.get(what):
                    alike[db, what, x.get(what, ""), y.get(what, "")].append(where)
    for (db, what, was, now), places in alike.items():
        shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        yield StateChange("qos", name, f"{db} {shown}: {what}", was, now, _qos_worse(what, was, now))


def _qos_worse(what: str, was: str, now: str) -> bool:
    """Something QoS had is gone, or has another value: whether that is better nobody but the operator can say."""
    return bool(was) or now == "missing"
