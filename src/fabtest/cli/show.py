"""``show NODE ...``: a switch's state with SONiC's own words and column headings (sonic-utilities)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fabtest.cli.common import JSON, LAB, columns_text, fabtest_task, print_json, the_lab
from fabtest.errors import UsageError
from fabtest.runtime.base import LiveNode
from fabtest.sonic.db import DbId
from fabtest.topology.units import format_speed

Rows = list[dict[str, str]]


def _natural(name: str) -> tuple[str, int]:
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)


def _table(node: LiveNode, db: DbId, table: str) -> dict[str, dict[str, str]]:
    """Rows of a table by key, in natural order."""
    redis = node.db(db)
    prefix = table + db.separator
    keys = sorted((k.removeprefix(prefix) for k in redis.scan_iter(prefix + "*", count=1000)), key=_natural)
    with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hgetall(prefix + key)
        return dict(zip(keys, pipe.execute(), strict=True))


def interfaces_status(node: LiveNode) -> Rows:
    """show interfaces status"""
    members = {key.partition("|")[2] for key in _table(node, DbId.CONFIG, "VLAN_MEMBER")}
    routed = {key.partition("|")[0] for key in _table(node, DbId.CONFIG, "INTERFACE")}
    return [
        {
            "Interface": name,
            "Lanes": row.get("lanes", "N/A"),
            "Speed": format_speed(int(row["speed"]) * 1_000_000) if row.get("speed", "").isdigit() else "N/A",
            "MTU": row.get("mtu", "N/A"),
            "FEC": row.get("fec", "N/A"),
            "Alias": row.get("alias", "N/A"),
            "Vlan": "trunk" if name in members else "routed" if name in routed else "N/A",
            "Oper": row.get("oper_status", "N/A"),
            "Admin": row.get("admin_status", "N/A"),
            "Type": "N/A",
            "Asym PFC": row.get("pfc_asym", "off"),
        }
        for name, row in _table(node, DbId.APPL, "PORT_TABLE").items()
        if name.startswith("Ethernet")
    ]


def interfaces_counters(node: LiveNode) -> Rows:
    """show interfaces counters"""
    counters = node.db(DbId.COUNTERS)
    ports = _table(node, DbId.APPL, "PORT_TABLE")
    found = []
    for name, oid in sorted(counters.hgetall("COUNTERS_PORT_NAME_MAP").items(), key=lambda item: _natural(item[0])):
        row, rates = counters.hgetall(f"COUNTERS:{oid}"), counters.hgetall(f"RATES:{oid}")
        port = ports.get(name, {})
        state = "U" if port.get("oper_status") == "up" else "X" if port.get("admin_status") != "up" else "D"

        def stat(kind: str, row: Mapping[str, str] = row) -> str:
            value = row.get(f"SAI_PORT_STAT_IF_{kind}", "N/A")
            return f"{int(value):,}" if value.isdigit() else value

        found.append({
            "IFACE": name, "STATE": state,
            "RX_OK": stat("IN_UCAST_PKTS"), **_rates(rates, "RX", port.get("speed", "")), "RX_ERR": stat("IN_ERRORS"),
            "RX_DRP": stat("IN_DISCARDS"), "RX_OVR": "0",
            "TX_OK": stat("OUT_UCAST_PKTS"), **_rates(rates, "TX", port.get("speed", "")),
            "TX_ERR": stat("OUT_ERRORS"), "TX_DRP": stat("OUT_DISCARDS"), "TX_OVR": "0",
        })  # fmt: skip
    return found


def _rates(rates: Mapping[str, str], way: str, speed: str) -> dict[str, str]:
    """Bytes per second and per cent of the port's speed (Mbit/s), as portstat prints them."""
    if f"{way}_BPS" not in rates:
        return {f"{way}_BPS": "N/A", f"{way}_UTIL": "N/A"}
    bps = float(rates[f"{way}_BPS"])
    scaled, unit = next(((bps / f, u) for f, u in ((1e6, "MB/s"), (1e3, "KB/s")) if bps > 10 * f), (bps, "B/s"))
    used = f"{bps * 8 / (int(speed) * 1e6):.2%}" if speed.isdigit() else "N/A"
    return {f"{way}_BPS": f"{scaled:.2f} {unit}", f"{way}_UTIL": used}


