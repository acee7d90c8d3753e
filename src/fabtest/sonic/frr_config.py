"""What an ``frr.conf`` says about BGP, read without FRR: sessions, networks, ECMP, route filters. Pure.

Whatever SONiC makes of CONFIG_DB, and whatever an engineer wrote, ends as this text, so it is the one place where the
intended routes of a given configuration come from. What is not understood is named in ``warnings``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from fabtest.model.policy import NOTHING, Clause, PrefixList, PrefixRule, RouteFilter

IPNetwork = IPv4Network | IPv6Network

#: FRR's own limit where ``maximum-paths`` is not given (MULTIPATH_NUM of Debian's and SONiC's builds is larger).
ANY_PATHS = 256
#: Seconds: keepalive, hold, connect retry by ``frr defaults`` (bgpd/bgp_vty.c).
TIMERS = {"traditional": (60, 180, 120), "datacenter": (3, 9, 10)}


@dataclass(slots=True)
class Neighbour:
    """A BGP neighbour (by address, or by interface) or a peer group; None is what it does not say itself."""

    name: str
    group: str | None = None
    is_interface: bool = False
    asn: int | str | None = None
    shutdown: bool | None = None
    bfd: bool | None = None
    timers: tuple[int, int] | None = None
    connect: int | None = None
    families: dict[int, bool] = field(default_factory=dict)
    allow_own_as: dict[int, int] = field(default_factory=dict)
    route_maps: dict[tuple[int, str], str] = field(default_factory=dict)
    prefix_lists: dict[tuple[int, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """A neighbour with all it inherits. ``asn`` is a number, ``external`` or ``internal``; filters by family."""

    peer: str
    is_interface: bool
    asn: int | str
    shutdown: bool
    bfd: bool
    keepalive_s: int
    hold_s: int
    connect_s: int
    families: tuple[int, ...]
    allow_own_as: int
    exports: dict[int, RouteFilter]
    accepts: dict[int, RouteFilter]


@dataclass(frozen=True)
class BgpConfig:
    """``router bgp`` of the default VRF. ``redistribute`` is of connected routes: family -> filter (None: all)."""

    asn: int
    router_id: str
    multipath_relax: bool
    import_check: bool
    networks: tuple[IPNetwork, ...]
    redistribute: dict[int, RouteFilter | None]
    max_paths: dict[int, int]
    sessions: tuple[Session, ...]
    warnings: tuple[str, ...]


def read_frr(text: str) -> BgpConfig | None:
    """The BGP of a configuration; None where it runs none in the default VRF."""
    return _Reader(text).config()


def statements(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(context, statement) of every line: the context is the stanzas it stands in, outermost first.

    FRR indents by one, but the words decide: hand-written files need not be indented.
    """
    context: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith(("!", "#")):
            continue
        if line in ("exit", "exit-address-family", "exit-vrf", "end"):
            if line == "end":
                context = []
            elif context:
                context.pop()
            continue
        if not raw[0].isspace() and line.startswith((*_STANZAS, *_TOP)):
            context = []
        if line.startswith("address-family ") and context and context[-1].startswith("address-family "):
            context.pop()
        yield tuple(context), line
        if opens(line):
            context.append(line)


def opens(line: str) -> bool:
    """Whether a statement opens a stanza."""
    return line.startswith((*_STANZAS, *_INNER)) and not line.startswith("bfd ")


