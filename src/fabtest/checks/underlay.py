"""Suite ``underlay``: cables, MTU, reachability, sessions, routes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable

from fabtest.checks.observe import expected_now, health, link_health, links
from fabtest.checks.verdict import Finding, NotApplicable, Verdict, inconclusive, judge
from fabtest.model import Endpoint, Fabric
from fabtest.roce.send import NicAddress, nic_addresses
from fabtest.runtime.base import Capability, Lab
from fabtest.runtime.namespaces import inside
from fabtest.sonic.db import DbId
from fabtest.topology.routing import designed_routes, reachable_pairs

#: ICMP payload that fills a 9,000 byte packet: 9000 - 20 (IP) - 8 (ICMP).
JUMBO_PAYLOAD = 8972
REPLY_S = 1.0
#: How long a neighbour may take to be heard of after its port came up (LLDP's fast start: IEEE 802.1AB 9.2.5.19).
LLDP_S = 3.0
#: Pairs of NICs that are all tried; larger fabrics are tried leaf by leaf.
MESH = 20_000


def cabling(lab: Lab) -> Verdict:
    """Every switch hears over LLDP, on every port, the neighbour the topology has there."""
    check = "underlay.cabling"
    if Capability.LLDP not in lab.capabilities:
        return inconclusive(check, "this runtime has no LLDP")
    if not lab.agent_running():
        return inconclusive(check, "the agent does not run, so nobody listens to LLDP")
    deadline = time.monotonic() + LLDP_S
    while True:
        findings, seen = _plugged(lab)
        if not any("hears nobody" in f.what for f in findings) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    good = f"every one of {len(lab.fabric.links)} cables is where the topology has it"
    return judge(check, good, findings, ends=seen)


def _plugged(lab: Lab) -> tuple[list[Finding], int]:
    fabric = lab.fabric
    findings = []
    seen = 0
    for switch in fabric.switches:
        heard = _lldp(lab, switch.name)
        for link in fabric.links_of[switch.name]:
            mine, far = link.end(switch.name), link.other(switch.name)
            entry = heard.get(mine.port)
            if entry is None:
                findings.append(Finding(str(mine), f"hears nobody, should hear {far}"))
            elif entry != far:
                findings.append(Finding(str(mine), f"is plugged into {entry}, should be {far}"))
            else:
                seen += 1
    return findings, seen


def _lldp(lab: Lab, switch: str) -> dict[str, Endpoint]:
    appl = lab.node(switch).db(DbId.APPL)
    found = {}
    for key in appl.scan_iter("LLDP_ENTRY_TABLE:*", count=1000):
        row = appl.hgetall(key)
        found[key.partition(":")[2]] = Endpoint(row.get("lldp_rem_sys_name", ""), row.get("lldp_rem_port_desc", ""))
    return found


def links_up(lab: Lab) -> Verdict:
    """Every cable has carrier at both ends."""
    found = link_health(lab)
    findings = [Finding(str(h.link), h.why) for h in found if not h.up]
    return judge("underlay.links", f"all {len(found)} links are up", findings, links=len(found))


def sessions(lab: Lab) -> Verdict:
    """Every BGP session of the design is Established."""
    designed = designed_routes(lab.fabric)
    findings = []
    count = 0
    for switch in lab.fabric.switches:
        report = health(lab, switch, designed)
        if report.trouble:
            findings.append(Finding(switch.name, report.trouble))
        for s in report.sessions:
            count += 1
            if s.state != "Established":
                findings.append(
                    Finding(f"{switch.name}:{s.port}", f"session with {s.neighbour} ({s.peer}) is {s.state}")
                )
    return judge("underlay.sessions", f"all {count} ends of BGP sessions are Established", findings, sessions=count)


def routes(lab: Lab) -> Verdict:
    """Every switch has the prefixes it should and no others (widths are the ECMP suite's). What is missing because a
    session is down is left to ``sessions``."""
    designed, down = expected_now(lab)
    findings = []
    count = 0
    for switch in lab.fabric.switches:
        report = health(lab, switch, designed)
        count += report.routes
        if report.trouble:
            findings.append(Finding(switch.name, report.trouble))
        findings += [Finding(switch.name, f"route {f}") for f in report.faults if not f.want or not f.have]
    note = f" but for {len(down)} ends of sessions that are down" if down else ""
    return judge(
        "underlay.routes", f"{count} BGP routes, none missing and none unexpected{note}", findings, routes=count
    )


# ----------------------------------------------------------------------------------------------------- reaching


def expected_pairs(
    fabric: Fabric, nics: dict[str, list[NicAddress]], most: int = MESH
) -> list[tuple[NicAddress, NicAddress, bool]]:
    """Which NIC ports to try from where, and whether they should answer: every NIC of every server to every one of
    every other server while that is no more than ``most`` pairs.

    Beyond, every NIC tries its neighbour on the leaf, and one NIC of each leaf, in turn, stands for it towards each
    other leaf: routes are per leaf, so that is every route, and every NIC at least once.
    """
    reach = reachable_pairs(fabric)
    every = [n for addresses in nics.values() for n in addresses]
    if len(every) ** 2 <= most:
        return [
            (a, b, a.port.leaf.node == b.port.leaf.node or reach.get((a.port.leaf.node, b.port.leaf.node), True))
            for a in every
            for b in every
            if a.server != b.server
        ]
    by_leaf: dict[str, list[NicAddress]] = {}
    for n in every:
        by_leaf.setdefault(n.port.leaf.node, []).append(n)
    pairs: list[tuple[NicAddress, NicAddress, bool]] = []
    for a, mine in by_leaf.items():
        pairs += [(x, y, True) for x, y in zip(mine, [*mine[1:], mine[0]], strict=True) if x is not y]
        for turn, (b, theirs) in enumerate(by_leaf.items()):
            if a != b:
                x = mine[turn % len(mine)]
                others = [y for y in theirs if y.server != x.server] or theirs
                pairs.append((x, others[turn % len(others)], reach.get((a, b), True)))
    return pairs


def reachability(lab: Lab, family: int | None = None) -> Verdict:
    """Every NIC reaches the NICs it should, from its own address, and none it should not."""
    wire = family or lab.fabric.families[0]
    check = "underlay.reachability" if wire == 4 else "underlay.reachability-ipv6"
    pairs = expected_pairs(lab.fabric, {s.name: nic_addresses(lab, s.name, wire) for s in lab.fabric.servers})
    if not pairs:
        raise NotApplicable("the fabric has no two NICs")
    answered = ping(lab, [(a, b) for a, b, _ in pairs])
    missing = [(a, b) for (a, b, should), got in zip(pairs, answered, strict=True) if should and not got]
    again = dict(zip(missing, ping(lab, missing), strict=True))  # one ARP round lost is no fault
    findings = []
    for (a, b, should), got in zip(pairs, answered, strict=True):
        if should and not got and not again[a, b]:
            findings.append(Finding(f"{a.server}:{a.port.name}", f"does not reach {b}"))
        elif got and not should:
            findings.append(Finding(f"{a.server}:{a.port.name}", f"reaches {b}, which this fabric keeps apart"))
    apart = sum(not should for _, _, should in pairs)
    good = f"{len(pairs) - apart} pairs of NICs reach each other" + (
        f", {apart} that should not do not" if apart else ""
    )
    return judge(check, good, findings, pairs=len(pairs), apart=apart)


def mtu(lab: Lab) -> Verdict:
    """Both ends of every cable have its MTU, and a ping that fills it, with DF, crosses the fabric between leaves."""
    findings = []
    kernels = {name: links(lab.node(name)) for name in lab.fabric.node_names}
    for link in lab.fabric.links:
        for end in (link.a, link.b):
            info = kernels[end.node].get(end.port)
            if info is not None and info.mtu != link.mtu:
                findings.append(Finding(str(end), f"has an MTU of {info.mtu}, should be {link.mtu}"))
    family = lab.fabric.families[0]
    nics = {s.name: nic_addresses(lab, s.name, family) for s in lab.fabric.servers}
    pairs = expected_pairs(lab.fabric, nics, most=256)
    chosen = [(a, b) for a, b, should in pairs if should]
    if not chosen:
        raise NotApplicable("no two NICs reach each other")
    smallest = min(link.mtu for link in lab.fabric.links)
    payload = min(JUMBO_PAYLOAD, smallest - (28 if family == 4 else 48))
    answered = ping(lab, chosen, payload)
    missing = [pair for pair, got in zip(chosen, answered, strict=True) if not got]
    lost = [pair for pair, got in zip(missing, ping(lab, missing, payload), strict=True) if not got]
    findings += [Finding(f"{a.server}:{a.port.name}", f"{payload} bytes with DF do not reach {b}") for a, b in lost]
    good = f"every cable has its MTU, and {payload} byte pings with DF cross all {len(chosen)} pairs"
    return judge("underlay.mtu", good, findings, payload=payload)


def ping(lab: Lab, pairs: Iterable[tuple[NicAddress, NicAddress]], payload: int = 56) -> list[bool]:
    """ICMP echo from the source NIC's address and out of its port, DF set; all of a server's at once."""
    pairs = list(pairs)
    answered = [False] * len(pairs)
    by_server: dict[str, list[int]] = {}
    for n, (a, _) in enumerate(pairs):
        by_server.setdefault(a.server, []).append(n)
    sockets: list[tuple[socket.socket, list[int]]] = []
    try:
        for server, numbers in by_server.items():
            family = pairs[numbers[0]][0].address.version
            with inside(lab.node(server).netns):
                wire = _icmp_socket(family)
            sockets.append((wire, numbers))
            for n in numbers:
                _echo(wire, pairs[n][0], pairs[n][1], n, payload)
        deadline = time.monotonic() + REPLY_S
        left = len(pairs)
        while left and time.monotonic() < deadline:
            for wire, _ in sockets:
                for n in _replies(wire):
                    if n < len(pairs) and not answered[n]:
                        answered[n] = True
                        left -= 1
            time.sleep(0.005)
    finally:
        for wire, _ in sockets:
            wire.close()
    return answered


def _icmp_socket(family: int) -> socket.socket:
    if family == 4:
        wire = socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP)
        wire.setsockopt(socket.IPPROTO_IP, 10, 3)  # IP_MTU_DISCOVER, IP_PMTUDISC_PROBE: DF, and no remembered MTU
    else:
        wire = socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6)
        wire.setsockopt(socket.IPPROTO_IPV6, 23, 3)  # IPV6_MTU_DISCOVER
    wire.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    wire.setblocking(False)
    return wire


def _echo(wire: socket.socket, src: NicAddress, dst: NicAddress, number: int, payload: int) -> None:
    """The number of the pair travels in the payload, so that it may be larger than a sequence number."""
    body = struct.pack("!I", number).ljust(payload, b"\0")
    v4 = src.address.version == 4
    head = struct.pack("!BBHHH", 8 if v4 else 128, 0, 0, 0xFAB, number & 0xFFFF)
    message = head + body
    if v4:
        message = head[:2] + struct.pack("!H", _checksum(message)) + head[4:] + body
        # IP_PKTINFO: this interface, this source address
        index = socket.IPPROTO_IP, 8, struct.pack("=i4s4s", 0, src.address.packed, b"\0" * 4)
    else:
        index = socket.IPPROTO_IPV6, 50, src.address.packed + struct.pack("=i", 0)
    try:
        wire.sendmsg([message], [index], 0, (str(dst.address), 0))
    except OSError:
        return  # unreachable or too long for the port: no answer


def _replies(wire: socket.socket) -> Iterable[int]:
    while True:
        try:
            data = wire.recv(65536)
        except OSError:
            return
        offset = (data[0] & 15) * 4 if wire.family == socket.AF_INET else 0
        if len(data) >= offset + 12 and data[offset] in (0, 129) and data[offset + 4 : offset + 6] == b"\x0f\xab":
            yield int(struct.unpack_from("!I", data, offset + 8)[0])


def _checksum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return int(~(total + (total >> 16)) & 0xFFFF)