def bgp_summary(node: LiveNode, family: int) -> Rows:
    """show ip bgp summary"""
    summary: Mapping[str, Any] = node.vty("bgpd", "show bgp summary json").get(f"ipv{family}Unicast") or {}
    rows = []
    for peer, row in summary.get("peers", {}).items():
        up = row.get("state") == "Established"
        rows.append({
            "Neighbhor": str(peer), "V": str(row.get("version", 4)), "AS": str(row.get("remoteAs", "")),
            "MsgRcvd": str(row.get("msgRcvd", 0)), "MsgSent": str(row.get("msgSent", 0)),
            "TblVer": str(row.get("tableVersion", 0)), "InQ": str(row.get("inq", 0)), "OutQ": str(row.get("outq", 0)),
            "Up/Down": str(row.get("peerUptime", "never")),
            "State/PfxRcd": str(row.get("pfxRcd", 0)) if up else str(row.get("state", "")),
            "NeighborName": str(row.get("desc", row.get("hostname", ""))).partition(":")[0],
        })  # fmt: skip
    return rows


def lldp_table(node: LiveNode) -> Rows:
    """show lldp table"""
    return [
        {
            "LocalPort": port,
            "RemoteDevice": row.get("lldp_rem_sys_name", ""),
            "RemotePortID": row.get("lldp_rem_port_id", ""),
            "Capability": "BR" if row.get("lldp_rem_sys_cap_enabled", "").startswith("14") else "S",
            "RemotePortDescr": row.get("lldp_rem_port_desc", ""),
        }
        for port, row in _table(node, DbId.APPL, "LLDP_ENTRY_TABLE").items()
    ]


def routes(node: LiveNode, family: int) -> Rows:
    """show ip route, from APPL_DB as orchagent sees it"""
    found = []
    for prefix, row in _table(node, DbId.APPL, "ROUTE_TABLE").items():
        if (":" in prefix) != (family == 6):
            continue
        hops = zip(row.get("nexthop", "").split(","), row.get("ifname", "").split(","), strict=False)
        for n, (gateway, port) in enumerate(hops):
            found.append({
                "Prefix": (prefix if "/" in prefix else f"{prefix}/{32 if family == 4 else 128}") if n == 0 else "",
                "Protocol": row.get("protocol", "") if n == 0 else "", "Nexthop": gateway, "Interface": port,
            })  # fmt: skip
    return found


SHOWS: dict[str, Callable[[LiveNode], Rows]] = {
    "interfaces status": interfaces_status,
    "interfaces counters": interfaces_counters,
    "ip bgp summary": lambda node: bgp_summary(node, 4),
    "ipv6 bgp summary": lambda node: bgp_summary(node, 6),
    "ip route": lambda node: routes(node, 4),
    "ipv6 route": lambda node: routes(node, 6),
    "lldp table": lldp_table,
}
NUMBERS = {f"{way}_{what}" for way in ("RX", "TX") for what in ("OK", "BPS", "UTIL", "ERR", "DRP", "OVR")}


@fabtest_task(
    positional=["node"], rest="words", help={"node": "switch", "words": ", ".join(SHOWS), "lab": LAB, "json": JSON}
)
def show(c: Any, node: str, words: list[str] | None = None, lab: str = "", json: bool = False) -> None:
    """A switch as SONiC shows it: show NODE WORDS.

    WORDS: interfaces status, interfaces counters, ip bgp summary, ip route, lldp table (and ipv6 for ip).
    """
    asked = " ".join(words or [])
    chosen = [name for name in SHOWS if name == asked] or [name for name in SHOWS if asked and name.startswith(asked)]
    if len(chosen) != 1:
        what = f"show {node} {asked}".strip()
        raise UsageError(f"{what}: not something to show", hint=f"one of: {', '.join(SHOWS)}")
    live = the_lab(lab).node(node)
    if live.role != "switch":
        raise UsageError(f"{node} is a server", hint=f"lab-exec {node} -- ip route")
    rows = SHOWS[chosen[0]](live)
    if json:
        print_json(rows)
    elif not rows:
        print(f"{node}: nothing to show")
    else:
        heads = list(rows[0])
        print(
            columns_text(heads, [[r[h] for h in heads] for r in rows], [i for i, h in enumerate(heads) if h in NUMBERS])
        )
