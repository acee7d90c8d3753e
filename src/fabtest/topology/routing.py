"""Which routes and next hops BGP should compute: the intent that a live lab is compared with.

Every switch originates its loopbacks, every leaf its server prefixes. A path is accepted unless it holds the
receiver's own ASN (RFC 4271 9.1.2), the shortest AS path wins, and all equally short ones are used
(``multipath-relax``). With RFC 7938 numbering that means: up at most once, then down.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from fabtest.model import Endpoint, Fabric, Switch, Tier

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Designed:
    """Routes of every switch: prefix -> local ports that lead there."""

    routes: dict[str, dict[Network, frozenset[str]]]

    def width(self, switch: str, prefix: Network) -> int:
        """ECMP width of a route; 0 where the switch should not have it."""
        return len(self.routes[switch].get(prefix, ()))


def originated(switch: Switch) -> tuple[Network, ...]:
    """The prefixes a switch brings into BGP."""
    return (*(loop.network for loop in switch.loopbacks), *switch.server_prefixes)


def designed_routes(fabric: Fabric, without: Collection[Endpoint] = ()) -> Designed:
    """The routes of every switch of a fabric, without connected ones. Cost: origins x links.

    Sessions over the ports in ``without`` (and so at their far ends) are taken to be down.
    """
    gone = {*without, *(fabric.link_at[end].other(end.node) for end in without if end in fabric.link_at)}
    routes: dict[str, dict[Network, frozenset[str]]] = {s.name: {} for s in fabric.switches}
    neighbours: dict[str, list[tuple[str, str]]] = {
        s.name: [(session.port, session.peer) for session in s.sessions if Endpoint(s.name, session.port) not in gone]
        for s in fabric.switches
    }
    asn = {s.name: s.asn for s in fabric.switches}
    limit = fabric.bgp.max_paths
    for origin in fabric.switches:
        hops = _paths_from(origin.name, neighbours, asn)
        for name, ports in hops.items():
            chosen = frozenset(sorted(ports)[:limit]) if len(ports) > limit else frozenset(ports)
            for prefix in originated(origin):
                routes[name][prefix] = chosen
    return Designed(routes)


def _paths_from(origin: str, neighbours: dict[str, list[tuple[str, str]]], asn: dict[str, int]) -> dict[str, list[str]]:
    """For every switch with a route to ``origin``: the ports of its equally short paths, breadth first."""
    path: dict[str, frozenset[int]] = {origin: frozenset((asn[origin],))}
    ports: dict[str, list[str]] = {}
    frontier = [origin]
    while frontier:
        found: dict[str, list[str]] = {}
        via: dict[str, str] = {}
        for node in frontier:
            for _, peer in neighbours[node]:
                if peer in path or peer in found or asn[peer] in path[node]:
                    continue
                reachable = [
                    (port, far)
                    for port, far in neighbours[peer]
                    if far in path and far in frontier and asn[peer] not in path[far]
                ]
                found[peer] = [port for port, _ in reachable]
                via[peer] = reachable[0][1]
        for peer, chosen in found.items():
            path[peer] = path[via[peer]] | {asn[peer]}
            ports[peer] = chosen
        frontier = list(found)
    return ports


def reachable_pairs(fabric: Fabric) -> dict[tuple[str, str], bool]:
    """For leaves that have servers: whether servers of one should reach those of the other over the network."""
    routes = designed_routes(fabric)
    leaves = [s for s in fabric.switches if s.server_prefixes and s.tier is Tier.LEAF]
    return {
        (a.name, b.name): a is b or all(routes.width(a.name, p) > 0 for p in b.server_prefixes)
        for a in leaves
        for b in leaves
    }
