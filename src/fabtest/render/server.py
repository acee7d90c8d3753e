"""What a GPU server needs so that every NIC is used: addresses, a table per NIC port, rules by source address.

A /31 (or VLAN address) per port, table 100+n with a default route through that port's leaf, a rule that sends what
the port's address sends through that table; in the main table a route per rail's block, so that traffic without a
source address leaves by the NIC of the destination's rail. The sysctls keep ARP on its own NIC.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_network
from typing import Any

from fabtest.model import Fabric, NicPort, Server
from fabtest.topology.routing import Network

FIRST_TABLE = 100
RULE_PRIORITY = 1000
SYSCTLS = {
    "net.ipv4.conf.all.arp_ignore": 1,
    "net.ipv4.conf.all.arp_announce": 2,
    "net.ipv4.conf.all.rp_filter": 2,
    "net.ipv4.conf.default.rp_filter": 2,
    "net.ipv6.conf.all.accept_ra": 0,
    "net.ipv6.conf.default.accept_ra": 0,
}


@dataclass(frozen=True, slots=True)
class Route:
    """A route of a server: through ``gateway`` on ``port``, in ``table``."""

    prefix: Network
    gateway: Any
    port: str
    table: int


@dataclass(frozen=True, slots=True)
class ServerNetwork:
    """Everything a server's kernel is told."""

    ports: tuple[NicPort, ...]
    routes: tuple[Route, ...]
    rules: tuple[tuple[IPv4Interface | IPv6Interface, int], ...]

    def as_json(self, server: Server) -> dict[str, Any]:
        """For ``network.json``."""
        return {
            "name": server.name,
            "sysctls": SYSCTLS,
            "ports": [
                {
                    "name": p.name,
                    "mac": p.mac,
                    "mtu": p.mtu,
                    "plane": p.plane,
                    "leaf": str(p.leaf),
                    "addresses": [str(a) for a in p.addresses],
                }
                for p in self.ports
            ],
            "routes": [
                {"prefix": str(r.prefix), "via": str(r.gateway), "dev": r.port, "table": r.table} for r in self.routes
            ],
            "rules": [{"from": str(a.ip), "table": table} for a, table in self.rules],
        }


def server_network(fabric: Fabric, server: Server) -> ServerNetwork:
    """The network of one server. Main-table routes are one per leaf block family and rail (or all, without rails)."""
    routes: list[Route] = []
    rules: list[tuple[IPv4Interface | IPv6Interface, int]] = []
    everything = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
    main: set[Network] = set()
    for n, port in enumerate(server.ports):
        table = FIRST_TABLE + n + 1
        leaf = fabric.switch[port.leaf.node]
        for address, gateway in zip(port.addresses, port.gateways, strict=True):
            routes.append(Route(everything[address.version], gateway, port.name, table))
            rules.append((address, table))
            for prefix in _main_prefixes(fabric, leaf.rail, leaf.plane, address.version):
                if prefix not in main:
                    main.add(prefix)
                    routes.append(Route(prefix, gateway, port.name, 254))
    return ServerNetwork(server.ports, tuple(routes), tuple(rules))


def _main_prefixes(fabric: Fabric, rail: int | None, plane: int, family: int) -> tuple[Network, ...]:
    """What the main table sends through a NIC of this rail and plane: everything where there are no rails."""
    if rail is None:
        return (ip_network("0.0.0.0/0" if family == 4 else "::/0"),)
    return fabric.rail_blocks.get((rail, plane, family), ())


def server_script(server: Server, network: ServerNetwork) -> str:
    """The same as iproute2 commands, for a real server (or to read)."""
    lines = [f"# {server.name}: addresses and per-NIC routing", "set -e"]
    lines += [f"sysctl -eqw {key}={value}" for key, value in SYSCTLS.items()]
    for port in network.ports:
        lines += [f"ip address replace {address} dev {port.name}" for address in port.addresses]
        lines.append(f"ip link set {port.name} mtu {port.mtu} up")
    for route in network.routes:
        lines.append(f"ip route replace {route.prefix} via {route.gateway} dev {route.port} table {route.table}")
    for n, (address, table) in enumerate(network.rules):
        family = "" if address.version == 4 else "-6 "
        lines.append(f"ip {family}rule del priority {RULE_PRIORITY + n} 2>/dev/null || true")
        lines.append(f"ip {family}rule add from {address.ip} lookup {table} priority {RULE_PRIORITY + n}")
    return "\n".join(lines) + "\n"
