"""Suite ``qos-config``: CONFIG_DB of every running switch treats every cabled port as the topology intends."""

from __future__ import annotations

from collections.abc import Callable

from fabtest.checks.observe import asic_objects, name_maps
from fabtest.checks.verdict import Finding, NotApplicable, Verdict, judge
from fabtest.litenode.database import read_config
from fabtest.model import Switch
from fabtest.runtime.base import Capability, Lab
from fabtest.sonic.asic import QOS_TYPES, NameMaps, Objects, asic_qos, comparable
from fabtest.sonic.config_db import render_config_db
from fabtest.sonic.db import ConfigDb, DbId
from fabtest.sonic.effective import QOS_TABLES, Aspect, PortQos, port_qos

#: An aspect with more differences than this on one port is summed up.
PER_PORT = 3


def maps(lab: Lab) -> Verdict:
    """DSCP to traffic class, class to queue and priority group, PFC priority to queue."""
    return _compare(lab, "qos-config.maps", lambda q: q.maps, "classifies by DSCP")


def pfc(lab: Lab) -> Verdict:
    """PFC is on for exactly the lossless priorities."""
    return _compare(lab, "qos-config.pfc", lambda q: q.pfc, "has PFC on the priorities")


def ecn(lab: Lab) -> Verdict:
    """ECN marking: switched on, with the intended thresholds, on the RoCE queue."""
    return _compare(lab, "qos-config.ecn", lambda q: q.ecn, "marks ECN")


def schedulers(lab: Lab) -> Verdict:
    """Schedulers of every queue: strict for CNP, weights for the others."""
    return _compare(lab, "qos-config.schedulers", lambda q: q.schedulers, "schedules its queues")


def buffers(lab: Lab) -> Verdict:
    """Buffer pools, profiles and headroom of every priority group and queue."""
    return _compare(lab, "qos-config.buffers", lambda q: q.buffers, "has the buffers")


def watchdog(lab: Lab) -> Verdict:
    """The PFC watchdog guards the lossless priorities."""
    if not lab.fabric.qos.watchdog:
        raise NotApplicable(f"QoS profile {lab.fabric.qos.profile} has no PFC watchdog")
    return _compare(lab, "qos-config.watchdog", lambda q: q.watchdog, "has the PFC watchdog")


def asic(lab: Lab) -> Verdict:
    """What orchagent programmed (ASIC_DB) is what CONFIG_DB asks for: PFC bits, maps, WRED and ECN, buffers."""
    if Capability.ASIC_DB not in lab.capabilities:
        raise NotApplicable("the switches of this lab have no ASIC_DB (lite nodes do not run orchagent)")
    findings: list[Finding] = []
    ports = values = 0
    for switch in lab.fabric.switches:
        node = lab.node(switch.name)
        config = read_config(node.db(DbId.CONFIG), QOS_TABLES)
        objects = asic_objects(node.db(DbId.ASIC), QOS_TYPES)
        names = name_maps(node)
        for port in _cabled(lab, switch):
            ports += 1
            found, compared = asic_findings(config, objects, names, switch.name, port)
            findings += found
            values += compared
    good = f"orchagent programmed every one of {ports} cabled ports as CONFIG_DB has it ({values} values compared)"
    return judge("qos-config.asic", good, findings, ports=ports, values=values)


def asic_findings(
    config: ConfigDb, objects: Objects, names: NameMaps, switch: str, port: str
) -> tuple[list[Finding], int]:
    """Differences of one port between CONFIG_DB and ASIC_DB, and how many values were compared."""
    want, have = comparable(port_qos(config, port)), asic_qos(objects, names, port)
    found: list[Finding] = []
    compared = 0
    for aspect in (want.pfc, want.maps, want.ecn, want.buffers):
        compared += len(aspect)
    for wanted, programmed in (
        (want.pfc, have.pfc), (want.maps, have.maps), (want.ecn, have.ecn), (want.buffers, have.buffers)
    ):  # fmt: skip
        # What the ASIC has beyond CONFIG_DB is SAI's default, but a PFC bit that nobody asked for is a fault.
        shown = programmed if wanted is want.pfc else {k: v for k, v in programmed.items() if k in wanted}
        found += _differences(f"{switch}:{port}", wanted, shown)
    return found, compared


def _compare(lab: Lab, check: str, aspect: Callable[[PortQos], Aspect], what: str) -> Verdict:
    findings: list[Finding] = []
    ports = values = 0
    for switch in lab.fabric.switches:
        live = read_config(lab.node(switch.name).db(DbId.CONFIG), QOS_TABLES)
        intended = render_config_db(lab.fabric, switch)
        for port in _cabled(lab, switch):
            ports += 1
            want, have = aspect(port_qos(intended, port)), aspect(port_qos(live, port))
            values += len(want)
            findings += _differences(f"{switch.name}:{port}", want, have)
    good = f"every one of {ports} cabled ports {what} as intended ({values} values compared)"
    return judge(check, good, findings, ports=ports, values=values)


def _cabled(lab: Lab, switch: Switch) -> list[str]:
    return [link.end(switch.name).port for link in lab.fabric.links_of[switch.name]]


def _differences(where: str, want: Aspect, have: Aspect) -> list[Finding]:
    found = []
    for name in [*(n for n in have if n not in want), *want]:  # what should not be there tells most
        if want.get(name) != have.get(name):
            found.append(f"{name} is {have.get(name, 'not set')}, should be {want.get(name, 'not set')}")
    if len(found) > PER_PORT:
        found = [*found[:PER_PORT], f"and {len(found) - PER_PORT} more"]
    return [Finding(where, ", ".join(found))] if found else []
