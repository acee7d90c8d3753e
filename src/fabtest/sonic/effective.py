"""What CONFIG_DB makes of one port: references followed, ranges written out. Pure.

Two configurations that name their maps and profiles differently but treat a port alike have equal values here; a map
that is bound but not there is an empty one, as orchagent leaves the port without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fabtest.sonic.db import ConfigDb, Row

#: QUEUE and BUFFER keys may name several ports (``Ethernet0,Ethernet4|3-4``) and a range of queues.
Aspect = dict[str, str]


@dataclass(frozen=True)
class PortQos:
    """One port. Each mapping is from what an operator would say (``DSCP 26``, ``queue 3 ecn``) to its value."""

    maps: Aspect
    pfc: Aspect
    watchdog: Aspect
    ecn: Aspect
    schedulers: Aspect
    buffers: Aspect


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


#: Queues of the largest chassis ports; what a range names beyond that is not there.
LAST_QUEUE = 63


def rows_of(config: ConfigDb, table: str, port: str) -> dict[int, Row]:
    """Rows of a table keyed ``<ports>|<range>`` that apply to a port, one per queue or group."""
    found: dict[int, Row] = {}
    for key, row in config.get(table, {}).items():
        ports, _, span = key.partition("|")
        if port not in ports.split(","):
            continue
        first, _, last = span.partition("-")
        if all(part.isascii() and part.isdecimal() and len(part) < 4 for part in (first, last or first)):
            for number in range(int(first), min(int(last or first), LAST_QUEUE) + 1):
                found[number] = row
    return found


def _fields(prefix: str, row: Mapping[str, object], skip: frozenset[str] = frozenset()) -> Aspect:
    return {f"{prefix} {field}": _text(value) for field, value in row.items() if field not in skip}


def port_qos(config: ConfigDb, port: str) -> PortQos:
    """The effective QoS of a port."""
    binding = config.get("PORT_QOS_MAP", {}).get(port, {})
    queues = rows_of(config, "QUEUE", port)
    ecn: Aspect = {}
    schedulers: Aspect = {}
    for queue, row in sorted(queues.items()):
        if "wred_profile" in row:
            profile = config.get("WRED_PROFILE", {}).get(_text(row["wred_profile"]))
            ecn |= _fields(f"queue {queue}", profile) if profile is not None else {f"queue {queue} profile": "missing"}
        if "scheduler" in row:
            profile = config.get("SCHEDULER", {}).get(_text(row["scheduler"]))
            schedulers |= (
                _fields(f"queue {queue}", profile) if profile is not None else {f"queue {queue} type": "missing"}
            )
    return PortQos(
        maps=_maps(config, binding),
        pfc={f"priority {p}": "on" for p in sorted(_priorities(binding, "pfc_enable"))},
        watchdog=_watchdog(config, binding, port),
        ecn=ecn,
        schedulers=schedulers,
        buffers=_buffers(config, port),
    )


def _maps(config: ConfigDb, binding: Row) -> Aspect:
    found: Aspect = {}
    for field, table, word, target in (
        ("dscp_to_tc_map", "DSCP_TO_TC_MAP", "DSCP", "TC"),
        ("tc_to_queue_map", "TC_TO_QUEUE_MAP", "TC", "queue"),
        ("tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP", "TC", "priority group"),
        ("pfc_to_queue_map", "MAP_PFC_PRIORITY_TO_QUEUE", "PFC priority", "queue"),
    ):
        rows = config.get(table, {}).get(_text(binding.get(field, "")), {})
        found |= {f"{word} {source} to {target}": _text(value) for source, value in rows.items()}
    return found


def _priorities(binding: Row, field: str) -> set[str]:
    return {p for p in _text(binding.get(field, "")).split(",") if p}


def _watchdog(config: ConfigDb, binding: Row, port: str) -> Aspect:
    found = {f"watchdog of priority {p}": "on" for p in sorted(_priorities(binding, "pfcwd_sw_enable"))}
    table = config.get("PFC_WD", {})
    found |= _fields("watchdog", table.get(port, {}))
    if port in table:
        found |= _fields("watchdog", table.get("GLOBAL", {}))
    return found


def _buffers(config: ConfigDb, port: str) -> Aspect:
    found: Aspect = {}
    for table, word in (("BUFFER_PG", "priority group"), ("BUFFER_QUEUE", "queue")):
        for number, row in sorted(rows_of(config, table, port).items()):
            name = _text(row.get("profile", ""))
            profile = config.get("BUFFER_PROFILE", {}).get(name)
            if profile is None:
                found[f"{word} {number} profile"] = "missing"
                continue
            found |= _fields(f"{word} {number}", profile, frozenset({"pool"}))
            pool = config.get("BUFFER_POOL", {}).get(_text(profile.get("pool", "")))
            found |= (
                _fields(f"{word} {number} pool", pool) if pool is not None else {f"{word} {number} pool": "missing"}
            )
    for table in ("BUFFER_PORT_INGRESS_PROFILE_LIST", "BUFFER_PORT_EGRESS_PROFILE_LIST"):
        for ports, row in config.get(table, {}).items():
            if port in ports.split(","):
                found[table] = _text(row.get("profile_list", ""))
    for row in config.get("CABLE_LENGTH", {}).values():
        if port in row:
            found["cable length"] = _text(row[port])
    return found


QOS_TABLES = (
    "PORT_QOS_MAP", "DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "MAP_PFC_PRIORITY_TO_QUEUE",
    "QUEUE", "WRED_PROFILE", "SCHEDULER", "PFC_WD", "BUFFER_PG", "BUFFER_QUEUE", "BUFFER_PROFILE", "BUFFER_POOL",
    "BUFFER_PORT_INGRESS_PROFILE_LIST", "BUFFER_PORT_EGRESS_PROFILE_LIST", "CABLE_LENGTH",
)  # fmt: skip
