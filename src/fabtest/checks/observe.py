"""Reading a running lab: BGP sessions, routes in the kernel, links. Nothing here changes anything."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from fabtest.errors import ExecError, LabError
from fabtest.model import Endpoint, Link, Switch
from fabtest.runtime.base import Lab, LiveNode
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import LinkInfo, NetlinkSocket
from fabtest.sonic.asic import NameMaps
from fabtest.sonic.db import DbId
from fabtest.topology.routing import Designed, designed_routes

Network = IPv4Network | IPv6Network
ESTABLISHED = "Established"


@dataclass(frozen=True, slots=True)
class Session:
    """A BGP session as its switch sees it. ``peer`` is the address, or the port where links are unnumbered."""

    port: str
    peer: str
    neighbour: str
    state: str


@dataclass(frozen=True, slots=True)
class RouteFault:
    """A BGP route that is not as designed: local ports it should and does lead out of."""

    prefix: Network
    want: frozenset[str]
    have: frozenset[str]

    def __str__(self) -> str:
        if not self.want:
            return f"{self.prefix} should not be there"
        if not self.have:
            return f"{self.prefix} is missing"
        missing = ", ".join(sorted(self.want - self.have, key=_natural))
        return f"{self.prefix} has {len(self.have)} of {len(self.want)} paths" + (
            f" (not {missing})" if missing else ""
        )


def _natural(port: str) -> tuple[str, int]:
    head = port.rstrip("0123456789")
    return head, int(port[len(head) :] or 0)


@dataclass(frozen=True, slots=True)
class SwitchHealth:
    """One switch compared with its design. ``trouble`` is a daemon that does not answer."""

    name: str
    sessions: tuple[Session, ...]
    routes: int
    faults: tuple[RouteFault, ...]
    trouble: str = ""

    @property
    def established(self) -> int:
        """Sessions that are up."""
        return sum(s.state == ESTABLISHED for s in self.sessions)

    @property
    def as_designed(self) -> bool:
        """Whether every session is up and every route has its designed paths, and no others are there."""
        return not self.trouble and not self.faults and self.established == len(self.sessions)


def sessions(lab: Lab, switch: Switch) -> tuple[Session, ...]:
    """The sessions a switch should have, each with its state (``absent`` if bgpd does not know it).

    Raises ExecError if bgpd does not answer.
    """
    summary = lab.node(switch.name).vty("bgpd", "show bgp summary json")
    known: dict[str, Any] = {}
    for family in ("ipv4Unicast", "ipv6Unicast"):
        known |= (summary.get(family) or {}).get("peers", {})
    found = []
    for s in switch.sessions:
        for peer in [s.port] if s.unnumbered else [str(r.ip) for r in s.remote]:
            state = str(known[peer].get("state", "Idle")) if peer in known else "absent"
            found.append(Session(s.port, peer, s.peer, state))
    return tuple(found)


def links(node: LiveNode) -> dict[str, LinkInfo]:
    """Kernel interfaces of a node."""
    with inside(node.netns), NetlinkSocket() as kernel:
        return kernel.links()


def bgp_routes(lab: Lab, switch: Switch) -> dict[Network, frozenset[str]]:
    """BGP's routes in the kernel of a switch: prefix -> local ports."""
    node = lab.node(switch.name)
    found: dict[Network, frozenset[str]] = {}
    with inside(node.netns), NetlinkSocket() as kernel:
        names = {link.index: link.name for link in kernel.links().values()}
        for family in lab.fabric.families:
            wire = socket.AF_INET if family == 4 else socket.AF_INET6
            for (packed, length), hops in kernel.bgp_widths(wire).items():
                prefix: Network = IPv4Network((packed, length)) if family == 4 else IPv6Network((packed, length))
                found[prefix] = frozenset(names.get(i, f"interface {i}") for i in hops)
    return found


def route_faults(want: dict[Network, frozenset[str]], have: dict[Network, frozenset[str]]) -> tuple[RouteFault, ...]:
    """Differences, in the order of prefixes."""
    empty: frozenset[str] = frozenset()
    prefixes = [p for p in want.keys() | have.keys() if want.get(p) != have.get(p)]
    prefixes.sort(key=lambda p: (p.version, p.network_address, p.prefixlen))
    return tuple(RouteFault(p, want.get(p, empty), have.get(p, empty)) for p in prefixes)


