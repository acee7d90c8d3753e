"""A fabric for Kubernetes through clabernetes: one ``Topology`` (v1alpha1) and a ConfigMap per node, in one file.

clabernetes runs containerlab in a pod per node, below /clabernetes; the files of a node reach it there from its
ConfigMap. Objects above Kubernetes' limit of 1 MiB are refused here, not by the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from fabtest.errors import UsageError
from fabtest.model import Fabric
from fabtest.render.containerlab import (
    SERVER_FOLDER,
    SWITCH_FOLDER,
    Images,
    container_files,
    containerlab_topology,
    default_management,
)
from fabtest.render.files import iter_files

API = "clabernetes.containerlab.dev/v1alpha1"
#: etcd's and so Kubernetes' limit of an object, bytes (a ConfigMap's documented one).
LIMIT = 1 << 20
#: What a pod gets where the topology does not say: it holds a Docker engine, containerlab, and the node.
SWITCH_REQUESTS = {"cpu": "500m", "memory": "1Gi"}
SERVER_REQUESTS = {"cpu": "200m", "memory": "512Mi"}
#: Files of a node its container reads.
SWITCH_FILES = (
    "config_db.json", "frr.conf", "switch.json", "sonic-vs.sh", "ports", "sysctl.conf", "hwsku/lanemap.ini",
    "hwsku/port_config.ini",
)  # fmt: skip
SERVER_FILES = ("network.sh",)


def clabernetes_objects(fabric: Fabric, lab: str, images: Images) -> Iterator[dict[str, Any]]:
    """ConfigMaps, then the Topology. Raises UsageError if one would not fit into Kubernetes."""
    tree = dict(iter_files(fabric))
    tree |= dict(container_files(fabric, lab, images, default_management(fabric, lab)))
    mounts: dict[str, list[dict[str, str]]] = {}
    definition = containerlab_topology(fabric, lab, images, default_management(fabric, lab), pull=True)
    # The pods' own network takes the place of the management network.
    del definition["mgmt"]
    for node, spec in definition["topology"]["nodes"].items():
        wanted = SWITCH_FILES if node in fabric.switch else SERVER_FILES
        data = {_key(name): tree[f"{node}/{name}"].decode() for name in wanted}
        labels = {"fabtest/lab": lab, **{f"fabtest/{key}": value for key, value in spec["labels"].items()}}
        yield _fits(
            {
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": f"{lab}-{node}", "labels": {**labels, "fabtest/node": node}}, "data": data,
            }
        )  # fmt: skip
        mounts[node] = [
            {
                "filePath": f"/clabernetes/{node}/{name}", "configMapName": f"{lab}-{node}",
                "configMapPath": _key(name), "mode": "read",
            }
            for name in wanted
        ]  # fmt: skip
        spec["binds"] = [f"/clabernetes/{node}:{SWITCH_FOLDER if node in fabric.switch else SERVER_FOLDER}:ro"]
    yield _fits(
        {
            "apiVersion": API,
            "kind": "Topology",
            "metadata": {"name": lab, "labels": {"fabtest/lab": lab}},
            "spec": {
                "definition": {"containerlab": yaml.safe_dump(definition, sort_keys=False, width=120)},
                "deployment": {
                    "privilegedLauncher": True,
                    "resources": {
                        name: {"requests": _requests(fabric) if name in fabric.switch else SERVER_REQUESTS}
                        for name in fabric.node_names
                    },
                    "filesFromConfigMap": mounts,
                },
                "expose": {"disableExpose": True, "exposeType": "None"},
                "naming": "prefixed",
                "statusProbes": {"enabled": False},
            },
        }
    )


def _key(name: str) -> str:
    """A file name as a ConfigMap key, which may hold no slash."""
    return name.replace("/", "-")


def _requests(fabric: Fabric) -> dict[str, str]:
    emulation = fabric.emulation
    requests = dict(SWITCH_REQUESTS)
    if emulation.cpu is not None:
        requests["cpu"] = f"{round(emulation.cpu * 1000)}m"
    if emulation.memory:
        scale = {"k": "Ki", "m": "Mi", "g": "Gi"}[emulation.memory[-2].lower()]
        requests["memory"] = emulation.memory[:-2] + scale
    return requests


def _fits(value: dict[str, Any]) -> dict[str, Any]:
    size = len(yaml.safe_dump(value).encode())
    if size > LIMIT:
        name = f"{value['kind']} {value['metadata']['name']}"
        raise UsageError(
            f"{name} would be {size >> 10} KiB; Kubernetes takes 1024",
            hint="use a smaller fabric, or switches with fewer ports",
        )
    return value


def clabernetes_file(fabric: Fabric, lab: str, images: Images) -> bytes:
    """All objects as one YAML stream, for ``kubectl apply --server-side``."""
    return yaml.safe_dump_all(clabernetes_objects(fabric, lab, images), sort_keys=False, width=120).encode()
