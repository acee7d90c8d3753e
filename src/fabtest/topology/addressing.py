"""The address plan: which address stands on which port, from pools, so that nothing moves when the fabric grows.

Server pool (default 10.0.0.0/8): a block per leaf (default /24). In rail fabrics the second octet tells plane and
rail (32 * (plane - 1) + rail), the third the unit; elsewhere they are the leaf's number. Inside a block server i of
the leaf (from 0) has the /31 at 2i: the leaf the even address, the NIC the odd one. With an access VLAN the SVI has
.1 and server i has .(2 + i).

Fabric pool (default 172.16.0.0/12): cut by tier and plane, then a stretch per lower switch as long as its radix,
then a /31 per uplink. Loopback pool: cut by tier and plane, then by number. IPv6 pools are cut the same way, a /64
per leaf and a /127 per link.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_network
from typing import Any

from fabtest.errors import Problem
from fabtest.model import Tier
from fabtest.topology.schema import AddressingSpec
from fabtest.topology.source import Source
from fabtest.topology.wiring import Cable, SwitchDecl, Wiring

Net = IPv4Network | IPv6Network
Iface = IPv4Interface | IPv6Interface


def check_pools(spec: AddressingSpec, source: Source) -> list[Problem]:
    """Pools of one family must not overlap, and blocks must fit."""
    problems = []
    names = ["server_pool", "fabric_pool", "loopback_pool"]
    for suffix in ("", "_v6"):
        pools = [(n + suffix, ip_network(getattr(spec, n + suffix))) for n in names]
        for i, (name, pool) in enumerate(pools):
            for other, earlier in pools[:i]:
                if pool.overlaps(earlier):
                    problems.append(
                        source.problem(
                            ("addressing", name),
                            f"{pool} overlaps {other} {earlier}",
                            "give each pool its own range",
                        )
                    )
    pool4 = ip_network(spec.server_pool)
    if spec.leaf_prefix_length < pool4.prefixlen:
        problems.append(
            source.problem(
                ("addressing", "leaf_prefix_length"),
                f"a /{spec.leaf_prefix_length} block does not fit server_pool {pool4}",
                f"use more than {pool4.prefixlen}",
            )
        )
    return problems


@dataclass(slots=True)
class _Pool:
    """One family's pool for one purpose, addressed by offset."""

    net: Any
    v6: bool

    def interface(self, offset: int, prefixlen: int) -> Iface:
        base = int(self.net.network_address) + offset
        return IPv6Interface((base, prefixlen)) if self.v6 else IPv4Interface((base, prefixlen))

    def holds(self, offset: int) -> bool:
        return bool(0 <= offset < self.net.num_addresses)