def health(lab: Lab, switch: Switch, designed: Designed) -> SwitchHealth:
    """A switch compared with its design; a daemon that is gone is reported, not raised."""
    try:
        have = bgp_routes(lab, switch)
        faults = route_faults(designed.routes[switch.name], have)
        return SwitchHealth(switch.name, sessions(lab, switch), len(have), faults)
    except (ExecError, LabError) as error:
        return SwitchHealth(switch.name, (), 0, (), error.message)


def expected_now(lab: Lab) -> tuple[Designed, tuple[Endpoint, ...]]:
    """The routes the fabric should have with the sessions that are up, and the switch ports whose session is not.

    A route that is narrow because a session is down is that session's fault; checks of routes look for others.
    """
    down = []
    for switch in lab.fabric.switches:
        try:
            down += [Endpoint(switch.name, s.port) for s in sessions(lab, switch) if s.state != ESTABLISHED]
        except (ExecError, LabError):
            down += [Endpoint(switch.name, s.port) for s in switch.sessions]
    return designed_routes(lab.fabric, down), tuple(down)


def bfd_down(lab: Lab, switch: Switch) -> list[str]:
    """Peers of a switch whose BFD session is not up (empty where BFD is off)."""
    if not lab.fabric.bgp.bfd:
        return []
    peers: Any = lab.node(switch.name).vty("bfdd", "show bfd peers json") or []
    up = {str(p.get("peer")) for p in peers if p.get("status") == "up"}
    up |= {str(p.get("interface")) for p in peers if p.get("status") == "up"}
    wanted = [peer for s in switch.sessions for peer in ([s.port] if s.unnumbered else [str(r.ip) for r in s.remote])]
    return [w for w in wanted if w not in up]


def name_maps(node: LiveNode) -> NameMaps:
    """COUNTERS_DB's names of the objects in a node's ASIC_DB."""
    counters = node.db(DbId.COUNTERS)
    return NameMaps(*(counters.hgetall(f"COUNTERS_{kind}_NAME_MAP") for kind in ("PORT", "QUEUE", "PG")))


def asic_objects(connection: Any, types: Iterable[str]) -> dict[str, dict[str, str]]:
    """Objects of some types of a live ASIC_DB."""
    keys = [key for kind in types for key in connection.scan_iter(f"ASIC_STATE:SAI_OBJECT_TYPE_{kind}:*", count=1000)]
    with connection.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hgetall(key)
        return dict(zip(keys, pipe.execute(), strict=True))


@dataclass(frozen=True, slots=True)
class LinkHealth:
    """A cable: up if both ends have carrier and are enabled; ``why`` says what is not."""

    link: Link
    up: bool
    why: str


def link_health(lab: Lab, which: Iterable[Link] | None = None) -> list[LinkHealth]:
    """Every link of the lab (or those given) as the kernels of both ends see it."""
    chosen = list(lab.fabric.links if which is None else which)
    kernels: dict[str, dict[str, LinkInfo]] = {}
    faults = lab.faults()
    found = []
    for link in chosen:
        reasons = []
        for end in (link.a, link.b):
            if end.node not in kernels:
                try:
                    kernels[end.node] = links(lab.node(end.node))
                except LabError:  # no network: the node does not run
                    kernels[end.node] = {}
            reason = _end_trouble(end, kernels[end.node], faults)
            if reason:
                reasons.append(f"{end} {reason}")
        found.append(LinkHealth(link, not reasons, "; ".join(reasons)))
    return found


def _end_trouble(end: Endpoint, interfaces: dict[str, LinkInfo], faults: dict[str, str]) -> str:
    how = faults.get(str(end)) or faults.get(end.node)
    if how == "silent":
        return "drops every frame (link-down --silent)"
    if how and how.startswith("grey"):
        return f"loses {how.removeprefix('grey ')} of all frames (link-down --loss)"
    if how == "down":
        return "is powered off (node-down)"
    if how == "carrier":
        return "was cut (link-down)"
    info = interfaces.get(end.port)
    if info is None:
        return "is not there"
    if not info.up:
        return "is administratively down"
    return "" if info.running else "has no carrier"
