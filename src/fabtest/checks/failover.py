"""Suite ``failover``: break something under a steady stream of numbered packets, measure, mend, see full width again.

The bound of an outage is the topology's: ``failover.carrier_loss`` where a port sees its carrier go; where frames are
lost silently, the time BGP (hold time) or BFD (interval x multiplier) needs to notice, plus ``failover.silent_loss``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fabtest.checks.converge import not_as_designed, wait_converged
from fabtest.checks.ecmp import FIRST_PORT
from fabtest.checks.observe import health, link_health
from fabtest.checks.verdict import Finding, NotApplicable, Verdict, inconclusive, judge
from fabtest.errors import FabtestError, NotConverged, TrafficError
from fabtest.model import Endpoint, Fabric, Link, Tier
from fabtest.roce.send import NicAddress, nic_addresses
from fabtest.roce.stream import Path, Stream, StreamResult, together
from fabtest.roce.trace import Probe, flow_key, trace, uplink_taken
from fabtest.runtime.base import Fault, Lab
from fabtest.topology.routing import designed_routes
from fabtest.workload.compile import compile_streams
from fabtest.workload.run import real_macs, run_workload
from fabtest.workload.schema import PointToPoint, TransportOptions, WorkloadSpec

FLOWS = 32
INTERVAL_S = 0.01
WARM_UP_S = 0.5
#: How long the stream goes on after the bound of an outage has passed, and after a repair.
MARGIN_S = 1.0
#: Messages of the transport's check in bytes, one per queue pair and interval, and its retransmission timer.
RC_MESSAGE = 4096
RC_TIMEOUT_MS = 200


@dataclass(frozen=True, slots=True)
class _Target:
    """A pair of NICs, and a link between switches that some of their flows cross."""

    path: Path
    link: Link


def detection_ms(fabric: Fabric) -> int:
    """How long a silent failure may go unnoticed: BFD's detection time, or BGP's hold time without BFD."""
    return fabric.bgp.bfd_interval_ms * fabric.bgp.bfd_multiplier if fabric.bgp.bfd else fabric.bgp.hold_s * 1000


def repair_s(fabric: Fabric) -> float:
    """How long mending may take to restore every path: two connect retries and a hold time."""
    return 20.0 + 2 * fabric.bgp.connect_s + fabric.bgp.hold_s


def link_carrier(lab: Lab) -> Verdict:
    """A cable between a leaf and a spine is cut; both ends see it."""
    if trouble := _trouble(lab):
        return _undecided("failover.link-carrier", trouble)
    target = _target(lab)
    a, b = str(target.link.a), str(target.link.b)
    return _measure(
        lab, "failover.link-carrier", target.path, f"cutting {target.link}", lab.fabric.failover.carrier_ms,
        lambda: lab.fail_link(a, b, Fault.CARRIER), lambda: lab.repair_link(a, b),
    )  # fmt: skip


def link_silent(lab: Lab) -> Verdict:
    """A cable between a leaf and a spine loses every frame, and carrier stays."""
    if trouble := _trouble(lab):
        return _undecided("failover.link-silent", trouble)
    target = _target(lab)
    a, b = str(target.link.a), str(target.link.b)
    bound = detection_ms(lab.fabric) + lab.fabric.failover.silent_extra_ms
    return _measure(
        lab, "failover.link-silent", target.path, f"silencing {target.link}", bound,
        lambda: lab.fail_link(a, b, Fault.SILENT), lambda: lab.repair_link(a, b),
    )  # fmt: skip


def spine(lab: Lab) -> Verdict:
    """A spine loses power."""
    if trouble := _trouble(lab):
        return _undecided("failover.spine", trouble)
    target = _target(lab)
    name = target.link.b.node
    return _measure(
        lab, "failover.spine", target.path, f"powering {name} off", lab.fabric.failover.carrier_ms,
        lambda: lab.stop_node(name), lambda: lab.start_node(name),
    )  # fmt: skip


def server_link(lab: Lab) -> Verdict:
    """A server's cable is cut: with one plane its NIC is cut off and nothing else is; with two, the other plane
    carries it on. Traffic is back once the cable is."""
    fabric = lab.fabric
    if len(fabric.planes) > 1:
        paths = _plane_paths(lab)
        end = paths[0].dst
        a, b = f"{end.server}:{end.port.name}", str(end.port.leaf)
        return _measure(
            lab, "failover.server-link", paths, f"cutting {a} -- {b}", fabric.failover.carrier_ms,
            lambda: lab.fail_link(a, b, Fault.CARRIER), lambda: lab.repair_link(a, b),
        )  # fmt: skip
    return _isolated_nic(lab)


def plane(lab: Lab) -> Verdict:
    """Every switch of a plane loses power: the other plane carries all flows on."""
    fabric = lab.fabric
    if len(fabric.planes) < 2:
        raise NotApplicable("the fabric has one plane")
    first = fabric.planes[0]
    names = [s.name for s in fabric.switches if s.plane == first]

    def fail() -> None:
        for name in names:
            lab.stop_node(name)

    def repair() -> None:
        for name in names:
            lab.start_node(name)

    return _measure(
        lab,
        "failover.plane",
        _plane_paths(lab),
        f"powering plane {first} off",
        fabric.failover.carrier_ms,
        fail,
        repair,
    )


def transport(lab: Lab) -> Verdict:
    """Reliable queue pairs live through a cut cable: what is lost is sent again, and no message fails."""
    check = "failover.transport"
    if trouble := _trouble(lab):
        return _undecided(check, trouble)
    target = _target(lab)
    a, b = str(target.link.a), str(target.link.b)
    bound = lab.fabric.failover.carrier_ms
    src, dst = target.path.src, target.path.dst
    near, far = (_nic_number(lab, n) for n in (src, dst))
    options = TransportOptions.model_validate({"mtu": 1024, "timeout": f"{RC_TIMEOUT_MS}ms"})
    spec = WorkloadSpec(name=check, transport=options, jobs=[PointToPoint(pattern="point-to-point")])
    seconds = WARM_UP_S + bound / 1000 + MARGIN_S
    compiled = compile_streams(
        spec, lab.fabric, [(src.server, near, dst.server, far), (dst.server, far, src.server, near)], qps=FLOWS // 2,
        length=RC_MESSAGE, duration_ns=round(seconds * 1e9), rate=RC_MESSAGE * 8 / INTERVAL_S,
        gateway_mac=real_macs(lab, lab.fabric.families[0]),
    )  # fmt: skip
    cut: list[str | FabtestError] = []

    def fail() -> None:
        try:
            cut.extend(lab.fail_link(a, b, Fault.CARRIER))
        except FabtestError as error:
            cut.append(error)

    broken = threading.Timer(WARM_UP_S, fail)
    try:
        result = run_workload(lab, compiled, started=broken.start)
    finally:
        broken.cancel()
        if broken.ident is not None:
            broken.join()
        lab.repair_link(a, b)
        restored = _restored(lab)
    for problem in cut:
        if isinstance(problem, FabtestError):
            raise problem
    if not cut:
        return inconclusive(check, f"{target.link} was not cut while messages were on their way")
    findings = []
    where = str(target.link)
    if result.failed_messages or result.failures:
        first = f": {result.failures[0]}" if result.failures else ""
        findings.append(Finding(where, f"{result.failed_messages} messages failed after cutting it{first}"))
    # A packet that is lost for good is missed at the latest when the retransmission timer runs out.
    allowed = bound + RC_TIMEOUT_MS
    if result.outage_ms > allowed:
        findings.append(Finding(where, f"a queue pair stood still for {result.outage_ms:.0f} ms, {allowed} ms allowed"))
    if restored is None:
        findings.append(Finding(where, f"not back at full width {repair_s(lab.fabric):g} s after the repair"))
    messages = sum(q.message_complete_rx for q in result.qps)
    good = (
        f"cutting {target.link} under {len(result.qps)} queue pairs: {result.retransmits} packets sent again, all "
        f"{messages} messages arrived, no queue pair "
        f"stood still for more than {result.outage_ms:.0f} ms ({allowed} allowed)"
    )
    return judge(
        check, good, findings, retransmits=result.retransmits, messages=messages, failed=result.failed_messages,
        outage_ms=round(result.outage_ms), bound_ms=allowed, qps=len(result.qps),
    )  # fmt: skip


def _nic_number(lab: Lab, nic: NicAddress) -> int:
    return next(n.number for n in lab.fabric.server[nic.server].nics if nic.port in n.ports)


# ------------------------------------------------------------------------------------------------------ choosing


def _all_nics(lab: Lab) -> list[NicAddress]:
    family = lab.fabric.families[0]
    return [n for s in lab.fabric.servers for n in nic_addresses(lab, s.name, family)]


def _target(lab: Lab) -> _Target:
    """Two NICs whose leaves have several paths between them, and a link that their flows really cross."""
    designed = designed_routes(lab.fabric)
    nics = _all_nics(lab)
    for src in nics:
        for dst in nics:
            leaf, far = src.port.leaf.node, lab.fabric.switch[dst.port.leaf.node]
            if src.server == dst.server or leaf == far.name or not far.server_prefixes:
                continue
            ports = designed.routes[leaf].get(far.server_prefixes[0], frozenset())
            if len({lab.fabric.link_at[Endpoint(leaf, port)].other(leaf).node for port in ports}) < 2:
                continue
            return _Target(Path(src, dst), _busiest_link(lab, src, dst))
        # Every NIC of a generated fabric is like the first of its leaf.
    raise NotApplicable("no two leaves have paths over several switches between them")


def _busiest_link(lab: Lab, src: NicAddress, dst: NicAddress) -> Link:
    probe = Probe(src, dst, range(FIRST_PORT, FIRST_PORT + FLOWS))
    leaf = src.port.leaf.node
    spines = [link.other(leaf).node for link in lab.fabric.links_of[leaf] if link.tier is not Tier.SERVER]
    paths = trace(lab, [probe], dict.fromkeys(spines))
    taken = [end for port in probe.src_ports for end in uplink_taken(lab, paths, flow_key(probe, port), leaf)]
    if not taken:
        raise TrafficError(f"no packet from {src} to {dst} leaves {leaf}", hint="see the underlay suite")
    return lab.fabric.link_at[max(set(taken), key=taken.count)]


def _plane_paths(lab: Lab) -> tuple[Path, ...]:
    """One path per plane between the first NICs of two servers."""
    family = lab.fabric.families[0]
    servers = lab.fabric.servers
    if len(servers) < 2:
        raise NotApplicable("the fabric has one server")
    ends: dict[int, list[NicAddress]] = {}
    for server in (servers[0], servers[-1]):
        first = server.nics[0].number
        ports = {p.name for nic in server.nics if nic.number == first for p in nic.ports}
        for n in nic_addresses(lab, server.name, family):
            if n.port.name in ports:
                ends.setdefault(n.port.plane, []).append(n)
    paths = tuple(Path(*pair) for _, pair in sorted(ends.items()) if len(pair) == 2)
    if len(paths) < 2:
        raise NotApplicable("no NIC has a port in each of two planes")
    return paths


# ----------------------------------------------------------------------------------------------------- measuring


def _measure(
    lab: Lab, check: str, path: Path | tuple[Path, ...], deed: str, bound_ms: int, fail: Callable[[], object],
    repair: Callable[[], object],
) -> Verdict:  # fmt: skip
    if trouble := _trouble(lab):
        return _undecided(check, trouble)
    there = path if isinstance(path, tuple) else (path,)
    back = tuple(Path(p.dst, p.src) for p in there)
    # Both ways: the near switch sees the failure itself, the far one must be told of it.
    streams = [
        Stream(lab, way, range(FIRST_PORT, FIRST_PORT + FLOWS // 2), interval=INTERVAL_S) for way in (there, back)
    ]
    findings: list[Finding] = []
    where = str(deed.partition(" ")[2])
    for stream in streams:
        stream.start()
    try:
        time.sleep(WARM_UP_S)
        before = sum(stream.recent(WARM_UP_S) for stream in streams)
        fail()
        time.sleep(bound_ms / 1000 + MARGIN_S)
        flowing = sum(stream.recent(10 * INTERVAL_S + 0.1) for stream in streams)
    finally:
        mended = time.monotonic()
        try:
            repair()
            restored = _restored(lab)
            time.sleep(0.3)
        finally:
            result = together([stream.stop() for stream in streams])
    if before < FLOWS:
        findings.append(Finding(where, f"only {before} of {FLOWS} flows arrived before anything was broken"))
    findings += _judge_stream(result, where, deed, bound_ms, flowing)
    if restored is None:
        findings.append(Finding(where, f"not back at full width {repair_s(lab.fabric):g} s after the repair"))
    good = (
        f"{deed} under {FLOWS} flows, half each way, cost {result.lost} of "
        f"{result.sent} packets and at most {result.outage_ms:.0f} ms of a flow ({bound_ms} allowed; each sends every "
        f"{INTERVAL_S * 1000:g} ms); "
        f"full width again {restored or 0:.1f} s after the repair"
    )
    return judge(
        check, good, findings, lost=result.lost, sent=result.sent, outage_ms=round(result.outage_ms), bound_ms=bound_ms,
        interval_ms=round(INTERVAL_S * 1000),
        flows_hit=result.disturbed, flows=FLOWS, 
        restored_s=round(restored if restored is not None else time.monotonic() - mended, 2),
    )  # fmt: skip


def _judge_stream(result: StreamResult, where: str, deed: str, bound_ms: int, flowing: int) -> list[Finding]:
    findings = []
    if result.outage_ms > bound_ms:
        findings.append(Finding(where, f"{deed} stopped a flow for {result.outage_ms:.0f} ms, {bound_ms} ms allowed"))
    if flowing < FLOWS:
        findings.append(
            Finding(where, f"{FLOWS - flowing} of {FLOWS} flows had not come back {bound_ms} ms after {deed}")
        )
    if result.bad_icrc:
        findings.append(Finding(where, f"{result.bad_icrc} packets arrived with a wrong ICRC"))
    return findings


def _trouble(lab: Lab) -> str:
    """What is not as designed before a measurement: the underlay suite's to judge."""
    designed = designed_routes(lab.fabric)
    for switch in lab.fabric.switches:
        lines = not_as_designed(health(lab, switch, designed))
        if lines:
            return lines[0]
    down = [h for h in link_health(lab) if not h.up]
    return down[0].why if down else ""


