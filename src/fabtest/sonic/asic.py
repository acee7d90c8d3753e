"""What orchagent programmed: SAI objects of ASIC_DB in CONFIG_DB's words, so that the two can be compared. Pure.

Attribute names are those of SAI's headers (saiport.h, saiqosmap.h, saiwred.h, saibuffer.h); ports, queues and priority
groups are found by COUNTERS_DB's name maps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from fabtest.sonic.effective import Aspect, PortQos

Attributes = Mapping[str, str]
#: Object type and id -> attributes, as ASIC_DB holds it.
Objects = Mapping[str, Attributes]
QOS_TYPES = ("PORT", "QUEUE", "QOS_MAP", "WRED", "INGRESS_PRIORITY_GROUP", "BUFFER_PROFILE", "BUFFER_POOL")
ROUTE_TYPES = ("ROUTE_ENTRY", "NEXT_HOP_GROUP", "NEXT_HOP_GROUP_MEMBER")
_ECN_MODES = {
    "SAI_ECN_MARK_MODE_ALL": "ecn_all", "SAI_ECN_MARK_MODE_NONE": "ecn_none", "SAI_ECN_MARK_MODE_GREEN": "ecn_green",
    "SAI_ECN_MARK_MODE_YELLOW": "ecn_yellow", "SAI_ECN_MARK_MODE_RED": "ecn_red",
    "SAI_ECN_MARK_MODE_GREEN_YELLOW": "ecn_green_yellow", "SAI_ECN_MARK_MODE_GREEN_RED": "ecn_green_red",
    "SAI_ECN_MARK_MODE_YELLOW_RED": "ecn_yellow_red",
}  # fmt: skip
_WRED = {
    f"SAI_WRED_ATTR_{colour.upper()}_{sai}": field.format(colour)
    for colour in ("green", "yellow", "red")
    for sai, field in (
        ("ENABLE", "wred_{}_enable"), ("MIN_THRESHOLD", "{}_min_threshold"), ("MAX_THRESHOLD", "{}_max_threshold"),
        ("DROP_PROBABILITY", "{}_drop_probability"),
    )
}  # fmt: skip
_PROFILE = {
    "SAI_BUFFER_PROFILE_ATTR_RESERVED_BUFFER_SIZE": "size", "SAI_BUFFER_PROFILE_ATTR_SHARED_DYNAMIC_TH": "dynamic_th",
    "SAI_BUFFER_PROFILE_ATTR_SHARED_STATIC_TH": "static_th", "SAI_BUFFER_PROFILE_ATTR_XON_TH": "xon",
    "SAI_BUFFER_PROFILE_ATTR_XOFF_TH": "xoff", "SAI_BUFFER_PROFILE_ATTR_XON_OFFSET_TH": "xon_offset",
}  # fmt: skip
_POOL = {"SAI_BUFFER_POOL_ATTR_SIZE": "pool size", "SAI_BUFFER_POOL_ATTR_XOFF_SIZE": "pool xoff"}
_MAPS = (
    ("SAI_PORT_ATTR_QOS_DSCP_TO_TC_MAP", "dscp", "tc", "DSCP {} to TC"),
    ("SAI_PORT_ATTR_QOS_TC_TO_QUEUE_MAP", "tc", "qidx", "TC {} to queue"),
    ("SAI_PORT_ATTR_QOS_TC_TO_PRIORITY_GROUP_MAP", "tc", "pg", "TC {} to priority group"),
    ("SAI_PORT_ATTR_QOS_PFC_PRIORITY_TO_QUEUE_MAP", "prio", "qidx", "PFC priority {} to queue"),
)
#: The buffer values both databases have; CONFIG_DB's others (cable length, profile lists) are not SAI's.
_BUFFER_FIELDS = tuple({*_PROFILE.values(), *_POOL.values()})


@dataclass(frozen=True, slots=True)
class NameMaps:
    """COUNTERS_DB: port, ``port:queue`` and ``port:priority group`` to object id."""

    ports: Mapping[str, str]
    queues: Mapping[str, str]
    groups: Mapping[str, str]


def _object(objects: Objects, kind: str, oid: str) -> Attributes:
    return objects.get(f"ASIC_STATE:SAI_OBJECT_TYPE_{kind}:{oid}", {})


def asic_qos(objects: Objects, names: NameMaps, port: str) -> PortQos:
    """The QoS programmed for a port; schedulers and the watchdog are not in it (SAI does not tie them to a queue)."""
    attributes = _object(objects, "PORT", names.ports.get(port, ""))
    mask = int(attributes.get("SAI_PORT_ATTR_PRIORITY_FLOW_CONTROL", "0"))
    maps: Aspect = {}
    for attribute, key, value, words in _MAPS:
        text = _object(objects, "QOS_MAP", attributes.get(attribute, "")).get("SAI_QOS_MAP_ATTR_MAP_TO_VALUE_LIST")
        for entry in json.loads(text)["list"] if text else ():
            maps[words.format(entry["key"][key])] = str(entry["value"][value])
    ecn: Aspect = {}
    buffers: Aspect = {}
    for number, oid in _numbered(names.queues, port):
        queue = _object(objects, "QUEUE", oid)
        ecn |= _wred(_object(objects, "WRED", queue.get("SAI_QUEUE_ATTR_WRED_PROFILE_ID", "")), number)
        buffers |= _buffer(objects, f"queue {number}", queue.get("SAI_QUEUE_ATTR_BUFFER_PROFILE_ID", ""))
    for number, oid in _numbered(names.groups, port):
        profile = _object(objects, "INGRESS_PRIORITY_GROUP", oid).get(
            "SAI_INGRESS_PRIORITY_GROUP_ATTR_BUFFER_PROFILE", ""
        )
        buffers |= _buffer(objects, f"priority group {number}", profile)
    pfc = {f"priority {p}": "on" for p in range(8) if mask >> p & 1}
    return PortQos(maps=maps, pfc=pfc, watchdog={}, ecn=ecn, schedulers={}, buffers=buffers)


def _numbered(names: Mapping[str, str], port: str) -> list[tuple[int, str]]:
    found = []
    for name, oid in names.items():
        owner, _, number = name.partition(":")
        if owner == port and number.isdigit():
            found.append((int(number), oid))
    return sorted(found)


def _wred(profile: Attributes, queue: int) -> Aspect:
    found = {f"queue {queue} {field}": profile[sai] for sai, field in _WRED.items() if sai in profile}
    mode = profile.get("SAI_WRED_ATTR_ECN_MARK_MODE")
    if mode:
        found[f"queue {queue} ecn"] = _ECN_MODES.get(mode, mode)
    return found


def _buffer(objects: Objects, where: str, oid: str) -> Aspect:
    profile = _object(objects, "BUFFER_PROFILE", oid)
    pool = _object(objects, "BUFFER_POOL", profile.get("SAI_BUFFER_PROFILE_ATTR_POOL_ID", ""))
    found = {f"{where} {field}": profile[sai] for sai, field in _PROFILE.items() if sai in profile}
    return found | {f"{where} {field}": pool[sai] for sai, field in _POOL.items() if sai in pool}


def comparable(qos: PortQos) -> PortQos:
    """A port's QoS of CONFIG_DB without what ASIC_DB cannot show."""
    return PortQos(
        maps=qos.maps,
        pfc=qos.pfc,
        watchdog={},
        ecn=qos.ecn,
        schedulers={},
        buffers={k: v for k, v in qos.buffers.items() if k.endswith(_BUFFER_FIELDS)},
    )


def route_widths(objects: Objects) -> dict[IPv4Network | IPv6Network, int]:
    """Prefix -> members of its next-hop group (1 where it is a single next hop)."""
    members: dict[str, int] = {}
    for key, attributes in objects.items():
        if ":SAI_OBJECT_TYPE_NEXT_HOP_GROUP_MEMBER:" in key:
            group = attributes.get("SAI_NEXT_HOP_GROUP_MEMBER_ATTR_NEXT_HOP_GROUP_ID", "")
            members[group] = members.get(group, 0) + 1
    found: dict[IPv4Network | IPv6Network, int] = {}
    for key, attributes in objects.items():
        kind, _, entry = key.partition("ROUTE_ENTRY:")
        if kind != "ASIC_STATE:SAI_OBJECT_TYPE_" or not entry.startswith("{"):
            continue
        hop = attributes.get("SAI_ROUTE_ENTRY_ATTR_NEXT_HOP_ID", "")
        grouped = bool(_object(objects, "NEXT_HOP_GROUP", hop))
        found[ip_network(json.loads(entry)["dest"])] = members.get(hop, 0) if grouped else 1
    return found
