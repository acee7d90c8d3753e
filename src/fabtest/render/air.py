"""A fabric for NVIDIA Air: the JSON its import takes, with its own node labels for rails, units and planes.

Format after NVIDIA's documentation of custom topologies; labels after ``NodeLabels`` of its SDK. Switch port N is
``eth N``, as SONiC-VS numbers its wires. ``config_db.json`` and ``frr.conf`` are not part of it: they are copied onto
the running switches.
"""

from __future__ import annotations

from typing import Any

from fabtest.model import Endpoint, Fabric, Server, Switch
from fabtest.render.containerlab import wire

#: Image names of Air's catalogue, and what its documentation gives nodes with them: CPUs, MiB, GB.
SONIC_OS, SERVER_OS = "sonic-vs-202305", "generic/ubuntu2404"
SWITCH_SIZE = {"cpu": 2, "memory": 4096, "storage": 10}
SERVER_SIZE = {"cpu": 2, "memory": 2048, "storage": 10}


def air_topology(fabric: Fabric, title: str) -> dict[str, Any]:
    """The whole import document."""
    nodes: dict[str, Any] = {s.name: {**SWITCH_SIZE, "os": SONIC_OS, "labels": _labels(s)} for s in fabric.switches}
    nodes |= {s.name: {**SERVER_SIZE, "os": SERVER_OS, "labels": _server_labels(s)} for s in fabric.servers}
    return {
        "format": "JSON",
        "title": title,
        "ztp": None,
        "content": {
            "nodes": nodes,
            "links": [[_end(fabric, link.a), _end(fabric, link.b)] for link in fabric.links],
        },
    }


def _labels(switch: Switch) -> dict[str, str | int]:
    labels: dict[str, str | int] = {"role": switch.tier.name.lower(), "plane_id": switch.plane}
    if switch.rail is not None:
        labels["rail_index"] = switch.rail
    if switch.unit is not None:
        labels["scalable_unit"] = switch.unit
        labels["pod"] = switch.unit
    return labels


def _server_labels(server: Server) -> dict[str, str | int]:
    labels: dict[str, str | int] = {"role": "server"}
    if server.unit is not None:
        labels["scalable_unit"] = server.unit
        labels["pod"] = server.unit
    return labels


def _end(fabric: Fabric, end: Endpoint) -> dict[str, str]:
    switch = fabric.switch.get(end.node)
    return {"interface": wire(switch, end.port) if switch else end.port, "node": end.node}
