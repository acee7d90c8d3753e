"""Switches, servers and cables before they have ports and addresses: what the shapes produce.

Order matters and is kept: ports, addresses and ASNs follow it, so a shape must list what can grow (units, servers)
last within its group. ``block`` numbers a leaf's server addresses and ``ordinal`` a switch within its tier and plane.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fabtest.model import SwitchKind, Tier
from fabtest.topology.source import Path


@dataclass(frozen=True, slots=True)
class SwitchDecl:
    """A switch to be built. ``group`` picks its shared ASN (spines of one pod and plane)."""

    name: str
    tier: Tier
    plane: int
    kind: SwitchKind
    ordinal: int
    group: int = 0
    unit: int | None = None
    rail: int | None = None
    block: int | None = None
    asn: int | None = None
    down_breakout: tuple[int, int] | None = None
    up_breakout: tuple[int, int] | None = None
    at: Path = ()


@dataclass(frozen=True, slots=True)
class ServerDecl:
    """A server to be built."""

    name: str
    index: int
    unit: int | None = None
    gpus_per_nic: int = 1
    at: Path = ()


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable to be plugged. ``a`` is nearer to the servers; a port that is None is chosen by ``ports``.

    ``slot`` is the 0-based place among the downlinks of ``b`` (and of nothing else), ``uplink`` the 0-based place
    among the uplinks of ``a``: they make port numbers independent of what is added later.
    """

    a: str
    b: str
    tier: Tier
    length_m: int
    plane: int = 1
    rail: int | None = None
    a_port: str | None = None
    b_port: str | None = None
    slot: int = 0
    uplink: int = 0
    speed: int | None = None
    mtu: int | None = None
    at: Path = ()


@dataclass(slots=True)
class Wiring:
    """A fabric as a drawing: no port numbers, no addresses."""

    switches: list[SwitchDecl] = field(default_factory=list)
    servers: list[ServerDecl] = field(default_factory=list)
    cables: list[Cable] = field(default_factory=list)
