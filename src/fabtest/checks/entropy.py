"""How a workload's queue pairs spread over the fabric: entropy, seen and expected, and what would help.

One packet of every queue pair is sent ahead, and each switch records where it came in: flows are counted, not packets.
A workload has few flows per leaf, so spreads are judged together: the chi-squares of all leaves add up, and so do
their degrees of freedom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fabtest.checks.observe import expected_now
from fabtest.checks.stats import ALPHA
from fabtest.checks.verdict import Finding, NotApplicable, Verdict, inconclusive, judge
from fabtest.model import Tier
from fabtest.roce.frames import Flow
from fabtest.roce.trace import QpProbe, trace_qps
from fabtest.roce.transport import Verb
from fabtest.runtime.base import Lab
from fabtest.workload.compile import Compiled

#: Trials of the uniform hash that expectations are drawn from, with a fixed seed.
TRIALS = 2000
#: Flows a path should have for chance to be fair: at 16 the fullest of 8 paths has 1.37 times the mean.
GOOD_FLOWS_PER_PATH = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """A switch with several ways to go, and the flows that left by each. Jain's index is 1 for an even spread.

    ``expected_max`` and ``expected_jain`` are those of a uniform hash with as many flows and paths.
    """

    switch: str
    tier: str
    flows: int
    ports: dict[str, int]
    max_over_mean: float
    expected_max: float
    jain: float
    expected_jain: float

    @property
    def slowest(self) -> float:
        """The share of its fair rate the slowest flow gets when all send at once: that on the fullest path."""
        return 1 / self.max_over_mean if self.max_over_mean else 1.0

    def sentence(self) -> str:
        """For people."""
        return (
            f"{self.flows} QPs over {len(self.ports)} uplinks: expected max/mean {self.expected_max:.2f}, seen "
            f"{self.max_over_mean:.2f}, slowest flow at {self.slowest:.0%}"
        )


def expectation(flows: int, paths: int) -> tuple[float, float, float]:
    """(mean max/mean, its 99.9th percentile, mean Jain index) of ``flows`` thrown on ``paths`` at random."""
    rng = np.random.default_rng(flows * 1009 + paths)
    counts = rng.multinomial(flows, np.full(paths, 1 / paths), size=TRIALS)
    mean = flows / paths
    most = counts.max(axis=1) / mean
    jain = flows**2 / (paths * (counts.astype(float) ** 2).sum(axis=1))
    return float(most.mean()), float(np.quantile(most, 0.999)), float(jain.mean())


@dataclass(frozen=True, slots=True)
class Entropy:
    """All choices of a workload, per tier, and how many of its queue pairs crossed one."""

    choices: tuple[Choice, ...]
    qps: int
    arrived: int
    overrun: int
    source_ports: int
    qp_hash: bool = False

    def as_json(self) -> list[dict[str, Any]]:
        """For ``--json``."""
        return [{**asdict(c), "slowest": round(c.slowest, 4)} for c in self.choices]


def measure_entropy(lab: Lab, compiled: Compiled) -> Entropy:
    """Send a packet of each queue pair and see where it goes."""
    probes = []
    # The data of a READ comes back: it is the responder's packets that fill the links.
    reads = {m.pair for m in compiled.messages if m.verb is Verb.READ}
    reads |= {stream.pair for stream in compiled.streams if stream.verb is Verb.READ}
    for pair in compiled.pairs:
        end = pair.responder if pair.number in reads else pair.requester
        path = end.paths[end.pair % len(end.paths)]
        interface = lab.node(end.server).interface(path.interface)
        flow = Flow(path.src, path.dst, end.src_port, end.peer_qpn, compiled.transport.dscp)
        probes.append(QpProbe(end.server, interface, path.src_mac, path.dst_mac, flow, end.peer))
    ingress, arrived, overrun = trace_qps(lab, probes)
    designed, _ = expected_now(lab)
    # A switch may have other ways to one destination than to another: each set of ways is a choice of its own.
    taken: dict[tuple[str, frozenset[str]], Counter[str]] = {}
    for n, seen in ingress.items():
        dst = probes[n].flow.dst
        for switch in seen:
            ways = next((p for prefix, p in designed.routes[switch].items() if dst in prefix), frozenset())
            if len(ways) < 2:
                continue
            for link in lab.fabric.links_of[switch]:
                far, port = link.other(switch), link.end(switch).port
                if far.port in seen.get(far.node, []) and port in ways:
                    taken.setdefault((switch, ways), Counter())[port] += 1
    choices = []
    order = {s.name: n for n, s in enumerate(lab.fabric.switches)}
    for (name, ways), counts in sorted(taken.items(), key=lambda item: (order[item[0][0]], sorted(item[0][1]))):
        tier = Tier(lab.fabric.switch[name].tier).name.lower()
        spread = {p: counts.get(p, 0) for p in sorted(ways, key=_number)}
        total, k = sum(spread.values()), len(spread)
        most, _, jain = expectation(total, k)
        choices.append(Choice(
            name, tier, total, spread, round(max(spread.values()) * k / total, 4), round(most, 4),
            round(total**2 / (k * sum(c * c for c in spread.values())), 4), round(jain, 4),
        ))  # fmt: skip
    sources = len({(p.flow.src, p.flow.dst, p.flow.src_port) for p in probes})
    return Entropy(tuple(choices), len(probes), arrived, overrun, sources, lab.fabric.qp_hash)


def _number(port: str) -> int:
    return int("".join(filter(str.isdigit, port)) or 0)


def workload_spread(lab: Lab, compiled: Compiled, measured: Entropy | None = None) -> Verdict:
    """Check ``ecmp.workload``: the workload's queue pairs spread over equal paths as chance would have it."""
    check = "ecmp.workload"
    if not compiled.pairs:
        raise NotApplicable("the workload has no queue pairs")
    entropy = measured or measure_entropy(lab, compiled)
    if entropy.overrun:
        return inconclusive(check, f"this machine lost {entropy.overrun} captured frames", qps=entropy.qps)
    if entropy.arrived < entropy.qps:
        finding = Finding("fabric", f"{entropy.qps - entropy.arrived} of {entropy.qps} queue pairs do not get through")
        return judge(check, "", [finding], qps=entropy.qps, arrived=entropy.arrived)
    if not entropy.choices:
        raise NotApplicable("no queue pair of the workload has a choice of paths")
    findings = []
    numbers: dict[str, float | int] = {"qps": entropy.qps, "source_ports": entropy.source_ports}
    sentences = []
    for tier in dict.fromkeys(c.tier for c in entropy.choices):
        mine = [c for c in entropy.choices if c.tier == tier]
        p, used, paths = _together(mine)
        where = f"{len({c.switch for c in mine})} {_plural(tier)}"
        worst = max(mine, key=lambda c: c.max_over_mean / c.expected_max)
        numbers |= {f"{tier}_p": float(f"{p:.3g}"), f"{tier}_max_over_mean": worst.max_over_mean}
        sentences.append(f"{sum(c.flows for c in mine)} flows at {where} (p = {p:.2g}; {worst.sentence()})")
        if p < ALPHA / 4:
            silent = f", {used} of {paths} ways used" if used < paths else ""
            findings.append(Finding(
                worst.switch, f"flows spread unevenly over the uplinks of {where} (p = {p:.2g}"
                f"{silent}): {worst.sentence()}; {_why(lab, entropy)}",
            ))  # fmt: skip
    return judge(check, "; ".join(sentences), findings, **numbers)


