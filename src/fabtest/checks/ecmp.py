"""Suite ``ecmp``: widths as designed, flows spread fairly, each flow on one path, rails kept local, tiers independent.

Paths are seen, not inferred: every switch records where each flow's packet came in (``fabtest.roce.trace``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from fabtest.checks.observe import Network, asic_objects, expected_now, health
from fabtest.checks.stats import ALPHA, Spread, flows_needed, spread, tolerance
from fabtest.checks.verdict import Finding, NotApplicable, Verdict, inconclusive, judge
from fabtest.model import Switch
from fabtest.roce.send import NicAddress, nic_addresses
from fabtest.roce.trace import Key, Paths, Probe, flow_key, trace, uplink_taken
from fabtest.runtime.base import Capability, Lab
from fabtest.sonic.asic import ROUTE_TYPES, route_widths
from fabtest.sonic.db import DbId
from fabtest.topology.routing import Designed, designed_routes

#: Source ports used, as NICs choose them (RoCEv2 entropy lies in 0xC000-0xFFFF).
FIRST_PORT, PORTS = 0xC000, 0x4000
#: Leaves measured at most; the rest are as like as the generator makes them.
LEAVES = 40
#: Flows per leaf at most, beyond what its own uplinks need.
MOST_FLOWS = 8000


def width(lab: Lab) -> Verdict:
    """Every BGP route of every switch has its designed next hops, all of them that lead over a session that is up
    (those that are not are the underlay suite's)."""
    designed, down = expected_now(lab)
    findings = []
    widest = 0
    count = 0
    for switch in lab.fabric.switches:
        report = health(lab, switch, designed)
        if report.trouble:
            findings.append(Finding(switch.name, report.trouble))
        findings += [Finding(switch.name, f"route {f}") for f in report.faults]
        count += report.routes
        widest = max([widest, *(len(p) for p in designed.routes[switch.name].values())])
    note = f" ({len(down)} ends of sessions are down: see underlay)" if down else ""
    return judge(
        "ecmp.width",
        f"{count} routes have their full width, up to {widest} paths{note}",
        findings,
        routes=count,
        widest=widest,
    )


def asic_width(lab: Lab) -> Verdict:
    """Next-hop groups in ASIC_DB are as wide as designed: what an ASIC would forward by."""
    if Capability.ASIC_DB not in lab.capabilities:
        raise NotApplicable("the switches of this lab have no ASIC_DB (lite nodes do not run orchagent)")
    designed, _ = expected_now(lab)
    findings = []
    count = 0
    for switch in lab.fabric.switches:
        wanted = {prefix: len(ports) for prefix, ports in designed.routes[switch.name].items()}
        have = route_widths(asic_objects(lab.node(switch.name).db(DbId.ASIC), ROUTE_TYPES))
        found, compared = asic_width_findings(switch.name, wanted, have)
        findings += found
        count += compared
    return judge("ecmp.asic-width", f"{count} routes have their full width in ASIC_DB", findings, routes=count)


def asic_width_findings(
    switch: str, wanted: Mapping[Network, int], have: Mapping[Network, int]
) -> tuple[list[Finding], int]:
    """Routes of one switch whose next-hop group is not as wide as designed, and how many were compared."""
    findings = []
    for prefix, paths in wanted.items():
        if have.get(prefix, 0) != paths:
            what = "is not programmed" if prefix not in have else f"has {have[prefix]} next hops, should have {paths}"
            findings.append(Finding(switch, f"route {prefix} {what} (ASIC_DB)"))
    return findings, len(wanted)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two NICs on different leaves, and the ports the source's leaf may use."""

    leaf: Switch
    src: NicAddress
    dst: NicAddress
    uplinks: tuple[str, ...]
    second: int


def _nics_by_leaf(lab: Lab) -> dict[str, list[NicAddress]]:
    family = lab.fabric.families[0]
    found: dict[str, list[NicAddress]] = {}
    for server in lab.fabric.servers:
        for n in nic_addresses(lab, server.name, family):
            found.setdefault(n.port.leaf.node, []).append(n)
    return found


def _ports_to(designed: Designed, switch: str, dst: NicAddress) -> tuple[str, ...]:
    address = ip_address(str(dst.address))
    for prefix, ports in designed.routes[switch].items():
        if address in prefix:
            return tuple(sorted(ports, key=lambda p: int("".join(filter(str.isdigit, p)) or 0)))
    return ()


def _pairs(lab: Lab) -> list[_Pair]:
    """For each leaf the destination that gives it, and the tier above it, the widest choice."""
    designed, _ = expected_now(lab)
    by_leaf = _nics_by_leaf(lab)
    names = list(by_leaf)
    chosen = names if len(names) <= LEAVES else [names[i * len(names) // LEAVES] for i in range(LEAVES)]
    pairs = []
    for name in chosen:
        best: _Pair | None = None
        for step in range(1, len(names)):
            other = names[(names.index(name) + step) % len(names)]
            src = by_leaf[name][0]
            dst = next((n for n in by_leaf[other] if n.server != src.server), by_leaf[other][0])
            uplinks = _ports_to(designed, name, dst)
            if len(uplinks) < 2:
                continue
            nexts = {link.other(name).node for link in lab.fabric.links_of[name] if link.end(name).port in uplinks}
            second = max(len(_ports_to(designed, n, dst)) for n in nexts)
            if best is None or (len(uplinks), second) > (len(best.uplinks), best.second):
                best = _Pair(lab.fabric.switch[name], src, dst, uplinks, second)
        if best:
            pairs.append(best)
    return pairs


def _flows(pair: _Pair) -> int:
    """Enough to judge the leaf's uplinks, and the choices behind them if that is not too much; at most every port."""
    alone, both = flows_needed(len(pair.uplinks)), flows_needed(len(pair.uplinks) * pair.second)
    return min(PORTS, max(alone, min(both, MOST_FLOWS)))


class Measurement:
    """The flows of one run of ``spread`` and ``polarisation``: sent once, judged twice."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.pairs = _pairs(lab)
        self.probes = [Probe(p.src, p.dst, range(FIRST_PORT, FIRST_PORT + _flows(p))) for p in self.pairs]
        self.paths = trace(lab, self.probes) if self.pairs else Paths()

    @property
    def flows(self) -> int:
        """Flows sent."""
        return sum(len(p.src_ports) for p in self.probes)

    def keys(self, n: int) -> list[Key]:
        """The flows of pair ``n``."""
        return [flow_key(self.probes[n], port) for port in self.probes[n].src_ports]


def _no_choice(lab: Lab, check: str) -> Verdict:
    """No leaf has two paths now: by design, or because what it needs is down."""
    designed = designed_routes(lab.fabric)
    if any(
        len(ports) > 1 for s in lab.fabric.switches for ports in designed.routes[s.name].values() if s.server_prefixes
    ):
        return inconclusive(check, "no leaf has two paths while sessions are down: see underlay")
    raise NotApplicable("no leaf has two paths to another")


def spreading(lab: Lab, measured: Measurement | None = None) -> Verdict:
    """Flows that differ only in UDP source port use all uplinks of a leaf, as evenly as chance would."""
    check = "ecmp.spread"
    measured = measured or Measurement(lab)
    if not measured.pairs:
        return _no_choice(lab, check)
    if measured.paths.overrun:
        return inconclusive(check, f"this machine lost {measured.paths.overrun} captured frames", flows=measured.flows)
    findings = []
    worst = 0.0
    lowest = 1.0
    for n, pair in enumerate(measured.pairs):
        counts: Counter[str] = Counter()
        keys = measured.keys(n)
        for key in keys:
            taken = uplink_taken(lab, measured.paths, key, pair.leaf.name)
            counts.update({taken[0].port: 1} if taken else {})
        lost = sum(not measured.paths.delivered.get(key) for key in keys)
        if lost:
            findings.append(Finding(pair.leaf.name, f"{lost} of {len(keys)} flows to {pair.dst} do not arrive"))
        strange = [p for p in counts if p not in pair.uplinks]
        result = spread([counts[p] for p in pair.uplinks])
        worst, lowest = max(worst, result.worst), min(lowest, result.p_value)
        reason = _unfair(result, pair.uplinks, len(measured.pairs))
        if strange:
            reason = f"flows leave by {', '.join(strange)}, which does not lead to {pair.dst}"
        if reason:
            findings.append(Finding(pair.leaf.name, reason))
    if lost:
        findings.append(
            Finding(measured.pairs[0].leaf.name, f"{lost} of {measured.flows} flows reached no next switch")
        )
    good = (
        f"{measured.flows} flows from {len(measured.pairs)} leaves use every uplink, the worst {worst:.0%} off the "
        f"mean (25 % allowed), chi-square p >= {lowest:.3g}"
    )
    return judge(
        check,
        good,
        findings,
        flows=measured.flows,
        leaves=len(measured.pairs),
        worst=round(worst, 4),
        p=float(f"{lowest:.3g}"),
    )


def _unfair(result: Spread, ports: tuple[str, ...], judged: int) -> str:
    """Why a spread is not one of chance; "" if it is. ``judged`` spreads share the risk of a false alarm."""
    counts = dict(zip(ports, result.counts, strict=True))
    silent = [p for p, c in counts.items() if not c]
    total = sum(result.counts)
    if silent:
        return f"{total} flows use {len(ports) - len(silent)} of {len(ports)} uplinks, none use {', '.join(silent)}"
    listed = ", ".join(f"{p} {c}" for p, c in counts.items())
    if result.p_value < ALPHA / judged:
        return f"flows spread unevenly (p = {result.p_value:.2g}): {listed}"
    allowed = tolerance(total, len(ports), judged)
    if result.worst > allowed:
        return f"a path is {result.worst:.0%} off the mean, more than {allowed:.0%}: {listed}"
    return ""


def polarisation(lab: Lab, measured: Measurement | None = None) -> Verdict:
    """What a leaf chose for a flow says nothing about what the tier above chooses (other hash seeds)."""
    check = "ecmp.polarisation"
    measured = measured or Measurement(lab)
    deep = [n for n, pair in enumerate(measured.pairs) if pair.second > 1]
    if not deep:
        raise NotApplicable("no switch above the leaves has a choice of paths")
    if measured.paths.overrun:
        return inconclusive(check, f"this machine lost {measured.paths.overrun} captured frames", flows=measured.flows)
    designed, _ = expected_now(lab)
    findings = []
    lowest = 1.0
    for n in deep:
        pair = measured.pairs[n]
        table: dict[str, Counter[str]] = {}
        for key in measured.keys(n):
            first = uplink_taken(lab, measured.paths, key, pair.leaf.name)
            if first:
                upper = lab.fabric.link_at[first[0]].other(pair.leaf.name).node
                second = uplink_taken(lab, measured.paths, key, upper)
                if second:
                    table.setdefault(first[0].port, Counter())[f"{upper}:{second[0].port}"] += 1
        if not table:
            return inconclusive(check, f"no flow from {pair.leaf.name} to {pair.dst} got past the tier above")
        for first_port, choices in table.items():
            upper = next(iter(choices)).partition(":")[0]
            ports = _ports_to(designed, upper, pair.dst)
            if len(ports) < 2:
                continue
            result = spread([choices[f"{upper}:{p}"] for p in ports])
            lowest = min(lowest, result.p_value)
            if result.p_value < ALPHA / (len(deep) * max(1, len(table))):
                used = sum(1 for c in result.counts if c)
                findings.append(Finding(
                    upper, f"flows that {pair.leaf.name} sends by {first_port} use {used} of {len(ports)} paths there "
                    f"(p = {result.p_value:.2g}): both hash alike",
                ))  # fmt: skip
    if findings and Capability.HASH_SEED not in lab.capabilities:
        return inconclusive(
            check, "this kernel has no hash seeds (Linux 6.11 has): every switch hashes alike", p=lowest
        )
    good = f"choices of the tier above are independent of the leaf's ({len(deep)} leaves, p >= {lowest:.3g})"
    return judge(check, good, findings, leaves=len(deep), p=float(f"{lowest:.3g}"))


def one_path(lab: Lab) -> Verdict:
    """All packets of a flow take the same path: no reordering."""
    pairs = _pairs(lab)[:8]
    if not pairs:
        return _no_choice(lab, "ecmp.one-path")
    probes = [Probe(p.src, p.dst, range(FIRST_PORT, FIRST_PORT + 16), repeat=40) for p in pairs]
    paths = trace(lab, probes)
    if paths.overrun:
        return inconclusive("ecmp.one-path", f"this machine lost {paths.overrun} captured frames")
    findings = []
    flows = 0
    for pair, probe in zip(pairs, probes, strict=True):
        for port in probe.src_ports:
            flows += 1
            key = flow_key(probe, port)
            seen = paths.ingress.get(key, {})
            # A flow on one path enters each switch by one port, and enters one switch per hop as often as it was sent.
            split = [s for s, ports in seen.items() if len(set(ports)) > 1 or len(ports) != probe.repeat]
            if split:
                findings.append(
                    Finding(
                        pair.leaf.name, f"the flow with source port {port} to {pair.dst} is split at {', '.join(split)}"
                    )
                )
            elif paths.delivered.get(key) != probe.repeat:
                findings.append(
                    Finding(pair.leaf.name, f"the flow with source port {port} to {pair.dst} does not arrive whole")
                )
    return judge("ecmp.one-path", f"each of {flows} flows keeps to one path over 40 packets", findings, flows=flows)


def local(lab: Lab) -> Verdict:
    """Traffic between NICs of one leaf (in a rail fabric: of one rail and unit) crosses that leaf and nothing else."""
    probes = []
    for nics in _nics_by_leaf(lab).values():
        other = next((n for n in nics if n.server != nics[0].server), None)
        if other is not None:
            probes.append(Probe(nics[0], other, range(FIRST_PORT, FIRST_PORT + 16)))
    if not probes:
        raise NotApplicable("no leaf has NICs of two servers")
    paths = trace(lab, probes)
    if paths.overrun:
        return inconclusive("ecmp.local", f"this machine lost {paths.overrun} captured frames")
    findings = []
    flows = 0
    for probe in probes:
        leaf = probe.src.port.leaf.node
        for port in probe.src_ports:
            flows += 1
            key = flow_key(probe, port)
            crossed = sorted(paths.ingress.get(key, {}))
            if crossed != [leaf] or paths.delivered.get(key) != 1:
                what = f"crosses {', '.join(crossed) or 'nothing'}" + (
                    "" if paths.delivered.get(key) else " and is lost"
                )
                findings.append(Finding(leaf, f"traffic from {probe.src} to {probe.dst} {what}"))
                break
    word = "rail" if any(s.rail for s in lab.fabric.switches) else "leaf"
    return judge(
        "ecmp.local", f"{flows} flows within a {word} cross that leaf only", findings, flows=flows, leaves=len(probes)
    )