_STANZAS = ("router ", "interface ", "route-map ", "vrf ", "bfd", "line ", "key chain")
_INNER = ("address-family ", "profile ", "peer ")
#: Statements that end a stanza where they stand at the left margin.
_TOP = ("ip ", "ipv6 ", "frr ", "hostname", "log ", "service ", "password", "bgp as-path", "bgp community", "no zebra")


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = list(statements(text))
        self.warnings: list[str] = []
        self.profile = "traditional"
        self.version: tuple[int, ...] = (8, 4)
        self.lists: dict[str, list[tuple[int, PrefixRule]]] = {}
        self.maps: dict[str, dict[int, list[tuple[bool, str]]]] = {}
        self.neighbours: dict[str, Neighbour] = {}
        self.asn = 0
        self.router_id = ""
        self.relax = False
        self.import_check = True
        self.requires_policy: bool | None = None
        self.default_v4 = True
        self.timers: tuple[int, int] | None = None
        self.networks: list[IPNetwork] = []
        self.redistribute: dict[int, str | None] = {}
        self.max_paths: dict[int, int] = {}

    def warn(self, line: str, why: str) -> None:
        self.warnings.append(f"`{line}`: {why}")

    def config(self) -> BgpConfig | None:
        for context, line in self.lines:
            words = line.split()
            try:
                self._statement(context, line, words)
            except (ValueError, IndexError):
                self.warn(line, "not understood")
        if not self.asn:
            return None
        return BgpConfig(
            asn=self.asn,
            router_id=self.router_id,
            multipath_relax=self.relax,
            import_check=self.import_check,
            networks=tuple(dict.fromkeys(self.networks)),
            redistribute={f: None if name is None else self._filter((name,)) for f, name in self.redistribute.items()},
            max_paths={f: self.max_paths.get(f, ANY_PATHS) for f in (4, 6)},
            sessions=tuple(self._sessions()),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    # ------------------------------------------------------------------------------------------------- statements

    def _statement(self, context: tuple[str, ...], line: str, words: list[str]) -> None:
        if line.startswith("frr defaults "):
            self.profile = words[2]
        elif line.startswith("frr version "):
            self.version = tuple(int(x) for x in words[2].split(".")[:2] if x.isdecimal())
        elif words[0] in ("ip", "ipv6") and words[1] == "prefix-list":
            self._prefix_list(words)
        elif line.startswith("route-map "):
            self.maps.setdefault(words[1], {})[int(words[3])] = [(words[2] == "permit", "")]
        elif line.startswith("router bgp "):
            if "vrf" in words:
                self.warn(line, "only the default VRF runs in a lab")
            else:
                self.asn = int(words[2])
        elif context and context[0].startswith("route-map "):
            head = context[0].split()
            self.maps[head[1]][int(head[3])].append((True, line))
        elif context and context[0].startswith("router bgp ") and "vrf" not in context[0].split():
            if len(context) > 1:
                family = {"ipv4": 4, "ipv6": 6}.get(context[1].split()[1])
                if family is None or context[1].split()[2:] not in ([], ["unicast"]):
                    return  # EVPN, VPN: nothing the underlay forwards by
                self._family(family, line, words)
            else:
                self._router(line, words)
        elif line.startswith(("router ", "ip route ", "ipv6 route ")) and "vrf" not in words:
            self.warn(line, "not part of the intended routes")

    def _prefix_list(self, words: list[str]) -> None:
        name = words[2]
        rest = words[3:]
        number = 5 + max((n for n, _ in self.lists.get(name, [])), default=0) // 5 * 5
        if rest[0] == "seq":
            number, rest = int(rest[1]), rest[2:]
        if rest[0] == "description":
            return
        permit = rest[0] == "permit"
        network = ip_network("::/0" if words[0] == "ipv6" else "0.0.0.0/0") if rest[1] == "any" else ip_network(rest[1])
        limits = dict(zip(rest[2::2], map(int, rest[3::2]), strict=True))
        shortest = limits.get("ge", network.prefixlen)
        longest = limits.get("le", network.max_prefixlen if "ge" in limits or rest[1] == "any" else network.prefixlen)
        self.lists.setdefault(name, []).append((number, PrefixRule(permit, network, shortest, longest)))

    def _router(self, line: str, words: list[str]) -> None:
        if line.startswith("bgp router-id "):
            self.router_id = words[2]
        elif line.startswith("bgp bestpath as-path multipath-relax"):
            self.relax = True
        elif words[-2:] == ["network", "import-check"]:
            self.import_check = words[0] != "no"
        elif words[-1] == "ebgp-requires-policy":
            self.requires_policy = words[0] != "no"
        elif line == "no bgp default ipv4-unicast":
            self.default_v4 = False
        elif line.startswith("timers bgp "):
            self.timers = (int(words[2]), int(words[3]))
        elif words[0] == "neighbor" or words[:2] == ["no", "neighbor"]:
            self._neighbour(line, words)
        elif line.startswith("bgp listen range"):
            self.warn(line, "sessions with peers that are not listed are not part of the intended routes")
        elif words[0] in ("network", "maximum-paths", "redistribute", "aggregate-address"):
            self._family(4, line, words)  # FRR takes these for IPv4 unicast

    def _neighbour(self, line: str, words: list[str]) -> None:
        negated = words[0] == "no"
        _, name, *rest = words[1:] if negated else words
        n = self.neighbours.setdefault(name, Neighbour(name))
        if rest == ["peer-group"]:
            n.group = ""
        elif rest[0] == "interface":
            n.is_interface = True
            rest = [w for w in rest[1:] if w != "v6only"]
            if rest:
                self._attribute(n, rest, negated)
        else:
            self._attribute(n, rest, negated)

    def _attribute(self, n: Neighbour, rest: list[str], negated: bool) -> None:
        if rest[0] == "peer-group" and len(rest) == 2:
            n.group = rest[1]
        elif rest[0] == "remote-as":
            n.asn = rest[1] if rest[1] in ("external", "internal") else int(rest[1])
        elif rest[0] == "shutdown":
            n.shutdown = not negated
        elif rest[0] == "bfd":
            n.bfd = not negated
        elif rest[:2] == ["timers", "connect"]:
            n.connect = int(rest[2])
        elif rest[0] == "timers":
            n.timers = (int(rest[1]), int(rest[2]))
        elif rest[0] in ("route-map", "prefix-list", "allowas-in", "activate"):
            self._family(4, "", ["neighbor", n.name, *rest])  # of IPv4 unicast, as FRR takes it
        elif rest[0] in ("ebgp-multihop", "disable-connected-check", "local-as"):
            self.warn(f"neighbor {n.name} {' '.join(rest)}", "sessions that are not over one cable are not modelled")

    def _family(self, family: int, line: str, words: list[str]) -> None:
        if words[0] == "network":
            self.networks.append(ip_network(words[1], strict=False))
            if "route-map" in words[2:]:
                self.warn(line, "its route-map is not followed")
        elif words[:2] == ["redistribute", "connected"]:
            self.redistribute[family] = words[words.index("route-map") + 1] if "route-map" in words else None
        elif words[0] in ("redistribute", "aggregate-address"):
            self.warn(line, "not part of the intended routes")
        elif words[0] == "maximum-paths" and words[1] != "ibgp":
            self.max_paths[family] = int(words[1])
        elif words[0] == "neighbor" or words[:2] == ["no", "neighbor"]:
            negated = words[0] == "no"
            _, name, *rest = words[1:] if negated else words
            n = self.neighbours.setdefault(name, Neighbour(name))
            if rest[0] == "activate":
                n.families[family] = not negated
            elif rest[0] == "allowas-in":
                n.allow_own_as[family] = int(rest[1]) if len(rest) > 1 and rest[1].isdigit() else 3
            elif rest[0] in ("route-map", "prefix-list"):
                chosen = n.route_maps if rest[0] == "route-map" else n.prefix_lists
                if negated:
                    chosen.pop((family, rest[2]), None)
                else:
                    chosen[family, rest[2]] = rest[1]
            elif rest[0] == "peer-group" and len(rest) == 2:
                n.group = rest[1]
            elif rest[0] in ("default-originate", "filter-list", "distribute-list", "unsuppress-map", "as-override",
                             "remove-private-AS"):  # fmt: skip
                self.warn(f"neighbor {name} {' '.join(rest)}", "not part of the intended routes")

    # ---------------------------------------------------------------------------------------------------- policies

    def _list(self, name: str) -> PrefixList:
        # A list that is not there permits nothing, in a filter as in a route-map.
        return tuple(rule for _, rule in sorted(self.lists.get(name, []), key=lambda item: item[0]))

    def _filter(self, maps: tuple[str, ...], lists: tuple[str, ...] = ()) -> RouteFilter:
        parts = [self._map(name) for name in maps]
        parts += [(Clause(True, self._list(name)),) for name in lists]
        return RouteFilter(tuple(parts))

    def _map(self, name: str) -> tuple[Clause, ...]:
        clauses: list[Clause] = []
        for number, entry in sorted(self.maps.get(name, {}).items()):
            permit = entry[0][0]
            match: PrefixList | None = None
            goes_on = False
            for _, line in entry[1:]:
                words = line.split()
                if words[:4] in (
                    ["match", "ip", "address", "prefix-list"],
                    ["match", "ipv6", "address", "prefix-list"],
                ):
                    match = self._list(words[4])
                elif words[0] in ("match", "call") or words[:2] in (["set", "as-path"], ["set", "local-preference"],
                                                                   ["set", "weight"]):  # fmt: skip
                    self.warn(f"route-map {name} {number}: {line}", "not followed: the intended routes may differ")
                elif words[0] in ("on-match", "continue"):
                    goes_on = True
                    if words[:2] != ["on-match", "next"]:
                        self.warn(f"route-map {name} {number}: {line}", "taken as `on-match next`")
            if not goes_on:
                clauses.append(Clause(permit, match))
        return tuple(clauses)

    # ---------------------------------------------------------------------------------------------------- sessions

    def _sessions(self) -> Iterator[Session]:
        keepalive, hold, connect = TIMERS.get(self.profile, TIMERS["traditional"])
        keepalive, hold = self.timers or (keepalive, hold)
        # RFC 8212 is a default of FRR since 7.4, but of its datacenter profile.
        policy = self.requires_policy
        if policy is None:
            policy = self.profile == "traditional" and self.version >= (7, 4)
        for n in self.neighbours.values():
            if n.group == "":
                continue
            group = self.neighbours.get(n.group or "", Neighbour(""))
            if not n.is_interface:
                try:
                    ip_address(n.name)
                except ValueError:
                    continue  # a peer group that only address families name
            asn = n.asn if n.asn is not None else group.asn
            if asn is None:
                self.warnings.append(f"neighbor {n.name}: has no remote-as, so no session")
                continue
            families = tuple(f for f in (4, 6) if n.families.get(f, group.families.get(f, f == 4 and self.default_v4)))
            timers = n.timers or group.timers or (keepalive, hold)
            filters: dict[str, dict[int, RouteFilter]] = {"in": {}, "out": {}}
            for family in families:
                for way, found in filters.items():
                    key = (family, way)
                    maps = [x for x in (n.route_maps.get(key, group.route_maps.get(key)),) if x]
                    lists = [x for x in (n.prefix_lists.get(key, group.prefix_lists.get(key)),) if x]
                    if maps or lists:
                        found[family] = self._filter(tuple(maps), tuple(lists))
                    elif policy and asn != "internal" and asn != self.asn:
                        found[family] = NOTHING
            if policy and any(f == NOTHING for way in filters.values() for f in way.values()):
                self.warnings.append(f"neighbor {n.name}: no route passes without a policy (RFC 8212)")
            yield Session(
                peer=n.name,
                is_interface=n.is_interface,
                asn=asn,
                shutdown=bool(n.shutdown if n.shutdown is not None else group.shutdown),
                bfd=bool(n.bfd if n.bfd is not None else group.bfd),
                keepalive_s=timers[0],
                hold_s=timers[1],
                connect_s=n.connect or group.connect or connect,
                families=families,
                allow_own_as=max([0, *(n.allow_own_as or group.allow_own_as).values()]),
                exports=filters["out"],
                accepts=filters["in"],
            )