def _together(choices: Sequence[Choice]) -> tuple[float, int, int]:
    """(p of the summed chi-squares, paths used, paths). With few flows per path the sum over many switches is still
    close to its distribution; where it is not (less than one flow per path), a uniform hash is drawn instead."""
    from scipy import stats

    def statistic(counts: np.ndarray[Any, np.dtype[Any]], flows: int, k: int) -> Any:
        return ((counts - flows / k) ** 2).sum(axis=-1) * k / flows

    seen, freedom, rare = 0.0, 0, False
    for c in choices:
        seen += float(statistic(np.array(list(c.ports.values())), c.flows, len(c.ports)))
        freedom += len(c.ports) - 1
        rare |= c.flows < 5 * len(c.ports)
    used = sum(1 for c in choices for n in c.ports.values() if n)
    paths = sum(len(c.ports) for c in choices)
    p = float(stats.chi2.sf(seen, freedom))
    if rare:
        rng = np.random.default_rng(4791)
        total = np.zeros(TRIALS)
        for c in choices:
            k = len(c.ports)
            total += statistic(rng.multinomial(c.flows, np.full(k, 1 / k), size=TRIALS), c.flows, k)
        # The drawn distribution's mean and variance, in the shape of a chi-square, reach further than its samples.
        mean, variance = float(total.mean()), float(total.var())
        if variance > 0:
            scale = variance / (2 * mean)
            # ... but less far than chance does with a handful of flows: what was drawn is never called impossible.
            p = max(float(stats.chi2.sf(seen / scale, mean / scale)), float((total >= seen).mean()))
    return p, used, paths


