"""What CONFIG_DB asks of the kernel: ports, addresses, VLANs, hash. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from fabtest.sonic.db import ConfigDb
from fabtest.sonic.hash import SAI_DEFAULT_FIELDS, KernelHash, kernel_hash

Interface = IPv4Interface | IPv6Interface
DEFAULT_MTU = 9100
#: Tables the kernel state follows; a change of any of them makes the agent look again.
TABLES = (
    "PORT", "INTERFACE", "LOOPBACK_INTERFACE", "VLAN", "VLAN_MEMBER", "VLAN_INTERFACE", "SWITCH_HASH",
    "DEVICE_METADATA", "LLDP",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PortIntent:
    """A port: administratively up, and its MTU in bytes."""

    admin_up: bool
    mtu: int


@dataclass(frozen=True, slots=True)
class SwitchIntent:
    """The whole of it. ``warnings`` names rows that cannot be honoured."""

    mac: str
    ports: dict[str, PortIntent]
    loopbacks: tuple[str, ...]
    vlans: dict[str, tuple[str, ...]]
    addresses: dict[str, frozenset[Interface]]
    hash: KernelHash
    lldp: bool
    warnings: tuple[str, ...] = field(default=())


def switch_intent(config: ConfigDb) -> SwitchIntent:
    """Read CONFIG_DB. Rows that mean nothing are warned about and skipped, as SONiC's daemons do."""
    warnings: list[str] = []
    ports = {
        name: PortIntent(row.get("admin_status") == "up", _mtu(name, row.get("mtu"), warnings))
        for name, row in config.get("PORT", {}).items()
    }
    addresses: dict[str, set[Interface]] = {}
    loopbacks: list[str] = []
    for table in ("INTERFACE", "LOOPBACK_INTERFACE", "VLAN_INTERFACE"):
        for key in config.get(table, {}):
            name, _, prefix = key.partition("|")
            if table == "LOOPBACK_INTERFACE" and name not in loopbacks:
                loopbacks.append(name)
            if table == "INTERFACE" and name not in ports:
                warnings.append(f"INTERFACE|{key}: there is no port {name}")
                continue
            if not prefix:
                addresses.setdefault(name, set())
                continue
            try:
                addresses.setdefault(name, set()).add(ip_interface(prefix))
            except ValueError:
                warnings.append(f"{table}|{key}: {prefix!r} is not an address")
    vlans: dict[str, list[str]] = {name: [] for name in config.get("VLAN", {})}
    for key, row in config.get("VLAN_MEMBER", {}).items():
        vlan, _, member = key.partition("|")
        if row.get("tagging_mode") != "untagged":
            warnings.append(f"VLAN_MEMBER|{key}: tagged members are not emulated")
        elif vlan not in vlans or member not in ports:
            warnings.append(f"VLAN_MEMBER|{key}: no such VLAN or port")
        else:
            vlans[vlan].append(member)
    hashing = config.get("SWITCH_HASH", {}).get("GLOBAL", {}).get("ecmp_hash")
    names = [hashing] if isinstance(hashing, str) else hashing
    kernel = kernel_hash(names or SAI_DEFAULT_FIELDS)
    if kernel.unsupported:
        what = ", ".join(kernel.unsupported)
        warnings.append(f"SWITCH_HASH|GLOBAL|ecmp_hash: the kernel does not hash {what}")
    metadata = config.get("DEVICE_METADATA", {}).get("localhost", {})
    return SwitchIntent(
        mac=str(metadata.get("mac", "")) or "02:00:00:00:00:01",
        ports=ports,
        loopbacks=tuple(loopbacks),
        vlans={name: tuple(members) for name, members in vlans.items()},
        addresses={name: frozenset(a) for name, a in addresses.items()},
        hash=kernel,
        lldp=config.get("LLDP", {}).get("GLOBAL", {}).get("enabled", "true") != "false",
        warnings=tuple(warnings),
    )


def _mtu(name: str, value: object, warnings: list[str]) -> int:
    try:
        mtu = int(str(value)) if value is not None else DEFAULT_MTU
    except ValueError:
        mtu = -1
    if not 68 <= mtu <= 9216:
        warnings.append(f"PORT|{name}|mtu: {value!r} is not an MTU; {DEFAULT_MTU} is used")
        return DEFAULT_MTU
    return mtu
