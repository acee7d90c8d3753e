"""Switches, servers, ports, links and addresses of one fabric.

Units: speeds in bit/s, MTU in bytes (IP packet, as SONiC's PORT.mtu), cable lengths in metres, times in
milliseconds unless a name says otherwise. Numbers that people see (unit, rail, plane, pod, server) start at 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    collapse_addresses,
)

from fabtest.model.policy import RouteFilter
from fabtest.model.qos import QosIntent

IPInterface = IPv4Interface | IPv6Interface
IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network


class Tier(IntEnum):
    """Distance from the servers."""

    SERVER = 0
    LEAF = 1
    SPINE = 2
    SUPERSPINE = 3


class Shape(StrEnum):
    """The kinds of fabric a topology file can ask for."""

    CLOS = "clos"
    RAIL = "rail"
    RAIL_ONLY = "rail-only"
    DUAL_PLANE = "dual-plane"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class SwitchKind:
    """The hardware of a switch as far as its configuration shows it."""

    hwsku: str
    platform: str
    ports: int
    port_speed: int
    lanes_per_port: int
    fec: str
    first_lane: int = 1


@dataclass(frozen=True, slots=True)
class Port:
    """A switch port. ``breakout`` is SONiC's mode of the front-panel port it belongs to, as ``2x400G``."""

    name: str
    alias: str
    index: int
    lanes: tuple[int, ...]
    speed: int
    subport: int
    breakout: str
    parent: str
    fec: str


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One end of a link."""

    node: str
    port: str

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


@dataclass(frozen=True, slots=True)
class Link:
    """A cable. ``a`` is the end nearer to the servers. ``tier`` is the tier of ``a``."""

    a: Endpoint
    b: Endpoint
    tier: Tier
    speed: int
    mtu: int
    length_m: int
    plane: int = 1
    rail: int | None = None

    def other(self, node: str) -> Endpoint:
        """The far end, seen from ``node``."""
        return self.b if self.a.node == node else self.a

    def end(self, node: str) -> Endpoint:
        """This end, seen from ``node``."""
        return self.a if self.a.node == node else self.b

    def __str__(self) -> str:
        return f"{self.a} -- {self.b}"


@dataclass(frozen=True, slots=True)
class BgpSession:
    """An eBGP session of a switch over one of its ports. Addresses are None where links are unnumbered."""

    port: str
    peer: str
    peer_port: str
    peer_asn: int
    local: tuple[IPInterface, ...]
    remote: tuple[IPInterface, ...]
    #: Of given configurations: families exchanged (none: all of the fabric's), how often the own ASN may stand in a
    #: path, and per family what passes each way (nothing given: everything).
    families: tuple[int, ...] = ()
    allow_own_as: int = 0
    exports: tuple[tuple[int, RouteFilter], ...] = ()
    accepts: tuple[tuple[int, RouteFilter], ...] = ()

    @property
    def unnumbered(self) -> bool:
        """Whether the session runs over IPv6 link-local addresses (RFC 8950)."""
        return not self.remote


@dataclass(frozen=True, slots=True)
class Vlan:
    """An access VLAN with an SVI. ``members`` are untagged ports."""

    vid: int
    members: tuple[str, ...]
    addresses: tuple[IPInterface, ...]

    @property
    def name(self) -> str:
        """The name SONiC gives it."""
        return f"Vlan{self.vid}"


@dataclass(frozen=True, slots=True)
class HashIntent:
    """ECMP hashing of one switch: SONiC's SWITCH_HASH field names and the seed."""

    fields: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class SwitchBgp:
    """BGP of a switch whose configuration was given, where it need not be as the fabric's.

    ``networks``: what the switch brings into BGP; ``max_paths``: family -> ECMP width allowed.
    """

    networks: tuple[IPNetwork, ...]
    max_paths: tuple[tuple[int, int], ...]
    multipath_relax: bool


@dataclass(frozen=True)
class Switch:
    """One switch. ``addresses`` maps a routed port to its addresses; ``server_prefixes`` are what it advertises."""

    name: str
    tier: Tier
    plane: int
    unit: int | None
    rail: int | None
    kind: SwitchKind
    mac: str
    asn: int
    router_id: str
    loopbacks: tuple[IPInterface, ...]
    ports: tuple[Port, ...]
    addresses: dict[str, tuple[IPInterface, ...]]
    vlans: tuple[Vlan, ...]
    server_prefixes: tuple[IPNetwork, ...]
    sessions: tuple[BgpSession, ...]
    hash: HashIntent
    bgp: SwitchBgp | None = None
    #: Files of this switch that were given, by name; they are used as they are, and not rendered.
    given: dict[str, bytes] = field(default_factory=dict)

    @cached_property
    def port_named(self) -> dict[str, Port]:
        """Ports by name."""
        return {p.name: p for p in self.ports}

    @cached_property
    def originated(self) -> tuple[IPNetwork, ...]:
        """The prefixes the switch brings into BGP."""
        return self.bgp.networks if self.bgp else (*(loop.network for loop in self.loopbacks), *self.server_prefixes)

    @cached_property
    def connected(self) -> frozenset[IPNetwork]:
        """Prefixes on its own interfaces: no route of BGP takes their place."""
        found = [a for addresses in self.addresses.values() for a in addresses]
        found += [a for vlan in self.vlans for a in vlan.addresses]
        return frozenset(a.network for a in (*found, *self.loopbacks))