def _undecided(check: str, trouble: str) -> Verdict:
    return inconclusive(check, f"the fabric was not as designed before anything was broken: {trouble}")


def _restored(lab: Lab) -> float | None:
    try:
        return wait_converged(lab, repair_s(lab.fabric))
    except NotConverged:
        return None


def _isolated_nic(lab: Lab) -> Verdict:
    """One plane: the NIC whose cable is cut is gone, its neighbour on the same leaf is not."""
    check = "failover.server-link"
    nics = _all_nics(lab)
    if not nics:
        raise NotApplicable("the fabric has no servers")
    victim = nics[-1]
    src = next((n for n in nics if n.server != victim.server and _reaches(lab, n, victim)), None)
    witness = next(
        (n for n in nics if src and n.server not in (victim.server, src.server) and _reaches(lab, src, n)), None
    )
    if src is None or witness is None:
        raise NotApplicable("no three servers reach each other")
    if trouble := _trouble(lab):
        return _undecided(check, trouble)
    deed = f"cutting {victim.server}:{victim.port.name} -- {victim.port.leaf}"
    cut = Stream(lab, (Path(src, victim),), range(FIRST_PORT, FIRST_PORT + 8), interval=INTERVAL_S)
    other = Stream(lab, (Path(src, witness),), range(FIRST_PORT + 8, FIRST_PORT + 16), interval=INTERVAL_S)
    a, b = f"{victim.server}:{victim.port.name}", str(victim.port.leaf)
    findings: list[Finding] = []
    cut.start()
    other.start()
    back = 0.0
    try:
        time.sleep(WARM_UP_S)
        before = cut.recent(WARM_UP_S)
        lab.fail_link(a, b, Fault.CARRIER)
        time.sleep(MARGIN_S)
        during = cut.recent(0.2)
    finally:
        try:
            lab.repair_link(a, b)
            mended = time.monotonic()
            while cut.recent(0.1) < 8 and time.monotonic() - mended < 5:
                time.sleep(0.02)
            back = time.monotonic() - mended
            restored = _restored(lab)
        finally:
            cut_result, other_result = cut.stop(), other.stop()
    where = f"{victim.server}:{victim.port.name}"
    bound = lab.fabric.failover.carrier_ms
    if before < 8:
        findings.append(Finding(where, f"only {before} of 8 flows arrived before anything was broken"))
    if during:
        findings.append(Finding(where, f"{during} flows still arrive over a cable that is cut"))
    if other_result.lost:
        findings.append(
            Finding(f"{witness.server}:{witness.port.name}", f"lost {other_result.lost} packets of an unbroken path")
        )
    if back * 1000 > bound:
        findings.append(Finding(where, f"traffic was back {back * 1000:.0f} ms after the repair, {bound} ms allowed"))
    if restored is None:
        findings.append(Finding(where, "the fabric is not as designed after the repair"))
    good = (
        f"{deed} stops that NIC ({cut_result.lost} packets lost) and no other; it is back {back * 1000:.0f} ms after "
        f"the repair ({bound} allowed)"
    )
    return judge(
        check, good, findings, lost=cut_result.lost, lost_elsewhere=other_result.lost, back_ms=round(back * 1000)
    )


def _reaches(lab: Lab, a: NicAddress, b: NicAddress) -> bool:
    if a.port.leaf.node == b.port.leaf.node:
        return True
    far = lab.fabric.switch[b.port.leaf.node]
    routes = designed_routes(lab.fabric)
    return any(routes.width(a.port.leaf.node, p) for p in far.server_prefixes)
