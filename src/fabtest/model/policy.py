"""Route filters of BGP, as far as they decide which prefixes pass: prefix-lists and route-maps (RFC 4271 9.1, FRR)."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """A line of a prefix-list: prefixes inside ``network`` whose length is within ``shortest`` and ``longest``."""

    permit: bool
    network: IPNetwork
    shortest: int
    longest: int

    def matches(self, prefix: IPNetwork) -> bool:
        """Whether the line is about this prefix."""
        return (
            prefix.version == self.network.version
            and self.shortest <= prefix.prefixlen <= self.longest
            and prefix.subnet_of(self.network)  # type: ignore[arg-type]
        )


PrefixList = tuple[PrefixRule, ...]


def list_permits(rules: PrefixList, prefix: IPNetwork) -> bool:
    """The first line that matches decides; no line means no."""
    for rule in rules:
        if rule.matches(prefix):
            return rule.permit
    return False


@dataclass(frozen=True, slots=True)
class Clause:
    """An entry of a route-map: what ``match`` permits (None: everything) is permitted, or denied."""

    permit: bool
    match: PrefixList | None = None


@dataclass(frozen=True, slots=True)
class RouteFilter:
    """What passes a session one way, or a redistribution: every part must let a prefix through.

    A part is a route-map; a plain prefix-list is one of a single entry. A route-map without entries denies all.
    """

    parts: tuple[tuple[Clause, ...], ...]

    def permits(self, prefix: IPNetwork) -> bool:
        """Whether a prefix passes."""
        return all(_map_permits(part, prefix) for part in self.parts)


def _map_permits(clauses: tuple[Clause, ...], prefix: IPNetwork) -> bool:
    for clause in clauses:
        if clause.match is None or list_permits(clause.match, prefix):
            return clause.permit
    return False


#: A filter that lets nothing through (an eBGP session without policy under RFC 8212).
NOTHING = RouteFilter(((),))
