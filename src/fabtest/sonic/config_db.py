"""``config_db.json`` of a switch, as a production switch would get it.

BGP_NEIGHBOR rows are in bgpcfgd's form (``BGP_NEIGHBOR|<ip>``); ``docker_routing_config_mode`` is ``split-unified``,
so the routing container runs the fabric's own ``frr.conf`` and the rows serve the tools that read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from fabtest.model import Endpoint, Fabric, Switch, Tier
from fabtest.sonic.db import ConfigDb, Row, Table
from fabtest.sonic.qos import QosPort, qos_tables

#: DEVICE_METADATA.type by tier: SONiC's names for T0, T1 and T2. It also picks the hash seed on real switches.
DEVICE_TYPE = {Tier.LEAF: "ToRRouter", Tier.SPINE: "LeafRouter", Tier.SUPERSPINE: "SpineRouter"}
COUNTER_GROUPS = (
    "PORT", "QUEUE", "PFCWD", "PG_WATERMARK", "PG_DROP", "QUEUE_WATERMARK", "BUFFER_POOL_WATERMARK",
    "PORT_BUFFER_DROP", "WRED_ECN_QUEUE", "WRED_ECN_PORT",
)  # fmt: skip


def render_config_db(fabric: Fabric, switch: Switch) -> ConfigDb:
    """The whole CONFIG_DB of ``switch``; a given one as it is."""
    if switch.given:
        return given_config(switch)
    wired = [port for port in switch.ports if Endpoint(switch.name, port.name) in fabric.link_at]
    config: ConfigDb = {
        "DEVICE_METADATA": {"localhost": _metadata(fabric, switch)},
        "PORT": _ports(fabric, switch),
        "BREAKOUT_CFG": {p.parent: {"brkout_mode": p.breakout} for p in switch.ports if p.name == p.parent},
        "LOOPBACK_INTERFACE": _with_addresses([("Loopback0", switch.loopbacks, {})]),
    }
    routed = [(p.name, switch.addresses[p.name]) for p in wired if p.name in switch.addresses]
    link_local: Row = {"ipv6_use_link_local_only": "enable"}
    config["INTERFACE"] = _with_addresses((name, a, {} if a else link_local) for name, a in routed)
    if switch.vlans:
        config["VLAN"] = {v.name: {"vlanid": str(v.vid), "admin_status": "up"} for v in switch.vlans}
        config["VLAN_MEMBER"] = {
            f"{v.name}|{member}": {"tagging_mode": "untagged"} for v in switch.vlans for member in v.members
        }
        config["VLAN_INTERFACE"] = _with_addresses((v.name, v.addresses, {}) for v in switch.vlans)
    config |= _neighbours(fabric, switch)
    config["LLDP"] = {"GLOBAL": {"enabled": "true", "hello_time": "30", "system_name": switch.name}}
    config |= qos_tables(
        fabric.qos,
        [
            QosPort(p.name, p.speed, fabric.link_at[Endpoint(switch.name, p.name)].mtu, _cable(fabric, switch, p.name))
            for p in wired
        ],
    )
    config["FLEX_COUNTER_TABLE"] = {group: {"FLEX_COUNTER_STATUS": "enable"} for group in COUNTER_GROUPS}
    config["SWITCH_HASH"] = {"GLOBAL": {"ecmp_hash": list(switch.hash.fields), "lag_hash": list(switch.hash.fields)}}
    return {table: rows for table, rows in config.items() if rows}


def given_config(switch: Switch) -> ConfigDb:
    """The configuration that was given for a switch."""
    config: ConfigDb = {}
    for table, rows in json.loads(switch.given["config_db.json"].removeprefix(b"\xef\xbb\xbf")).items():
        config[table] = {
            key: {field: value if isinstance(value, str | list) else json.dumps(value) for field, value in row.items()}
            for key, row in rows.items()
        }
    return config


def _cable(fabric: Fabric, switch: Switch, port: str) -> int:
    return fabric.link_at[Endpoint(switch.name, port)].length_m


def _metadata(fabric: Fabric, switch: Switch) -> Row:
    return {
        "hostname": switch.name,
        "hwsku": switch.kind.hwsku,
        "platform": switch.kind.platform,
        "mac": switch.mac,
        "type": DEVICE_TYPE[switch.tier],
        "bgp_asn": str(switch.asn),
        "docker_routing_config_mode": "split-unified",
        "frr_mgmt_framework_config": "false",
        "buffer_model": "traditional",
        "default_bgp_status": "up",
        "default_pfcwd_status": "enable" if fabric.qos.watchdog else "disable",
        "synchronous_mode": "enable",
    }


def _ports(fabric: Fabric, switch: Switch) -> Table:
    table: Table = {}
    for port in switch.ports:
        link = fabric.link_at.get(Endpoint(switch.name, port.name))
        row: Row = {
            "alias": port.alias,
            "index": str(port.index),
            "lanes": ",".join(map(str, port.lanes)),
            "speed": str(port.speed // 10**6),
            "mtu": str(link.mtu if link else fabric.mtu),
            "fec": port.fec,
            "admin_status": "up" if link else "down",
        }
        if link:
            far = link.other(switch.name)
            row["description"] = f"{far.node}:{far.port}"
        if port.subport:
            row["subport"] = str(port.subport)
        table[port.name] = row
    return table


def _with_addresses(interfaces: Iterable[tuple[str, Iterable[object], Row]]) -> Table:
    """The two kinds of row of an interface table: the interface, and one per address."""
    table: Table = {}
    for name, addresses, row in interfaces:
        table[name] = row
        table |= {f"{name}|{address}": {} for address in addresses}
    return table


def _neighbours(fabric: Fabric, switch: Switch) -> ConfigDb:
    neighbour: Table = {}
    metadata: Table = {}
    for link in fabric.links_of[switch.name]:
        near, far = link.end(switch.name), link.other(switch.name)
        peer = fabric.switch.get(far.node)
        kind = DEVICE_TYPE[peer.tier] if peer else "Server"
        neighbour[near.port] = {"name": far.node, "port": far.port, "type": kind}
        row: Row = {"type": kind}
        if peer:
            row["hwsku"] = peer.kind.hwsku
            for loopback in peer.loopbacks:
                row["lo_addr" if loopback.version == 4 else "lo_addr_v6"] = str(loopback)
        metadata[far.node] = row
    bgp: Table = {}
    for session in switch.sessions:
        for local, remote in zip(session.local, session.remote, strict=True):
            bgp[str(remote.ip)] = {
                "name": session.peer,
                "asn": str(session.peer_asn),
                "local_addr": str(local.ip),
                "keepalive": str(fabric.bgp.keepalive_s),
                "holdtime": str(fabric.bgp.hold_s),
                "nhopself": "0",
                "rrclient": "0",
                "admin_status": "up",
            }
    return {"DEVICE_NEIGHBOR": neighbour, "DEVICE_NEIGHBOR_METADATA": metadata, "BGP_NEIGHBOR": bgp}