class AddressPlan:
    """Hands out addresses for a wiring. Faults gather in ``problems``; what is handed out then is not to be used."""

    def __init__(self, spec: AddressingSpec, wiring: Wiring, source: Source) -> None:
        self.spec = spec
        self.source = source
        self.problems: list[Problem] = []
        self._families = {"ipv4": (4,), "ipv6": (6,), "dual": (4, 6)}[spec.families]
        self._planes = max((s.plane for s in wiring.switches), default=1)
        rails = [s.rail for s in wiring.switches if s.tier is Tier.LEAF]
        self._by_rail = bool(rails) and None not in rails and source.data.get("kind") != "custom"
        self._rails = max((r for r in rails if r), default=0)
        radix = max((s.kind.ports * (s.up_breakout or (1, 0))[0] for s in wiring.switches), default=1)
        self._stride = 1 << (radix - 1).bit_length()
        self._reported: set[str] = set()

    @property
    def families(self) -> tuple[int, ...]:
        """4, 6 or both."""
        return self._families

    def _pool(self, purpose: str, family: int) -> _Pool:
        suffix = "_v6" if family == 6 else ""
        return _Pool(ip_network(getattr(self.spec, f"{purpose}_pool{suffix}")), family == 6)

    def _full(self, key: str, what: str, remedy: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self.problems.append(self.source.problem(("addressing", key), what, remedy))

    def _block_number(self, leaf: SwitchDecl, bits: int) -> int | None:
        """The number of a leaf's block among 2**bits, or None if it does not fit."""
        if self._by_rail and leaf.rail and leaf.unit:
            if bits >= 16:
                plane_bits, rail_bits = 3, 5
            else:
                plane_bits, rail_bits = (self._planes - 1).bit_length(), self._rails.bit_length()
            unit_bits = bits - plane_bits - rail_bits
            if unit_bits < 1 or leaf.unit >= 1 << unit_bits:
                return None
            return ((leaf.plane - 1) << rail_bits | leaf.rail) << unit_bits | leaf.unit
        per_plane = 1 << max(bits - (self._planes - 1).bit_length(), 0)
        if leaf.ordinal + 1 >= per_plane:
            return None
        return (leaf.plane - 1) * per_plane + leaf.ordinal + 1

    def leaf_block(self, leaf: SwitchDecl, family: int) -> Net | None:
        """The prefix a leaf advertises for its servers."""
        pool = self._pool("server", family)
        length = 64 if family == 6 else self.spec.leaf_prefix_length
        bits = length - pool.net.prefixlen
        number = self._block_number(leaf, bits) if bits >= 0 else None
        if number is None:
            key = "server_pool_v6" if family == 6 else "server_pool"
            self._full(key, f"{pool.net} is too small: no /{length} block for {leaf.name}", "use a larger pool")
            return None
        base = int(pool.net.network_address) + (number << ((128 if family == 6 else 32) - length))
        return IPv6Network((base, length)) if family == 6 else IPv4Network((base, length))

    def attachment(self, leaf: SwitchDecl, slot: int, family: int) -> tuple[Iface, Iface] | None:
        """(leaf side, NIC side) of the routed link at downlink ``slot`` of a leaf."""
        block = self.leaf_block(leaf, family)
        if block is None:
            return None
        if 2 * slot + 1 >= block.num_addresses:
            self._full("leaf_prefix_length", f"{block} of {leaf.name} has no room for {slot + 1} NICs", "use less")
            return None
        base, length = int(block.network_address), 127 if family == 6 else 31
        pool = self._pool("server", family)
        offset = base - int(pool.net.network_address) + 2 * slot
        return pool.interface(offset, length), pool.interface(offset + 1, length)

    def vlan_gateway(self, leaf: SwitchDecl, family: int) -> Iface | None:
        """The SVI's address in a leaf's block."""
        return self._in_block(leaf, 1, family)

    def vlan_host(self, leaf: SwitchDecl, slot: int, family: int) -> Iface | None:
        """The address of the NIC at downlink ``slot`` in a leaf's VLAN."""
        return self._in_block(leaf, 2 + slot, family)

    def _in_block(self, leaf: SwitchDecl, offset: int, family: int) -> Iface | None:
        block = self.leaf_block(leaf, family)
        if block is None:
            return None
        if offset >= block.num_addresses - 1:
            self._full("leaf_prefix_length", f"{block} of {leaf.name} has no room for {offset - 1} NICs", "use less")
            return None
        value = (int(block.network_address) + offset, block.prefixlen)
        return IPv6Interface(value) if family == 6 else IPv4Interface(value)

    def fabric_link(self, lower: SwitchDecl, cable: Cable, family: int) -> tuple[Iface, Iface] | None:
        """(lower side, upper side) of a link between switches."""
        pool = self._pool("fabric", family)
        number = self._cut(pool, lower, self._stride * 2) + 2 * cable.uplink
        if not pool.holds(number + 1) or cable.uplink >= self._stride or self._overflows(pool, lower, self._stride * 2):
            key = "fabric_pool_v6" if family == 6 else "fabric_pool"
            self._full(key, f"{pool.net} is too small for the links of {lower.name}", "use a larger pool")
            return None
        length = 127 if family == 6 else 31
        return pool.interface(number, length), pool.interface(number + 1, length)

    def loopback(self, switch: SwitchDecl, family: int) -> Iface | None:
        """A switch's loopback."""
        pool = self._pool("loopback", family)
        number = self._cut(pool, switch, 1) + 1
        if not pool.holds(number) or self._overflows(pool, switch, 1):
            key = "loopback_pool_v6" if family == 6 else "loopback_pool"
            self._full(key, f"{pool.net} is too small for the loopback of {switch.name}", "use a larger pool")
            return None
        return pool.interface(number, 128 if family == 6 else 32)

    def _share(self, pool: _Pool) -> int:
        """Addresses of one (tier, plane) part: the pool is cut in four by tier, then by plane."""
        planes = 1 << (self._planes - 1).bit_length()
        return int(pool.net.num_addresses) // 4 // planes

    def _cut(self, pool: _Pool, switch: SwitchDecl, stretch: int) -> int:
        planes = 1 << (self._planes - 1).bit_length()
        part = {Tier.LEAF: 0, Tier.SPINE: 1, Tier.SUPERSPINE: 2}[switch.tier] * planes + switch.plane - 1
        return part * self._share(pool) + switch.ordinal * stretch

    def _overflows(self, pool: _Pool, switch: SwitchDecl, stretch: int) -> bool:
        return (switch.ordinal + 1) * stretch >= self._share(pool)
