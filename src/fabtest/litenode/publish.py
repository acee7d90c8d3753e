"""APPL_DB, STATE_DB and COUNTERS_DB of a lite node: SONiC's keys and fields from kernel and routing state. Pure.

Each function returns whole tables as ``{redis key: {field: value}}``; the agent writes only what changed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fabtest.litenode.intent import SwitchIntent
from fabtest.runtime.netlink import (
    NUD_VALID,
    RT_TABLE_MAIN,
    RTN_UNICAST,
    LinkInfo,
    NeighbourInfo,
    RouteInfo,
)
from fabtest.sonic.db import ConfigDb, DbId, to_redis

Rows = dict[str, dict[str, str]]
#: Kernel route protocols (rtnetlink.h, FRR's zebra/rt_netlink.h) by SONiC's word for them.
PROTOCOLS = {2: "kernel", 3: "kernel", 4: "static", 186: "bgp", 196: "static"}
#: The management port of a container; fpmsyncd does not offload its routes either.
MANAGEMENT = "eth0"
#: Tables buffermgrd copies from CONFIG_DB to APPL_DB.
BUFFER_TABLES = (
    "BUFFER_PG", "BUFFER_POOL", "BUFFER_PORT_EGRESS_PROFILE_LIST", "BUFFER_PORT_INGRESS_PROFILE_LIST",
    "BUFFER_PROFILE", "BUFFER_QUEUE",
)  # fmt: skip


@dataclass(slots=True)
class PortHistory:
    """What PORT_TABLE says of the past of a port."""

    flaps: int = 0
    last_up: str = ""
    last_down: str = ""


def port_tables(
    config: ConfigDb, links: Mapping[str, LinkInfo], history: Mapping[str, PortHistory]
) -> tuple[Rows, Rows]:
    """(APPL_DB PORT_TABLE, STATE_DB PORT_TABLE). A port without a cable is down."""
    appl: Rows = {}
    state: Rows = {}
    for name, row in config.get("PORT", {}).items():
        link = links.get(name)
        up = link is not None and link.up and link.running
        past = history.get(name, PortHistory())
        admin = str(row.get("admin_status", "down"))
        appl[DbId.APPL.key("PORT_TABLE", name)] = {
            **{k: v for k, v in to_redis(row).items() if k != "NULL"},
            "admin_status": admin,
            "oper_status": "up" if up else "down",
            "flap_count": str(past.flaps),
            "last_up_time": past.last_up,
            "last_down_time": past.last_down,
        }
        state[DbId.STATE.key("PORT_TABLE", name)] = {
            "state": "ok",
            "netdev_oper_status": "up" if up else "down",
            "admin_status": admin,
            "mtu": str(link.mtu if link else row.get("mtu", "")),
            "host_tx_ready": "true" if up else "false",
            "supported_speeds": "",
            "speed": "N/A",
            "fec": "N/A",
        }
    appl["PORT_TABLE:PortConfigDone"] = {"count": str(len(config.get("PORT", {})))}
    appl["PORT_TABLE:PortInitDone"] = {"lanes": "0"}
    return appl, state


def interface_tables(intent: SwitchIntent) -> tuple[Rows, Rows]:
    """(APPL_DB INTF_TABLE, STATE_DB INTERFACE_TABLE)."""
    appl: Rows = {}
    state: Rows = {}
    for name, addresses in intent.addresses.items():
        appl[f"INTF_TABLE:{name}"] = {"NULL": "NULL", "mac_addr": "00:00:00:00:00:00"}
        state[f"INTERFACE_TABLE|{name}"] = {"vrf": ""}
        for address in addresses:
            appl[f"INTF_TABLE:{name}:{address}"] = {"scope": "global", "family": f"IPv{address.version}"}
            state[f"INTERFACE_TABLE|{name}|{address}"] = {"state": "ok"}
    return appl, state


def vlan_tables(intent: SwitchIntent) -> tuple[Rows, Rows]:
    """(APPL_DB VLAN_TABLE and VLAN_MEMBER_TABLE, STATE_DB likewise)."""
    appl: Rows = {}
    state: Rows = {}
    for name, members in intent.vlans.items():
        appl[f"VLAN_TABLE:{name}"] = {"admin_status": "up", "mtu": "9100", "mac": intent.mac, "host_ifname": ""}
        state[f"VLAN_TABLE|{name}"] = {"state": "ok"}
        for member in members:
            appl[f"VLAN_MEMBER_TABLE:{name}:{member}"] = {"tagging_mode": "untagged"}
            state[f"VLAN_MEMBER_TABLE|{name}|{member}"] = {"state": "ok"}
    return appl, state


def buffer_tables(config: ConfigDb) -> Rows:
    """APPL_DB copies of the buffer tables."""
    return {
        f"{table}_TABLE:{key.replace('|', ':')}": to_redis(row)
        for table in BUFFER_TABLES
        for key, row in config.get(table, {}).items()
    }


def route_table(routes: Iterable[RouteInfo], names: Mapping[int, str]) -> Rows:
    """APPL_DB ROUTE_TABLE: as fpmsyncd writes it, the next hops of ECMP routes in one row, host routes bare."""
    rows: Rows = {}
    for route in routes:
        if route.table != RT_TABLE_MAIN or route.kind != RTN_UNICAST or route.prefix.is_link_local:
            continue
        hops = sorted((names.get(i, ""), "" if gw is None else str(gw), w) for gw, i, w in route.hops)
        hops = [h for h in hops if h[0] and h[0] != MANAGEMENT]
        if not hops or route.prefix.is_multicast:
            continue
        any_address = "0.0.0.0" if route.prefix.version == 4 else "::"
        single = route.prefix.prefixlen == route.prefix.max_prefixlen
        key = str(route.prefix.network_address) if single else str(route.prefix)
        rows[f"ROUTE_TABLE:{key}"] = {
            "protocol": PROTOCOLS.get(route.protocol, str(route.protocol)),
            "nexthop": ",".join(gw or any_address for _, gw, _ in hops),
            "ifname": ",".join(name for name, _, _ in hops),
            "weight": ",".join(str(w) for _, _, w in hops),
        }
    return rows


def neighbour_table(neighbours: Iterable[NeighbourInfo], names: Mapping[int, str]) -> Rows:
    """APPL_DB NEIGH_TABLE: resolved neighbours on ports and SVIs."""
    rows: Rows = {}
    for n in neighbours:
        name = names.get(n.index, "")
        if n.state & NUD_VALID and n.mac and name.startswith(("Ethernet", "Vlan")) and not n.address.is_multicast:
            rows[f"NEIGH_TABLE:{name}:{n.address}"] = {"neigh": n.mac, "family": f"IPv{n.address.version}"}
    return rows


def bgp_tables(summary: Mapping[str, Any]) -> Rows:
    """STATE_DB NEIGH_STATE_TABLE, as bgpmon writes it, from ``show bgp summary json``."""
    rows: Rows = {}
    for family in ("ipv4Unicast", "ipv6Unicast"):
        for peer, row in (summary.get(family) or {}).get("peers", {}).items():
            rows[f"NEIGH_STATE_TABLE|{peer}"] = {"state": str(row.get("state", "Idle"))}
    return rows


def bfd_table(peers: Iterable[Mapping[str, Any]]) -> Rows:
    """STATE_DB BFD_SESSION_TABLE from ``show bfd peers json``."""
    words = {"up": "Up", "down": "Down", "init": "Init", "shutdown": "Admin_Down"}
    rows: Rows = {}
    for peer in peers:
        interface = str(peer.get("interface") or "default")
        rows[f"BFD_SESSION_TABLE|default|{interface}|{peer.get('peer')}"] = {
            "state": words.get(str(peer.get("status")), "Down"),
            "type": "async_active",
            "local_addr": str(peer.get("local", "")),
            "tx_interval": str(peer.get("transmit-interval", "")),
            "rx_interval": str(peer.get("receive-interval", "")),
            "multiplier": str(peer.get("detect-multiplier", "")),
            "multihop": "true" if peer.get("multihop") else "false",
        }
    return rows


def switch_capability() -> Rows:
    """STATE_DB SWITCH_CAPABILITY: the hash fields the kernel has."""
    from fabtest.sonic.hash import FIELD_BITS

    return {
        "SWITCH_CAPABILITY|switch": {
            "ECMP_HASH_CAPABLE": "true",
            "LAG_HASH_CAPABLE": "false",
            "HASH|NATIVE_HASH_FIELD_LIST": ",".join(FIELD_BITS),
        }
    }


def port_oid(position: int) -> str:
    """A SAI object id as syncd hands them out: object type 1 in the upper bits."""
    return f"oid:0x1{position + 1:012x}"


def counters(links: Mapping[str, LinkInfo], ports: Iterable[str]) -> tuple[Rows, Rows]:
    """(name maps, COUNTERS rows) of all ports, from the kernel's interface statistics."""
    names: dict[str, str] = {}
    rows: Rows = {}
    for position, name in enumerate(ports):
        oid = names[name] = port_oid(position)
        link = links.get(name)
        rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_drops, tx_drops = (
            link.stats if link else (0,) * 8
        )
        rows[f"COUNTERS:{oid}"] = {
            "SAI_PORT_STAT_IF_IN_OCTETS": str(rx_bytes),
            "SAI_PORT_STAT_IF_IN_UCAST_PKTS": str(rx_packets),
            "SAI_PORT_STAT_IF_IN_ERRORS": str(rx_errors),
            "SAI_PORT_STAT_IF_IN_DISCARDS": str(rx_drops),
            "SAI_PORT_STAT_IF_OUT_OCTETS": str(tx_bytes),
            "SAI_PORT_STAT_IF_OUT_UCAST_PKTS": str(tx_packets),
            "SAI_PORT_STAT_IF_OUT_ERRORS": str(tx_errors),
            "SAI_PORT_STAT_IF_OUT_DISCARDS": str(tx_drops),
        }
    return {"COUNTERS_PORT_NAME_MAP": names}, rows


def rates(before: Mapping[str, LinkInfo], now: Mapping[str, LinkInfo], seconds: float, ports: Iterable[str]) -> Rows:
    """COUNTERS_DB RATES of all ports, per second, between two readings (bytes in the fields named BPS, as SONiC's)."""
    rows: Rows = {}
    for position, name in enumerate(ports):
        new, old = now.get(name), before.get(name)
        if new is None or old is None or seconds <= 0:
            continue
        rx_packets, tx_packets, rx_bytes, tx_bytes = (
            max(0, n - o) / seconds for n, o in zip(new.stats[:4], old.stats[:4], strict=True)
        )
        rows[f"RATES:{port_oid(position)}"] = {
            "RX_BPS": f"{rx_bytes:.2f}", "RX_PPS": f"{rx_packets:.2f}",
            "TX_BPS": f"{tx_bytes:.2f}", "TX_PPS": f"{tx_packets:.2f}",
        }  # fmt: skip
    return rows


FAMILIES = (socket.AF_INET, socket.AF_INET6)
