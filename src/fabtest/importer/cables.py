"""What is plugged where, as far as configurations tell. Pure.

Evidence is asked in this order, and the first that tells a port's far end is believed: DEVICE_NEIGHBOR, LLDP, shared
point-to-point subnets, BGP neighbours, ``cabling.csv``. What later evidence says otherwise is a contradiction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from fabtest.importer.files import GivenSwitch, node_name
from fabtest.lint.cabling import CablingRow
from fabtest.lint.run import natural
from fabtest.sonic.db import ConfigDb

SOURCES = ("DEVICE_NEIGHBOR", "LLDP", "subnet", "BGP", "cabling.csv")
#: DEVICE_NEIGHBOR types that are not switches (SONiC's minigraph has these words).
NOT_SWITCHES = ("server", "host", "compute", "gpu", "storage")


@dataclass(frozen=True, slots=True)
class Claim:
    """What one source says of the far end of a port; ``port`` is "" where it does not say."""

    node: str
    port: str
    source: str

    def __str__(self) -> str:
        return f"{self.node}:{self.port}" if self.port else self.node


@dataclass(frozen=True, slots=True)
class FoundCable:
    """A cable: both ends, and what told of it. A server is always ``a``; ``length_m`` 0 is not known."""

    a: str
    a_port: str
    b: str
    b_port: str
    source: str
    length_m: int = 0


@dataclass(slots=True)
class Cabling:
    """The whole of it. ``servers`` in natural order; ``missing`` are ends nobody tells, a sentence each."""

    cables: list[FoundCable] = field(default_factory=list)
    servers: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def addresses_of(config: ConfigDb, table: str) -> dict[str, list[IPv4Interface | IPv6Interface]]:
    """Interface -> addresses of INTERFACE, VLAN_INTERFACE or LOOPBACK_INTERFACE; what is no address is left out."""
    found: dict[str, list[IPv4Interface | IPv6Interface]] = defaultdict(list)
    for key in config.get(table, {}):
        name, _, prefix = key.partition("|")
        if prefix:
            try:
                found[name].append(ip_interface(prefix))
            except ValueError:
                continue
    return found


def infer_cables(switches: Sequence[GivenSwitch], cabling: Sequence[CablingRow] = ()) -> Cabling:
    """Cables between the switches, and to servers, which have no configuration here."""
    return _Inference(switches, cabling).run()


class _Inference:
    def __init__(self, switches: Sequence[GivenSwitch], cabling: Sequence[CablingRow]) -> None:
        self.switches = {s.name: s for s in switches}
        self.by_host = {s.hostname.lower(): s.name for s in switches} | {s.name: s.name for s in switches}
        self.rows = cabling
        self.result = Cabling()
        self.claims: dict[tuple[str, str], list[Claim]] = defaultdict(list)
        self.kinds: dict[str, str] = {}
        self.lengths: dict[tuple[str, str], int] = {}
        self.wired: set[tuple[str, str]] = set()
        self.session_ports: dict[str, frozenset[str]] = {}

    def run(self) -> Cabling:
        for s in self.switches.values():
            self._device_neighbour(s)
        for s in self.switches.values():
            for port, (far, far_port) in s.lldp.items():
                self._claim(s.name, port, far, far_port, "LLDP")
        self._subnets()
        self._bgp()
        self._cabling_rows()
        for s in self.switches.values():
            for port in s.config.get("PORT", {}):
                self._settle(s.name, port)
        self._unnamed_servers()
        self._number_nics()
        return self.result

    # ------------------------------------------------------------------------------------------------- evidence

    def _node(self, name: str) -> str:
        short = name.lower().partition(".")[0]  # LLDP tells whole domain names
        return self.by_host.get(name.lower()) or self.by_host.get(short) or node_name(name)

    def _claim(self, switch: str, port: str, far: str, far_port: str, source: str) -> None:
        node = self._node(far)
        if not node:
            return
        own = self.switches[switch].port_of.get(port)
        if own is None:
            if source == "DEVICE_NEIGHBOR":
                self.result.notes.append(f"{switch}: {source}|{port} names a port that PORT does not have")
            return
        there = self.switches.get(node)
        if there is not None:
            known = there.port_of.get(far_port)
            if known is None and far_port:
                self.result.contradictions.append(
                    f"{switch}:{own}: {source} says {node}:{far_port}, and {node} has no such port"
                )
            far_port = known or ""
        self.claims[switch, own].append(Claim(node, far_port, source))

    def _device_neighbour(self, s: GivenSwitch) -> None:
        metadata = s.config.get("DEVICE_NEIGHBOR_METADATA", {})
        for port, row in s.config.get("DEVICE_NEIGHBOR", {}).items():
            far = _text(row.get("name"))
            if far:
                kind = _text(row.get("type")) or _text(metadata.get(far, {}).get("type"))
                if kind:
                    self.kinds.setdefault(self._node(far), kind)
                self._claim(s.name, port, far, _text(row.get("port")), "DEVICE_NEIGHBOR")

    def _subnets(self) -> None:
        """Two ports that share a subnet for two are the ends of a cable."""
        owners: dict[object, list[tuple[str, str]]] = defaultdict(list)
        addresses: dict[object, list[object]] = defaultdict(list)
        for s in self.switches.values():
            for port, found in addresses_of(s.config, "INTERFACE").items():
                for a in found:
                    if port in s.config.get("PORT", {}) and a.network.prefixlen >= a.max_prefixlen - 2:
                        owners[a.network].append((s.name, port))
                        addresses[a.network].append(a.ip)
        for network, ends in owners.items():
            nodes = sorted({node for node, _ in ends}, key=natural)
            if len(ends) == 2 and len(set(addresses[network])) == 1:
                where = " and ".join(f"{node}:{port}" for node, port in ends)
                self.result.notes.append(f"{addresses[network][0]} is on {where}: taken as two subnets of one address")
            elif len(ends) == 2 and len(nodes) == 2:
                for near, far in (ends, reversed(ends)):
                    self.claims[near].append(Claim(*far, "subnet"))
            elif len(ends) > 2:
                where = ", ".join(f"{node}:{port}" for node, port in ends)
                self.result.contradictions.append(f"{network} is on {len(ends)} ports: {where}")

    def _bgp(self) -> None:
        """A neighbour's name, of the port that has its local address."""
        for s in self.switches.values():
            port_at = {a.ip: port for port, found in addresses_of(s.config, "INTERFACE").items() for a in found}
            for row in s.config.get("BGP_NEIGHBOR", {}).values():
                try:
                    port = port_at.get(ip_address(_text(row.get("local_addr"))))
                except ValueError:
                    continue
                name = _text(row.get("name"))
                if port is not None and name and self._node(name) in self.switches:
                    self._claim(s.name, port, name, "", "BGP")

    def _cabling_rows(self) -> None:
        for row in self.rows:
            for near, port, far, far_port in ((row.a, row.a_port, row.b, row.b_port),
                                              (row.b, row.b_port, row.a, row.a_port)):  # fmt: skip
                node = self._node(near)
                if node in self.switches:
                    self._claim(node, port, far, far_port, "cabling.csv")
                    own = self.switches[node].port_of.get(port)
                    if own and row.length_m:
                        self.lengths[node, own] = row.length_m

    # ------------------------------------------------------------------------------------------------- judgement

    def _believed(self, switch: str, port: str) -> Claim | None:
        """The first claim, with its port from a later one that names the same node; contradictions are noted."""
        claims = self.claims.get((switch, port), [])
        if not claims:
            return None
        best = claims[0]
        for claim in claims[1:]:
            if claim.node != best.node or (best.port and claim.port and claim.port != best.port):
                text = f"{switch}:{port}: {best.source} says {best}, {claim.source} says {claim}"
                if text not in self.result.contradictions:
                    self.result.contradictions.append(text)
            elif not best.port and claim.port:
                best = Claim(best.node, claim.port, f"{best.source}, {claim.source}")
        return best

    def _settle(self, switch: str, port: str) -> None:
        if (switch, port) in self.wired:
            return
        claim = self._believed(switch, port)
        if claim is None:
            return
        if claim.node not in self.switches:
            self._outside(switch, port, claim)
            return
        if claim.node == switch:
            self.result.missing.append(f"{switch}:{port}: {claim.source} says that it leads to {switch} itself")
            return
        far = (claim.node, claim.port) if claim.port else self._found_from_there(switch, port, claim.node)
        if far is None:
            self.result.missing.append(
                f"{switch}:{port} leads to {claim.node} ({claim.source}), to which port of it nothing tells"
            )
            return
        back = self._believed(*far)
        if back is not None and (back.node != switch or (back.port and back.port != port)):
            self.result.missing.append(
                f"{switch}:{port}: {claim.source} says {far[0]}:{far[1]}, which says {back} ({back.source})"
            )
            return
        if far in self.wired:
            self.result.missing.append(
                f"{switch}:{port}: {claim.source} says {far[0]}:{far[1]}, which has a cable already"
            )
            return
        self.wired |= {(switch, port), far}
        length = self.lengths.get((switch, port)) or self.lengths.get(far, 0)
        self.result.cables.append(FoundCable(switch, port, *far, claim.source, length))

    def _found_from_there(self, switch: str, port: str, far: str) -> tuple[str, str] | None:
        """The port of a neighbour that says it leads here."""
        found = [
            p
            for p in self.switches[far].config.get("PORT", {})
            if (claim := self._believed(far, p)) is not None and (claim.node, claim.port) == (switch, port)
        ]
        return (far, found[0]) if len(found) == 1 else None

    def _outside(self, switch: str, port: str, claim: Claim) -> None:
        """A far end without a configuration: a server, or a switch whose file is missing."""
        kind = self.kinds.get(claim.node, "")
        session = port in self._session_ports(switch)
        server = any(word in kind.lower() for word in NOT_SWITCHES) if kind else not session
        if not server:
            self.result.missing.append(
                f"{switch}:{port} leads to {claim.node}"
                + (f" ({kind})" if kind else "")
                + f": there is no {claim.node}/config_db.json"
            )
            return
        self.wired.add((switch, port))
        self.result.cables.append(
            FoundCable(claim.node, claim.port, switch, port, claim.source, self.lengths.get((switch, port), 0))
        )

    def _session_ports(self, switch: str) -> frozenset[str]:
        """Ports over which the switch has BGP sessions."""
        if switch not in self.session_ports:
            s = self.switches[switch]
            bgp = s.routing.bgp
            peers = {session.peer for session in bgp.sessions} if bgp else set()
            found = {p for p in peers if p in s.config.get("PORT", {})}
            for port, addresses in addresses_of(s.config, "INTERFACE").items():
                if any(str(host) in peers for a in addresses for host in _neighbours_of(a)):
                    found.add(port)
            self.session_ports[switch] = frozenset(found)
        return self.session_ports[switch]

    def _unnamed_servers(self) -> None:
        """Ports that are up, routed or in a VLAN, and of which nothing is said: a server of its own each."""
        number = 0
        taken = {c.a for c in self.result.cables} | set(self.switches)
        open_ends = {text.partition(" ")[0].rstrip(":") for text in self.result.missing}
        for s in self.switches.values():
            members = {key.partition("|")[2] for key in s.config.get("VLAN_MEMBER", {})}
            routed = addresses_of(s.config, "INTERFACE")
            sessions = self._session_ports(s.name)
            for port, row in s.config.get("PORT", {}).items():
                if (s.name, port) in self.wired or f"{s.name}:{port}" in open_ends or row.get("admin_status") != "up":
                    continue
                if port in sessions:
                    self.result.missing.append(f"{s.name}:{port} has a BGP session, with whom nothing tells")
                elif port in members or port in routed:
                    number += 1
                    while f"host{number}" in taken:
                        number += 1
                    self.result.cables.append(FoundCable(f"host{number}", "", s.name, port, "assumed"))
                    self.result.notes.append(f"{s.name}:{port}: nothing tells what is there; host{number} is assumed")

    def _number_nics(self) -> None:
        """Ports of servers are ``eth1`` and on. Names of that form stay if every port of the server has one."""
        ends: dict[str, list[int]] = defaultdict(list)
        for n, cable in enumerate(self.result.cables):
            if cable.a not in self.switches:
                ends[cable.a].append(n)
        self.result.servers = sorted(ends, key=natural)
        for server in self.result.servers:
            numbers = ends[server]
            names = [self.result.cables[n].a_port for n in numbers]
            if all(_is_eth(name) for name in names) and len(set(names)) == len(names):
                continue
            for place, n in enumerate(sorted(numbers, key=lambda n: natural(self.result.cables[n].a_port)), 1):
                cable = self.result.cables[n]
                if cable.a_port:
                    self.result.notes.append(f"{server}: {cable.a_port} is eth{place} in a lab")
                self.result.cables[n] = FoundCable(
                    server, f"eth{place}", cable.b, cable.b_port, cable.source, cable.length_m
                )  # fmt: skip


def _is_eth(name: str) -> bool:
    return name.startswith("eth") and name[3:].isdigit() and 0 < int(name[3:]) < 1000 and name[3] != "0"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _neighbours_of(a: IPv4Interface | IPv6Interface) -> list[object]:
    """The other addresses of a subnet for two."""
    if a.network.prefixlen < a.max_prefixlen - 2:
        return []
    return [host for host in a.network if host != a.ip]