@dataclass(frozen=True, slots=True)
class NicPort:
    """One port of a NIC as the server's kernel sees it (``eth<n>``), with the leaf address it routes through."""

    name: str
    plane: int
    mac: str
    speed: int
    mtu: int
    addresses: tuple[IPInterface, ...]
    gateways: tuple[IPAddress, ...]
    leaf: Endpoint


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC: its number in the server (its rail in a rail fabric), the GPUs it serves, a port per plane."""

    number: int
    rail: int | None
    gpus: int
    ports: tuple[NicPort, ...]


@dataclass(frozen=True)
class Server:
    """A GPU server. ``index`` counts over the fabric from 1, ``unit`` is its scalable unit or pod."""

    name: str
    index: int
    unit: int | None
    nics: tuple[Nic, ...]

    @cached_property
    def ports(self) -> tuple[NicPort, ...]:
        """All NIC ports in the order of their names."""
        return tuple(p for nic in self.nics for p in nic.ports)


@dataclass(frozen=True, slots=True)
class BgpIntent:
    """Timers in seconds (BFD: milliseconds); ``max_paths`` is the ECMP width allowed."""

    keepalive_s: int = 3
    hold_s: int = 9
    connect_s: int = 10
    max_paths: int = 64
    bfd: bool = False
    bfd_interval_ms: int = 300
    bfd_multiplier: int = 3


@dataclass(frozen=True, slots=True)
class FailoverBounds:
    """Longest outage allowed, in milliseconds: with carrier loss, and without (added to the detection time)."""

    carrier_ms: int = 1000
    silent_extra_ms: int = 1000


@dataclass(frozen=True, slots=True)
class Emulation:
    """How a lab runs the fabric. ``runtime`` is ``netns`` or ``containerlab``; the rest is of containers but
    ``qp_hash``: ECMP of the emulated switches hashes the destination queue pair as well (E-ECMP), as no SONiC does.

    ``cpu`` (CPUs) and ``memory`` (as Docker writes it, ``2GB``) bound each switch; empty images are fabtest's own.
    """

    runtime: str = "netns"
    qp_hash: bool = False
    sonic_image: str = ""
    server_image: str = ""
    cpu: float | None = None
    memory: str = ""


@dataclass(frozen=True)
class Fabric:
    """A whole fabric. Order of switches, servers and links is deterministic and part of the value."""

    name: str
    shape: Shape
    switches: tuple[Switch, ...]
    servers: tuple[Server, ...]
    links: tuple[Link, ...]
    bgp: BgpIntent
    qos: QosIntent
    failover: FailoverBounds
    families: tuple[int, ...]
    unnumbered: bool
    mtu: int
    emulation: Emulation = Emulation()

    @property
    def qp_hash(self) -> bool:
        """Whether ECMP hashes the destination queue pair too."""
        return self.emulation.qp_hash

    @cached_property
    def switch(self) -> dict[str, Switch]:
        """Switches by name."""
        return {s.name: s for s in self.switches}

    @cached_property
    def server(self) -> dict[str, Server]:
        """Servers by name."""
        return {s.name: s for s in self.servers}

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """Every node, switches first."""
        return (*self.switch, *self.server)

    @cached_property
    def links_of(self) -> dict[str, tuple[Link, ...]]:
        """The links of each node, in link order."""
        found: dict[str, list[Link]] = {name: [] for name in self.node_names}
        for link in self.links:
            found[link.a.node].append(link)
            found[link.b.node].append(link)
        return {name: tuple(links) for name, links in found.items()}

    @cached_property
    def link_at(self) -> dict[Endpoint, Link]:
        """The link plugged into an endpoint."""
        return {end: link for link in self.links for end in (link.a, link.b)}

    @property
    def fabric_links(self) -> Iterator[Link]:
        """Links between switches."""
        return (link for link in self.links if link.tier is not Tier.SERVER)

    @cached_property
    def planes(self) -> tuple[int, ...]:
        """Plane numbers in use."""
        return tuple(sorted({s.plane for s in self.switches}))

    @cached_property
    def advertised(self) -> dict[int, tuple[IPNetwork, ...]]:
        """Per family the prefixes that cover what switches may advertise: loopbacks, server blocks."""
        found: dict[int, tuple[IPNetwork, ...]] = {}
        for family in self.families:
            loops = [loop.network for s in self.switches for loop in s.loopbacks if loop.version == family]
            blocks = [p for s in self.switches for p in s.server_prefixes if p.version == family]
            found[family] = tuple(_cover(group) for group in (loops, blocks) if group)
        return found

    @cached_property
    def rail_blocks(self) -> dict[tuple[int, int, int], tuple[IPNetwork, ...]]:
        """(rail, plane, family) -> the server prefixes of that rail, neighbours merged."""
        found: dict[tuple[int, int, int], list[IPNetwork]] = {}
        for s in self.switches:
            if s.rail is not None:
                for prefix in s.server_prefixes:
                    found.setdefault((s.rail, s.plane, prefix.version), []).append(prefix)
        return {key: tuple(collapse_addresses(blocks)) for key, blocks in found.items()}  # type: ignore[type-var]

    def links_between(self, a: str, b: str) -> tuple[Link, ...]:
        """Every cable between two nodes."""
        return tuple(link for link in self.links_of.get(a, ()) if link.other(a).node == b)


def _cover(networks: Sequence[IPNetwork]) -> IPNetwork:
    """The longest prefix that holds networks of one family."""
    low = min(int(n.network_address) for n in networks)
    high = max(int(n.broadcast_address) for n in networks)
    width = networks[0].max_prefixlen
    length = width - (low ^ high).bit_length()
    base = low >> (width - length) << (width - length)
    return IPv4Network((base, length)) if width == 32 else IPv6Network((base, length))
