"""What a lab cannot honour of a given configuration: a warning per switch and feature, never an error. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fabtest.importer.files import GivenSwitch
from fabtest.sonic.frr_config import statements

#: Table -> what it is, and what a lab does instead.
UNSUPPORTED = {
    "PORTCHANNEL": "port channels: the members stay without one, and its addresses and sessions are not there",
    "MCLAG_DOMAIN": "MCLAG: not emulated",
    "VXLAN_TUNNEL": "VXLAN: the overlay is not there, the underlay is",
    "VNET": "VNETs: not emulated",
    "ACL_TABLE": "ACLs: nothing is filtered",
    "MIRROR_SESSION": "mirroring: nothing is mirrored",
    "NAT_GLOBAL": "NAT: not emulated",
    "STATIC_ROUTE": "static routes: not installed",
    "MACSEC_PROFILE": "MACsec: links are in the clear",
    "SFLOW": "sFlow: nothing is sampled",
    "DHCP_RELAY": "DHCP relay: not emulated",
    "STP": "spanning tree: not emulated",
    "POLICER": "policers: nothing is policed",
    "SRV6_MY_SIDS": "SRv6: not emulated",
    "BGP_PEER_RANGE": "BGP listen ranges: their sessions come up, and are not among those a lab waits for",
}  # fmt: skip


def limits_of(switch: GivenSwitch) -> list[str]:
    """One line per feature that is configured and not emulated."""
    return list(_limits(switch))


def _limits(switch: GivenSwitch) -> Iterator[str]:
    config = switch.config
    for table, what in UNSUPPORTED.items():
        rows = config.get(table)
        if rows:
            names = ", ".join(list(rows)[:3]) + (", …" if len(rows) > 3 else "")
            yield f"{table} ({names}): {what.partition(': ')[2]}"
    vrfs = sorted(
        {
            str(row["vrf_name"])
            for table in ("INTERFACE", "VLAN_INTERFACE", "LOOPBACK_INTERFACE")
            for row in config.get(table, {}).values()
            if row.get("vrf_name") not in (None, "default")
        }
    )
    if vrfs:
        yield f"VRF ({', '.join(vrfs)}): their interfaces are in the default VRF"
    tagged = [key for key, row in config.get("VLAN_MEMBER", {}).items() if row.get("tagging_mode") != "untagged"]
    if tagged:
        yield f"VLAN_MEMBER ({', '.join(tagged[:3])}{', …' if len(tagged) > 3 else ''}): tagged members are left out"
    if any(line.startswith("router bgp ") and " vrf " in line for _, line in statements(switch.routing.text)):
        yield "BGP of VRFs: their routes are in no VRF of the lab"
    yield from switch.routing.warnings
    if switch.routing.bgp is None:
        yield "no BGP: the switch has no routes but its own"
    else:
        yield from switch.routing.bgp.warnings