def _why(lab: Lab, entropy: Entropy) -> str:
    """What most likely is wrong, from what is configured."""
    fields = set(lab.fabric.switches[0].hash.fields)
    config = _hash_fields(lab, entropy.choices[0].switch)
    if config is not None:
        fields = config
    pairs = entropy.qps
    if not fields & {"L4_SRC_PORT", "L4_DST_PORT"} and not lab.fabric.qp_hash:
        return (
            "switches hash addresses only (SWITCH_HASH has no L4_SRC_PORT), so all queue pairs of two NICs share a path"
        )
    if entropy.source_ports < pairs and not lab.fabric.qp_hash:
        return (
            f"{pairs} queue pairs have {entropy.source_ports} different source ports and addresses: give each its own "
            "port (`source_port: per-qp`), or hash on the queue pair (`emulation: qp_hash`)"
        )
    seeds = {s.hash.seed for s in lab.fabric.switches}
    if len(seeds) == 1 and len(lab.fabric.switches) > 1:
        return "all switches hash with the same seed: tiers polarise"
    return "the hash is not uniform for these flows"


def _hash_fields(lab: Lab, switch: str) -> set[str] | None:
    from fabtest.sonic.db import DbId

    try:
        value = lab.node(switch).db(DbId.CONFIG).hget("SWITCH_HASH|GLOBAL", "ecmp_hash@")
    except Exception:  # a switch that is off: what was designed stands
        return None
    return set(str(value).split(",")) if value else None


def _plural(tier: str) -> str:
    return {"leaf": "leaves", "spine": "spines", "superspine": "super-spines"}.get(tier, tier)


def advice(entropy: Entropy) -> list[str]:
    """What would make the spread better, in order of effect."""
    leaves = [c for c in entropy.choices if c.tier == "leaf"] or list(entropy.choices)
    if not leaves:
        return []
    found = []
    if entropy.source_ports < entropy.qps and not entropy.qp_hash:
        found.append(
            f"{entropy.qps} QPs share {entropy.source_ports} flows: set a source port per QP, or hash on the QP"
        )
    flows, paths = min(((c.flows, len(c.ports)) for c in leaves), key=lambda x: x[0] / x[1])
    if flows < GOOD_FLOWS_PER_PATH * paths:
        factor = -(-GOOD_FLOWS_PER_PATH * paths // max(1, flows))
        better = expectation(flows * factor, paths)[0]
        found.append(
            f"{flows} flows over {paths} uplinks are few: with {factor} times as many QPs the fullest uplink would "
            f"have {better:.2f} times the mean"
        )
    return found
