"""The state of a running fabric as a value that can be kept and compared: routes with their next hops, sessions,
ports, and QoS in every database."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fabtest import __version__
from fabtest.change.diff import qos_of
from fabtest.checks.observe import asic_objects, bgp_routes, links, name_maps, sessions
from fabtest.errors import ExecError, FileProblem, LabError
from fabtest.litenode.database import read_config
from fabtest.model import Switch
from fabtest.runtime.base import Capability, Lab
from fabtest.sonic.asic import QOS_TYPES, asic_qos
from fabtest.sonic.db import DbId
from fabtest.sonic.effective import QOS_TABLES

FORMAT = 1
#: Tables of APPL_DB that carry QoS.
APPL_QOS = ("BUFFER_POOL_TABLE", "BUFFER_PROFILE_TABLE", "BUFFER_PG_TABLE", "BUFFER_QUEUE_TABLE",
            "BUFFER_PORT_INGRESS_PROFILE_LIST_TABLE", "BUFFER_PORT_EGRESS_PROFILE_LIST_TABLE")  # fmt: skip


@dataclass(frozen=True)
class SwitchState:
    """One switch. ``routes``: prefix -> local ports of its next-hop group; ``sessions``: peer -> state; ``ports``:
    port -> ``up``/``down`` and MTU; ``qos``: database -> where -> values."""

    routes: dict[str, list[str]]
    sessions: dict[str, str]
    ports: dict[str, str]
    qos: dict[str, dict[str, dict[str, str]]]
    trouble: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A whole fabric at one moment (UTC)."""

    lab: str
    topology: str
    runtime: str
    at: str
    switches: dict[str, SwitchState]


def take(lab: Lab, runtime: str) -> Snapshot:
    """Read every switch of a lab; one that does not answer is in it, with what is wrong."""
    states = {}
    for switch in lab.fabric.switches:
        try:
            states[switch.name] = _state(lab, switch)
        except (ExecError, LabError) as error:
            states[switch.name] = SwitchState({}, {}, {}, {}, error.message)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Snapshot(lab.name, lab.fabric.name, runtime, at, states)


def _state(lab: Lab, switch: Switch) -> SwitchState:
    node = lab.node(switch.name)
    kernel = links(node)
    cabled = [link.end(switch.name).port for link in lab.fabric.links_of[switch.name]]
    ports = {
        port: f"{'up' if kernel[port].up and kernel[port].running else 'down'}, MTU {kernel[port].mtu}"
        for port in cabled
        if port in kernel
    }
    return SwitchState(
        routes={str(prefix): sorted(ports) for prefix, ports in sorted(bgp_routes(lab, switch).items(), key=str)},
        sessions={s.peer: s.state for s in sessions(lab, switch)},
        ports=ports,
        qos=dict(_qos(lab, switch, cabled)),
    )


def _qos(lab: Lab, switch: Switch, cabled: list[str]) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    node = lab.node(switch.name)
    config = read_config(node.db(DbId.CONFIG), QOS_TABLES)
    yield "CONFIG_DB", {port: qos_of(config, port) for port in cabled}
    appl = node.db(DbId.APPL)
    rows = {}
    for table in APPL_QOS:
        for key in sorted(appl.scan_iter(f"{table}:*", count=1000)):
            rows[key] = appl.hgetall(key)
    yield "APPL_DB", rows
    if Capability.ASIC_DB in lab.capabilities:
        objects = asic_objects(node.db(DbId.ASIC), QOS_TYPES)
        names = name_maps(node)
        found = {}
        for port in cabled:
            q = asic_qos(objects, names, port)
            found[port] = {**q.maps, **q.pfc, **q.ecn, **q.buffers}
        yield "ASIC_DB", found


def write(snapshot: Snapshot, path: Path) -> None:
    """Keep a snapshot as JSON. Raises FileProblem."""
    value = {"format": FORMAT, "fabtest": __version__, **asdict(snapshot)}
    try:
        path.write_text(json.dumps(value, indent=2) + "\n")
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}") from None


def read(path: Path) -> Snapshot:
    """What ``write`` wrote. Raises FileProblem."""
    try:
        value: Any = json.loads(path.read_text())
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise FileProblem(f"{path} is no snapshot: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise FileProblem(f"{path} is no snapshot of this version (format {FORMAT})", hint="`lab-snapshot` makes one")
    try:
        switches = {str(name): SwitchState(**state) for name, state in value["switches"].items()}
        return Snapshot(value["lab"], value["topology"], value["runtime"], value["at"], switches)
    except (KeyError, TypeError, AttributeError):
        raise FileProblem(f"{path} is not a whole snapshot", hint="`lab-snapshot` makes one") from None
