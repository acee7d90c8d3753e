"""The QoS tables of CONFIG_DB for a ``QosIntent``: maps, PFC, schedulers, WRED/ECN, buffers, watchdog.

One set of maps named after the profile serves every port; profiles are per speed and cable length. The buffer model
is the traditional one, with every priority group and queue written out, so nothing depends on lookup files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fabtest.model import EcnCurve, QosIntent
from fabtest.sonic.db import ConfigDb, Row, Table
from fabtest.sonic.headroom import Headroom, headroom

MAP = "ROCE"
#: Ports that may fill the lossless pool at once when the marking curve is kept below the PFC threshold.
CONGESTED_PORTS = 4
LOSSY_TH = "3"
COLOURS = ("green", "yellow", "red")


@dataclass(frozen=True, slots=True)
class QosPort:
    """A port as far as QoS needs it: speed in bit/s, MTU in bytes, cable in metres."""

    name: str
    speed: int
    mtu: int
    cable_m: int


def qos_tables(intent: QosIntent, ports: Sequence[QosPort]) -> ConfigDb:
    """All QoS and buffer tables of a switch with these ports in use."""
    tables = _maps(intent)
    rooms = {port.name: headroom(port.speed, port.cable_m, port.mtu) for port in ports}
    pool = lossless_pool(intent, rooms)
    tables["SCHEDULER"] = _schedulers(intent)
    if intent.ecn_at_100g:
        speeds = sorted({port.speed for port in ports})
        tables["WRED_PROFILE"] = {wred_name(s): _wred(ecn_curve(intent, s, pool)) for s in speeds}
    tables["PORT_QOS_MAP"] = _port_qos_map(intent, ports)
    tables["QUEUE"] = _queues(intent, ports)
    tables |= _buffers(intent, ports, rooms, pool)
    tables["CABLE_LENGTH"] = {"AZURE": {port.name: f"{port.cable_m}m" for port in ports}}
    if intent.watchdog and intent.lossless:
        dog = intent.watchdog
        row: Row = {
            "action": dog.action,
            "detection_time": str(dog.detection_ms),
            "restoration_time": str(dog.restoration_ms),
        }
        tables["PFC_WD"] = {"GLOBAL": {"POLL_INTERVAL": str(dog.poll_ms)}, **{port.name: row for port in ports}}
    return tables


def ecn_curve(intent: QosIntent, speed: int, pool_bytes: int) -> EcnCurve:
    """The marking curve of a port: in proportion to speed, Kmax below the point where PFC fires.

    A lossless priority group pauses its peer at alpha/(1 + n*alpha) of the pool when n groups are congested
    (dynamic threshold, alpha = 2^dynamic_th); ECN must have marked everything before that.
    """
    base = intent.ecn_at_100g
    if base is None:
        raise ValueError(f"profile {intent.profile} does not mark")
    scale = speed / 100e9
    alpha = 2.0**intent.dynamic_th
    limit = int(pool_bytes * alpha / (1 + CONGESTED_PORTS * alpha) * 0.8)
    kmax = max(min(int(base.kmax * scale), limit, 2**31 - 1), 2)
    kmin = max(min(int(base.kmin * scale), kmax * base.kmin // base.kmax), 1)
    return EcnCurve(kmin, kmax, base.pmax)


def wred_name(speed: int) -> str:
    """The WRED profile of ports of one speed."""
    return f"{MAP}_{speed // 10**9}G"


def lossless_pool(intent: QosIntent, rooms: Mapping[str, Headroom]) -> int:
    """Shared bytes of ingress_lossless_pool: the buffer less every lossless group's own headroom."""
    reserved = sum(room.size for room in rooms.values()) if intent.lossless else 0
    return max(intent.buffer_bytes - reserved, intent.buffer_bytes // 8)


def _maps(intent: QosIntent) -> ConfigDb:
    tc_of = {intent.roce_dscp: intent.roce_tc, intent.cnp_dscp: intent.cnp_tc}
    identity: Row = {str(i): str(i) for i in range(8)}
    tables: ConfigDb = {
        "DSCP_TO_TC_MAP": {MAP: {str(d): str(tc_of.get(d, 0)) for d in range(64)}},
        "TC_TO_QUEUE_MAP": {MAP: identity},
        "TC_TO_PRIORITY_GROUP_MAP": {MAP: {str(tc): str(tc if tc in intent.pfc_priorities else 0) for tc in range(8)}},
    }
    if intent.lossless:
        tables["MAP_PFC_PRIORITY_TO_QUEUE"] = {MAP: identity}
    return tables


def _schedulers(intent: QosIntent) -> Table:
    return {
        "scheduler.besteffort": {"type": "DWRR", "weight": str(intent.best_effort_weight)},
        "scheduler.roce": {"type": "DWRR", "weight": str(intent.roce_weight)},
        "scheduler.cnp": {"type": "STRICT"},
    }


def _wred(curve: EcnCurve) -> Row:
    row: Row = {"ecn": "ecn_all"}
    for colour in COLOURS:
        row |= {
            f"wred_{colour}_enable": "true",
            f"{colour}_min_threshold": str(curve.kmin),
            f"{colour}_max_threshold": str(curve.kmax),
            f"{colour}_drop_probability": str(curve.pmax),
        }
    return row


def _port_qos_map(intent: QosIntent, ports: Sequence[QosPort]) -> Table:
    row: Row = {"dscp_to_tc_map": MAP, "tc_to_queue_map": MAP, "tc_to_pg_map": MAP}
    if intent.lossless:
        priorities = ",".join(str(p) for p in intent.pfc_priorities)
        row |= {"pfc_to_queue_map": MAP, "pfc_enable": priorities}
        if intent.watchdog:
            row["pfcwd_sw_enable"] = priorities
    return {"global": {"dscp_to_tc_map": MAP}, **{port.name: row for port in ports}}


def _queues(intent: QosIntent, ports: Sequence[QosPort]) -> Table:
    table: Table = {}
    for port in ports:
        roce: Row = {"scheduler": "scheduler.roce"}
        if intent.ecn_at_100g:
            roce["wred_profile"] = wred_name(port.speed)
        rows: dict[int, Row] = {
            0: {"scheduler": "scheduler.besteffort"},
            intent.roce_tc: roce,
            intent.cnp_tc: {"scheduler": "scheduler.cnp"},
        }
        table |= {f"{port.name}|{queue}": row for queue, row in sorted(rows.items())}
    return table


def _buffers(intent: QosIntent, ports: Sequence[QosPort], rooms: Mapping[str, Headroom], pool: int) -> ConfigDb:
    total = str(intent.buffer_bytes)
    profiles: Table = {
        "ingress_lossy_profile": {"pool": "ingress_lossless_pool", "size": "0", "dynamic_th": LOSSY_TH},
        "egress_lossless_profile": {"pool": "egress_lossless_pool", "size": "0", "static_th": total},
        "egress_lossy_profile": {"pool": "egress_lossy_pool", "size": "1518", "dynamic_th": LOSSY_TH},
    }
    pg: Table = {}
    queue: Table = {}
    lossless: Row = {"profile": "egress_lossless_profile"}
    lossy: Row = {"profile": "egress_lossy_profile"}
    spans = _queue_spans(intent.pfc_priorities)
    for port in ports:
        pg[f"{port.name}|0"] = {"profile": "ingress_lossy_profile"}
        if intent.lossless:
            room = rooms[port.name]
            name = f"pg_lossless_{port.speed // 10**6}_{port.cable_m}m_profile"
            profiles.setdefault(
                name,
                {
                    "pool": "ingress_lossless_pool",
                    "size": str(room.size),
                    "xon": str(room.xon),
                    "xoff": str(room.xoff),
                    "dynamic_th": str(intent.dynamic_th),
                },
            )
            for priority in intent.pfc_priorities:
                pg[f"{port.name}|{priority}"] = {"profile": name}
        for span, is_lossless in spans:
            queue[f"{port.name}|{span}"] = lossless if is_lossless else lossy
    return {
        "BUFFER_POOL": {
            "ingress_lossless_pool": {"type": "ingress", "mode": "dynamic", "size": str(pool)},
            "egress_lossless_pool": {"type": "egress", "mode": "static", "size": total},
            "egress_lossy_pool": {"type": "egress", "mode": "dynamic", "size": str(intent.buffer_bytes // 2)},
        },
        "BUFFER_PROFILE": profiles,
        "BUFFER_PG": pg,
        "BUFFER_QUEUE": queue,
        "BUFFER_PORT_INGRESS_PROFILE_LIST": {port.name: {"profile_list": "ingress_lossy_profile"} for port in ports},
        "BUFFER_PORT_EGRESS_PROFILE_LIST": {
            port.name: {"profile_list": "egress_lossless_profile,egress_lossy_profile"} for port in ports
        },
    }


def _queue_spans(lossless: Sequence[int]) -> list[tuple[str, bool]]:
    """Queues 0-7 as the ranges SONiC writes, ``0-2`` ``3`` ``4-7``, with whether each is lossless."""
    spans: list[tuple[list[int], bool]] = []
    for queue in range(8):
        kind = queue in lossless
        if spans and spans[-1][1] == kind and not kind:
            spans[-1][0].append(queue)
        else:
            spans.append(([queue], kind))
    return [(f"{q[0]}-{q[-1]}" if len(q) > 1 else str(q[0]), kind) for q, kind in spans]
