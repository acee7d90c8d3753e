"""Which routes and next hops BGP should compute: the intent that a live lab is compared with.

Every switch originates its loopbacks, every leaf its server prefixes (a given configuration: what it says). A path is
accepted unless it holds the receiver's own ASN (RFC 4271 9.1.2) more often than allowed, or a filter stops it; the
shortest AS path wins, and all equally short ones are used (``multipath-relax``; without it, all of one content). With
RFC 7938 numbering that means: up at most once, then down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from fabtest.model import BgpSession, Endpoint, Fabric, Tier
from fabtest.model.policy import RouteFilter

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Designed:
    """Routes of every switch: prefix -> local ports that lead there."""

    routes: dict[str, dict[Network, frozenset[str]]]

    def width(self, switch: str, prefix: Network) -> int:
        """ECMP width of a route; 0 where the switch should not have it."""
        return len(self.routes[switch].get(prefix, ()))


def designed_routes(fabric: Fabric, without: Collection[Endpoint] = ()) -> Designed:
    """The routes of every switch of a fabric, without connected ones. Cost: groups of prefixes x links.

    Sessions over the ports in ``without`` (and so at their far ends) are taken to be down.
    """
    gone = {*without, *(fabric.link_at[end].other(end.node) for end in without if end in fabric.link_at)}
    sessions = {
        s.name: [session for session in s.sessions if Endpoint(s.name, session.port) not in gone]
        for s in fabric.switches
    }
    routes: dict[str, dict[Network, frozenset[str]]] = {s.name: {} for s in fabric.switches}
    paths = _Paths(fabric, sessions)
    owners: dict[Network, list[str]] = defaultdict(list)
    for s in fabric.switches:
        for prefix in dict.fromkeys(s.originated):
            owners[prefix].append(s.name)
    connected = {prefix for s in fabric.switches for prefix in s.connected}
    known: dict[tuple[object, ...], dict[str, frozenset[str]]] = {}
    for prefix, origins in owners.items():
        key = (prefix.version, *origins, *paths.passes(prefix))
        if key not in known:
            known[key] = paths.to(origins, prefix)
        own = prefix in connected
        for name, ports in known[key].items():
            if not own or prefix not in fabric.switch[name].connected:
                routes[name][prefix] = ports
    return Designed(routes)


class _Paths:
    """Sessions as edges, with the filters on them."""

    def __init__(self, fabric: Fabric, sessions: dict[str, list[BgpSession]]) -> None:
        self.fabric = fabric
        #: Node -> (neighbour, how often the own ASN may stand in its paths, session) of every session of the node.
        self.edges = {name: [(s.peer, s.allow_own_as, s) for s in group] for name, group in sessions.items()}
        self.asn = {s.name: s.asn for s in fabric.switches}
        every = [f for group in sessions.values() for s in group for _, f in (*s.exports, *s.accepts)]
        self.filters: tuple[RouteFilter, ...] = tuple(dict.fromkeys(every))
        self.plain = not self.filters and not any(s.families for group in sessions.values() for s in group)
        #: What the far end of a session lets out to us.
        self.far: dict[tuple[str, str], BgpSession] = {
            (s.peer, s.peer_port): s for group in sessions.values() for s in group
        }

    def passes(self, prefix: Network) -> tuple[bool, ...]:
        """Of every filter of the fabric, whether it lets a prefix through: prefixes alike here go the same ways."""
        return tuple(f.permits(prefix) for f in self.filters)

    def _open(self, node: str, session: BgpSession, prefix: Network) -> bool:
        """Whether ``node`` may learn a prefix over a session of its own."""
        if self.plain:
            return True
        if session.families and prefix.version not in session.families:
            return False
        far = self.far.get((node, session.port))
        ways = [dict(session.accepts), dict(far.exports) if far else {}]
        return all(way[prefix.version].permits(prefix) for way in ways if prefix.version in way)

    def to(self, origins: Iterable[str], prefix: Network) -> dict[str, frozenset[str]]:
        """For every switch with a route to the origins: the ports of its equally short paths, breadth first."""
        asn, edges, plain = self.asn, self.edges, self.plain
        path: dict[str, tuple[int, ...]] = {origin: (asn[origin],) for origin in origins}
        ports: dict[str, frozenset[str]] = {}
        frontier = set(path)
        while frontier:
            found: dict[str, list[BgpSession]] = {}
            for peer in {far for node in frontier for far, _, _ in edges[node] if far not in path}:
                own = asn[peer]
                reachable = [
                    session
                    for far, allowed, session in edges[peer]
                    if far in frontier
                    and (own not in path[far] if not allowed else path[far].count(own) <= allowed)
                    and (plain or self._open(peer, session, prefix))
                ]
                if reachable:
                    found[peer] = reachable
            chosen = {peer: self._chosen(peer, reachable, path, prefix) for peer, reachable in found.items()}
            for peer, best in chosen.items():
                path[peer] = (asn[peer], *path[best[0].peer])
                ports[peer] = frozenset([s.port for s in best])
            frontier = set(chosen)
        return ports

    def _chosen(
        self, node: str, reachable: list[BgpSession], path: dict[str, tuple[int, ...]], prefix: Network
    ) -> list[BgpSession]:
        """Of equally short paths those that are used."""
        bgp = self.fabric.switch[node].bgp
        if bgp is not None and not bgp.multipath_relax:
            alike: dict[tuple[int, ...], list[BgpSession]] = defaultdict(list)
            for s in reachable:
                alike[path[s.peer]].append(s)
            reachable = max(alike.values(), key=len)
        limit = dict(bgp.max_paths).get(prefix.version, 0) if bgp is not None else self.fabric.bgp.max_paths
        if len(reachable) > limit > 0:
            return sorted(reachable, key=lambda s: s.port)[:limit]
        return reachable


def reachable_pairs(fabric: Fabric) -> dict[tuple[str, str], bool]:
    """For leaves that have servers: whether servers of one should reach those of the other over the network."""
    routes = designed_routes(fabric)
    leaves = [s for s in fabric.switches if s.server_prefixes and s.tier is Tier.LEAF]
    return {
        (a.name, b.name): a is b or all(routes.width(a.name, p) > 0 for p in b.server_prefixes)
        for a in leaves
        for b in leaves
    }
