"""The model of a ``custom`` topology whose switches have given configurations: what the files say, as a ``Fabric``.

Names, tiers, rails, planes and cables are the topology's; ports, addresses, sessions, QoS and timers are read from
the configurations, which are carried along untouched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)

from fabtest.errors import Problem
from fabtest.importer.cables import addresses_of
from fabtest.importer.config import (
    DEFAULT_MTU,
    cable_length,
    hardware,
    hashing,
    port_mtu,
    roce_class,
    switch_ports,
    switch_vlans,
    timers,
)
from fabtest.importer.files import USED, GivenSwitch
from fabtest.lint.switch import number
from fabtest.model import (
    BgpSession,
    Emulation,
    Endpoint,
    Fabric,
    FailoverBounds,
    Link,
    Nic,
    NicPort,
    Server,
    Shape,
    Switch,
    SwitchBgp,
    Tier,
)
from fabtest.sonic.frr_config import Session
from fabtest.topology.schema import CustomSpec
from fabtest.topology.source import Source
from fabtest.topology.units import generated_mac

Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network
_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}\Z")
#: Of a session that exchanges no routes a lab has (EVPN only).
NO_FAMILY = (0,)


@dataclass(frozen=True, slots=True)
class _End:
    """A NIC port of a server before it has addresses."""

    nic: str
    leaf: Endpoint
    link: Link


def given_fabric(
    spec: CustomSpec, source: Source, given: Mapping[str, GivenSwitch], name: str
) -> tuple[Fabric | None, list[Problem]]:
    """The fabric, or what keeps it from being one."""
    return _Builder(spec, source, given).fabric(name)


class _Builder:
    def __init__(self, spec: CustomSpec, source: Source, given: Mapping[str, GivenSwitch]) -> None:
        self.spec = spec
        self.source = source
        self.given = given
        self.problems: list[Problem] = []
        self.node = {n.name: n for n in spec.nodes}
        self.routed = {name: addresses_of(s.config, "INTERFACE") for name, s in given.items()}
        self.vlans = {name: switch_vlans(s.config) for name, s in given.items()}
        self.links: list[Link] = []

    def fabric(self, name: str) -> tuple[Fabric | None, list[Problem]]:
        used: dict[Endpoint, int] = {}
        for n, words in enumerate(self.spec.links):
            ends = [self._end(text, n) for text in (words.a, words.b)]
            if None in ends:
                continue
            for end in ends:
                assert end is not None
                if end in used:
                    line = self.source.marks.get(("links", used[end]), (0, 0))[0]
                    self._fault(("links", n), f"two links on {end}", f"the other stands in line {line}")
                used[end] = n
            a, b = sorted((e for e in ends if e is not None), key=lambda e: self._tier(e.node))
            self.links.append(self._link(a, b, words.length if self._said(n, "length") else 0))
        if self.problems:
            return None, self.problems
        link_at = {end: link for link in self.links for end in (link.a, link.b)}
        servers = self._servers()
        switches = tuple(self._switch(n.name, link_at) for n in self.spec.nodes)
        sessions = [x for s in self.given.values() if s.routing.bgp for x in s.routing.bgp.sessions]
        families = tuple(f for f in (4, 6) if any(f in x.families for x in sessions)) or self._families()
        qos = roce_class(self.given.values())
        if "qos" in self.source.data:
            from fabtest.topology.load import qos_intent

            qos = qos_intent(self.spec)
        mtus = [link.mtu for link in self.links]
        fabric = Fabric(
            name=name,
            shape=Shape.CUSTOM,
            switches=switches,
            servers=servers,
            links=tuple(self.links),
            bgp=timers(sessions),
            qos=qos,
            failover=FailoverBounds(self.spec.failover.carrier_loss, self.spec.failover.silent_loss),
            families=families,
            unnumbered=any(x.is_interface for x in sessions),
            mtu=max(mtus, default=DEFAULT_MTU),
            emulation=Emulation(**self.spec.emulation.model_dump()),
        )
        return fabric, []

    def _fault(self, path: tuple[str | int, ...], what: str, remedy: str = "") -> None:
        self.problems.append(self.source.problem(path, what, remedy))

    def _said(self, link: int, key: str) -> bool:
        return key in self.source.data["links"][link]

    def _tier(self, node: str) -> Tier:
        return Tier[self.node[node].tier.upper()] if node in self.node else Tier.SERVER

    # -------------------------------------------------------------------------------------------------------- links

    def _end(self, text: str, n: int) -> Endpoint | None:
        node, _, port = text.partition(":")
        if not port:
            self._fault(("links", n), f"{text!r} names no port", "write node:port; given configurations have theirs")
        elif node in self.given:
            own = self.given[node].port_of.get(port)
            if own is None:
                self._fault(("links", n), f"{node} has no port {port}", "see PORT in its config_db.json")
                return None
            return Endpoint(node, own)
        elif not re.fullmatch(r"eth[1-9]\d{0,2}", port):
            self._fault(("links", n), f"{text} is not a NIC port", "servers have eth1, eth2, …")
        else:
            return Endpoint(node, port)
        return None

    def _link(self, a: Endpoint, b: Endpoint, length: int) -> Link:
        rows = [self.given[e.node].config["PORT"][e.port] for e in (a, b) if e.node in self.given]
        speeds = [speed for row in rows if (speed := number(row.get("speed")))]
        mtus = [port_mtu(row) for row in rows]
        tier = self._tier(a.node)
        one = self.node[b.node if tier is Tier.SERVER else a.node]
        lengths = [m for e in (b, a) if e.node in self.given and (m := cable_length(self.given[e.node].config, e.port))]
        return Link(
            a, b, tier, min(speeds, default=1) * 10**6, max(mtus), length or (lengths[0] if lengths else 1), one.plane,
            one.rail,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------ servers

    def _servers(self) -> tuple[Server, ...]:
        ends: dict[str, list[_End]] = defaultdict(list)
        for link in self.links:
            if link.tier is Tier.SERVER:
                ends[link.a.node].append(_End(link.a.port, link.b, link))
        hosts = self._vlan_hosts()
        found = []
        for n, words in enumerate(self.spec.servers):
            ports = []
            for end in sorted(ends[words.name], key=lambda e: int(e.nic.removeprefix("eth"))):
                addresses, gateways = self._attachment(end, hosts)
                mac = generated_mac(0x10, n + 1, int(end.nic.removeprefix("eth")))
                plane = self.node[end.leaf.node].plane
                ports.append(
                    NicPort(end.nic, plane, mac, end.link.speed, end.link.mtu, addresses, gateways, end.leaf)
                )  # fmt: skip
            found.append(Server(words.name, n + 1, words.unit, tuple(self._nics(ports, words.gpus_per_nic))))
        return tuple(found)

    def _nics(self, ports: list[NicPort], gpus: int) -> Iterable[Nic]:
        """A NIC per port; with rails, the ports of one rail (in several planes) are one NIC."""
        rails = [self.node[p.leaf.node].rail for p in ports]
        if None in rails or len({(r, p.plane) for r, p in zip(rails, ports, strict=True)}) < len(ports):
            return [Nic(n, rail, gpus, (p,)) for n, (rail, p) in enumerate(zip(rails, ports, strict=True), 1)]
        groups: dict[int, list[NicPort]] = defaultdict(list)
        for rail, port in zip(rails, ports, strict=True):
            assert rail is not None
            groups[rail].append(port)
        return [Nic(rail, rail, gpus, tuple(groups[rail])) for rail in sorted(groups)]

    def _vlan_hosts(self) -> dict[Endpoint, int]:
        """Place of every server port in its VLAN's subnet, which may be on several leaves (an anycast gateway)."""
        found: dict[Endpoint, int] = {}
        taken: dict[tuple[Interface, ...], int] = defaultdict(int)
        for name, vlans in self.vlans.items():
            cabled = [link.b.port for link in self.links if link.tier is Tier.SERVER and link.b.node == name]
            for vlan in vlans:
                for port in (p for p in cabled if p in vlan.members):
                    found[Endpoint(name, port)] = taken[vlan.addresses]
                    taken[vlan.addresses] += 1
        return found

    def _attachment(
        self, end: _End, hosts: Mapping[Endpoint, int]
    ) -> tuple[tuple[Interface, ...], tuple[IPv4Address | IPv6Address, ...]]:
        """Addresses of a NIC port beside the leaf's: the other one of a subnet for two, else the next that is free."""
        gateways = list(self.routed[end.leaf.node].get(end.leaf.port, ()))
        place = 0
        for vlan in self.vlans[end.leaf.node]:
            if end.leaf.port in vlan.members and not gateways:
                gateways, place = list(vlan.addresses), hosts[end.leaf]
        chosen: dict[int, tuple[Interface, Interface]] = {}
        for gateway in gateways:
            if gateway.version in chosen or gateway.ip.is_link_local:
                continue
            address = _beside(gateway, place)
            if address is not None:
                chosen[gateway.version] = (address, gateway)
        pairs = [chosen[v] for v in sorted(chosen)]
        return tuple(a for a, _ in pairs), tuple(g.ip for _, g in pairs)

    # ------------------------------------------------------------------------------------------------------ switches

    def _switch(self, name: str, link_at: Mapping[Endpoint, Link]) -> Switch:
        s, words = self.given[name], self.node[name]
        config = s.config
        metadata = config.get("DEVICE_METADATA", {}).get("localhost", {})
        bgp = s.routing.bgp
        ports = switch_ports(config)
        loopbacks = tuple(a for found in addresses_of(config, "LOOPBACK_INTERFACE").values() for a in found)
        routed = {port: tuple(a) for port, a in self.routed[name].items() if Endpoint(name, port) in link_at}
        mac = str(metadata.get("mac", "")).lower()
        tier = Tier[words.tier.upper()]
        if not _MAC.match(mac):
            ordinal = [n.name for n in self.spec.nodes].index(name) + 1
            mac = generated_mac(int(tier), words.plane << 16 | ordinal, 0)
        server_ports = [e.port for e, link in link_at.items() if e.node == name and link.tier is Tier.SERVER]
        networks = self._networks(s)
        return Switch(
            name=name,
            tier=tier,
            plane=words.plane,
            unit=words.unit,
            rail=words.rail,
            kind=hardware(config, ports),
            mac=mac,
            asn=bgp.asn if bgp else 0,
            router_id=(bgp and bgp.router_id) or next((str(a.ip) for a in loopbacks if a.version == 4), "0.0.0.0"),
            loopbacks=loopbacks,
            ports=ports,
            addresses=routed,
            vlans=self.vlans[name],
            server_prefixes=self._server_prefixes(name, server_ports, networks),
            sessions=self._sessions(name, link_at),
            hash=hashing(s),
            bgp=SwitchBgp(
                networks, tuple(bgp.max_paths.items()) if bgp else (), bgp.multipath_relax if bgp else True
            ),
            given={n: s.files[n] for n in USED if n in s.files},
        )  # fmt: skip

    def _connected(self, name: str) -> list[Interface]:
        found: list[Interface] = [a for addresses in self.routed[name].values() for a in addresses]
        found += [a for vlan in self.vlans[name] for a in vlan.addresses]
        loopbacks = addresses_of(self.given[name].config, "LOOPBACK_INTERFACE")
        return found + [a for addresses in loopbacks.values() for a in addresses]

    def _networks(self, s: GivenSwitch) -> tuple[Network, ...]:
        """What a switch brings into BGP: its network statements (FRR looks for a route of each, unless told not to)
        and redistributed connected routes of interfaces that are up."""
        bgp = s.routing.bgp
        if bgp is None:
            return ()
        have = {a.network for a in self._connected(s.name)}
        found = [n for n in bgp.networks if not bgp.import_check or n in have]
        for family, passes in bgp.redistribute.items():
            found += [
                n
                for n in sorted(self._up_networks(s), key=str)
                if n.version == family and (passes is None or passes.permits(n))
            ]
        return tuple(dict.fromkeys(found))

    def _up_networks(self, s: GivenSwitch) -> set[Network]:
        """Connected networks of interfaces with a cable, of VLANs with one, and of loopbacks."""
        cabled = {e.port for link in self.links for e in (link.a, link.b) if e.node == s.name}
        up = {p for p, row in s.config.get("PORT", {}).items() if row.get("admin_status") == "up"} & cabled
        found = [a for port, addresses in self.routed[s.name].items() if port in up for a in addresses]
        found += [a for vlan in self.vlans[s.name] if up & set(vlan.members) for a in vlan.addresses]
        loopbacks = addresses_of(s.config, "LOOPBACK_INTERFACE")
        return {a.network for a in found} | {a.network for found_ in loopbacks.values() for a in found_}

    def _server_prefixes(self, name: str, ports: list[str], networks: tuple[Network, ...]) -> tuple[Network, ...]:
        """Prefixes that hold the servers: what is advertised of them, else their subnets."""
        subnets = [a.network for p in ports for a in self.routed[name].get(p, ())]
        subnets += [a.network for v in self.vlans[name] if set(ports) & set(v.members) for a in v.addresses]
        found = []
        for subnet in subnets:
            covering = [n for n in networks if _within(subnet, n)]
            found.append(max(covering, key=lambda n: n.prefixlen) if covering else subnet)
        return tuple(dict.fromkeys(found))

    def _sessions(self, name: str, link_at: Mapping[Endpoint, Link]) -> tuple[BgpSession, ...]:
        """Sessions over one cable, one per port for both families; what is shut down is not expected."""
        bgp = self.given[name].routing.bgp
        by_port: dict[str, BgpSession] = {}
        for x in bgp.sessions if bgp else ():
            found = None if x.shutdown else self._over(name, x, link_at)
            if found is None:
                continue
            port, local, remote = found
            far = link_at[Endpoint(name, port)].other(name)
            theirs = self.given[far.node].routing.bgp
            asn = x.asn if isinstance(x.asn, int) else theirs.asn if theirs else 0
            new = BgpSession(
                port, far.node, far.port, asn, local, remote, x.families or NO_FAMILY, x.allow_own_as,
                tuple(x.exports.items()), tuple(x.accepts.items()),
            )  # fmt: skip
            old = by_port.get(port)
            by_port[port] = new if old is None else BgpSession(
                port, far.node, far.port, asn, (*old.local, *local), (*old.remote, *remote),
                tuple(sorted({*old.families, *x.families})), max(old.allow_own_as, x.allow_own_as),
                (*old.exports, *new.exports), (*old.accepts, *new.accepts),
            )  # fmt: skip
        order = {p: n for n, p in enumerate(self.given[name].config.get("PORT", {}))}
        return tuple(sorted(by_port.values(), key=lambda b: order[b.port]))

    def _over(
        self, name: str, x: Session, link_at: Mapping[Endpoint, Link]
    ) -> tuple[str, tuple[Interface, ...], tuple[Interface, ...]] | None:
        """The port a session runs over, with both ends' addresses; None where it is not between two switches here."""
        if x.is_interface:
            link = link_at.get(Endpoint(name, x.peer))
            return (x.peer, (), ()) if link is not None and link.tier is not Tier.SERVER else None
        peer = ip_address(x.peer)
        for port, addresses in self.routed[name].items():
            link = link_at.get(Endpoint(name, port))
            for a in addresses:
                if peer in a.network and peer != a.ip and link is not None and link.tier is not Tier.SERVER:
                    return port, (a,), (ip_interface(f"{peer}/{a.network.prefixlen}"),)
        return None

    def _families(self) -> tuple[int, ...]:
        versions = {a.version for name in self.given for a in self._connected(name)}
        return tuple(v for v in (4, 6) if v in versions) or (4,)


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _beside(gateway: Interface, place: int) -> Interface | None:
    """An address in the gateway's subnet: the other one where there are two, else the ``place``-th after it."""
    network = gateway.network
    if network.prefixlen >= network.max_prefixlen:
        return None
    if network.prefixlen >= network.max_prefixlen - 1:
        other = next(a for a in network if a != gateway.ip)
        return ip_interface(f"{other}/{network.prefixlen}")
    last = network.num_addresses - 2
    offset = int(gateway.ip) - int(network.network_address) + 1 + place
    if offset > last:
        offset = 1 + (offset - 1) % last
    address = network.network_address + offset
    return None if address == gateway.ip else ip_interface(f"{address}/{network.prefixlen}")
