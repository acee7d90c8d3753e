"""A fabric as containerlab, clabernetes and Air have it: schemas of those projects, and our own checks."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fabtest.errors import LabError, UsageError
from fabtest.litenode.container import lane_map, merged, wires
from fabtest.model import Emulation, Fabric
from fabtest.render import iter_files
from fabtest.render.air import air_topology
from fabtest.render.clabernetes import LIMIT, clabernetes_objects
from fabtest.render.containerlab import (
    Images,
    container_files,
    containerlab_topology,
    default_management,
    topology_faults,
)
from fabtest.render.containerlab import wires as fabric_wires
from fabtest.render.formats import formatted_files
from fabtest.runtime.containerlab.tool import Containerlab, last_error, parse_inspect
from fabtest.runtime.lock import LabLock, differences
from fabtest.sonic.config_db import render_config_db
from fabtest.sonic.db import ConfigDb
from fabtest.topology import load_fabric, load_fabric_text, shipped_topologies


@cache
def go_module(module: str) -> Path:
    """The folder of a Go module, which also holds what is published with it; skips where it cannot be had."""
    if shutil.which("go") is None:
        pytest.skip(f"the schema comes with the Go module {module}; Go is not installed")
    done = subprocess.run(
        ["go", "mod", "download", "-json", module], capture_output=True, text=True, cwd="/tmp", check=False, timeout=300
    )
    if done.returncode:
        pytest.skip(f"the schema comes with the Go module {module}, which cannot be had: {done.stdout[-200:]}")
    return Path(json.loads(done.stdout)["Dir"])


@pytest.fixture(scope="module")
def clab_schema() -> dict[str, Any]:
    text = (go_module("github.com/srl-labs/containerlab@v0.79.0") / "schemas" / "clab.schema.json").read_text()
    # Five of its patterns are not Python's: \p{...} is a Unicode property.
    schema: dict[str, Any] = json.loads(text.replace(r"[\\p{N}\\p{L}]", r"\\w"))
    jsonschema.Draft7Validator.check_schema(schema)
    return schema


@pytest.fixture(scope="module")
def topology_crd() -> dict[str, Any]:
    folder = go_module("github.com/srl-labs/clabernetes@v0.6.0") / "charts" / "clabernetes" / "crds"
    crd = yaml.safe_load((folder / "clabernetes.containerlab.dev_topologies.yaml").read_text())
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    closed: dict[str, Any] = _closed(schema)
    return closed


def _closed(schema: Any) -> Any:
    """As the API server treats it: unknown fields are not part of a structural schema (it would prune them)."""
    if isinstance(schema, dict):
        closed = {k: _closed(v) for k, v in schema.items() if k not in ("nullable",)}
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        if schema.get("type") == "object" and "properties" in schema and not open_ended:
            closed["additionalProperties"] = False
        return closed
    return [_closed(v) for v in schema] if isinstance(schema, list) else schema


def topology_of(fabric: Fabric) -> dict[str, Any]:
    return containerlab_topology(fabric, fabric.name, Images(), default_management(fabric, fabric.name))


@pytest.mark.parametrize("name", sorted(shipped_topologies()))
def test_shipped_topologies_pass_containerlabs_schema(name: str, clab_schema: dict[str, Any]) -> None:
    fabric = load_fabric(shipped_topologies()[name])
    fabric = replace(fabric, emulation=Emulation(cpu=1.5, memory="2GB", qp_hash=True))
    tree = dict(container_files(fabric, fabric.name, Images(), default_management(fabric, fabric.name)))
    value = yaml.safe_load(tree[f"{fabric.name}.clab.yml"])
    assert topology_faults(value) == []
    # Thousands of links that are all alike take minutes to validate one by one.
    value["topology"]["links"] = value["topology"]["links"][:500]
    jsonschema.validate(value, clab_schema)
    assert value["topology"]["kinds"]["sonic-vs"]["cpu"] == 1.5


def test_the_schema_is_a_check(clab_schema: dict[str, Any]) -> None:
    value = topology_of(load_fabric(shipped_topologies()["clos-2x2"]))
    value["topology"]["nodes"]["leaf1"]["colour"] = "red"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, clab_schema)


def _no_such_node(value: dict[str, Any]) -> None:
    value["topology"]["links"][0]["endpoints"][0]["node"] = "leaf99"


def _three_ends(value: dict[str, Any]) -> None:
    link = value["topology"]["links"][0]
    link["endpoints"].append({"node": "leaf1", "interface": "eth30"})


def _sonic_name(value: dict[str, Any]) -> None:
    value["topology"]["links"][0]["endpoints"][1]["interface"] = "Ethernet0"


def _twice(value: dict[str, Any]) -> None:
    links = value["topology"]["links"]
    links[1]["endpoints"][1] = dict(links[0]["endpoints"][1])


def _same_mac(value: dict[str, Any]) -> None:
    ends = [end for link in value["topology"]["links"] for end in link["endpoints"] if "mac" in end]
    ends[1]["mac"] = ends[0]["mac"]


def _unknown_kind(value: dict[str, Any]) -> None:
    value["topology"]["nodes"]["leaf1"]["kind"] = "sonic"


def _mtu(value: dict[str, Any]) -> None:
    value["topology"]["links"][0]["mtu"] = 10


@pytest.mark.parametrize(
    ("mutation", "words"),
    [
        (_no_such_node, "no node 'leaf99'"),
        (_three_ends, "3 ends"),
        (_sonic_name, "'Ethernet0' of leaf1"),
        (_twice, "has a cable already"),
        (_same_mac, "used twice"),
        (_unknown_kind, "unknown kind"),
        (_mtu, "not an MTU"),
    ],
)
def test_faults_the_schema_lets_pass(mutation: Any, words: str) -> None:
    value = copy.deepcopy(topology_of(load_fabric(shipped_topologies()["clos-2x2"])))
    mutation(value)
    assert words in "; ".join(topology_faults(value))


def test_wires_are_numbered_as_ports_and_have_their_lanes() -> None:
    """On the image lanes tie a port of CONFIG_DB to its wire: both halves of that must agree, break-out or not."""
    for name in ("clos-32x8", "dual-plane", "rail-8x8"):
        fabric = load_fabric(shipped_topologies()[name])
        tree = dict(container_files(fabric, name, Images(), default_management(fabric, name)))
        for switch in fabric.switches:
            lanes = lane_map(tree[f"{switch.name}/hwsku/lanemap.ini"].decode())
            assert len(lanes) == len(switch.ports)
            config = render_config_db(fabric, switch)
            of_image = wires(config, lanes)
            cabled = fabric_wires(fabric, switch)
            assert {port: of_image[port] for port in cabled} == cabled
            listed = dict(line.split() for line in tree[f"{switch.name}/ports"].decode().splitlines())
            assert listed == cabled


def test_a_port_without_lanes_in_the_map_has_no_wire() -> None:
    config: ConfigDb = {"PORT": {"Ethernet0": {"lanes": "1,2"}, "Ethernet2": {"lanes": "3,4"}, "Ethernet4": {}}}
    assert wires(config, lane_map("eth1:1,2\n")) == {"Ethernet0": "eth1"}


def test_the_file_wins_over_what_start_up_knows() -> None:
    start: ConfigDb = {"DEVICE_METADATA": {"localhost": {"mac": "02:00:00:00:00:01", "hwsku": "x"}}}
    file: ConfigDb = {"DEVICE_METADATA": {"localhost": {"hwsku": "y"}}, "PORT": {"Ethernet0": {"mtu": "9100"}}}
    result = merged(start, file)
    assert result["DEVICE_METADATA"]["localhost"] == {"mac": "02:00:00:00:00:01", "hwsku": "y"}
    assert result["PORT"] == {"Ethernet0": {"mtu": "9100"}}


def test_rendering_is_stable_and_needs_no_machine() -> None:
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    for form in ("files", "containerlab", "clabernetes", "air"):
        assert dict(formatted_files(fabric, form)) == dict(formatted_files(fabric, form))
    with pytest.raises(UsageError, match="no format"):
        formatted_files(fabric, "gns3")


# -------------------------------------------------------------------------------------------------- clabernetes


def _validate_objects(fabric: Fabric, crd: dict[str, Any]) -> list[dict[str, Any]]:
    objects = list(clabernetes_objects(fabric, fabric.name, Images()))
    jsonschema.validate(objects[-1], crd)
    definition = yaml.safe_load(objects[-1]["spec"]["definition"]["containerlab"])
    maps = {o["metadata"]["name"]: o for o in objects if o["kind"] == "ConfigMap"}
    for node, files in objects[-1]["spec"]["deployment"]["filesFromConfigMap"].items():
        assert definition["topology"]["nodes"][node]["binds"][0].startswith(f"/clabernetes/{node}:")
        for file in files:
            assert file["configMapPath"] in maps[file["configMapName"]]["data"]
            assert re.fullmatch(r"[-._a-zA-Z0-9]+", file["configMapPath"])
    for o in objects:
        assert len(yaml.safe_dump(o)) <= LIMIT
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", o["metadata"]["name"])
    return objects


@pytest.mark.parametrize("name", ["clos-2x2", "rail-4x4", "dual-plane", "clos-3tier"])
def test_clabernetes_objects_pass_the_crd(name: str, topology_crd: dict[str, Any]) -> None:
    fabric = load_fabric(shipped_topologies()[name])
    objects = _validate_objects(fabric, topology_crd)
    assert len(objects) == len(fabric.node_names) + 1


def test_the_crd_is_a_check(topology_crd: dict[str, Any]) -> None:
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    topology = list(clabernetes_objects(fabric, "x", Images()))[-1]
    for path, value in ((("spec", "naming"), "odd"), (("spec", "colour"), "red"), (("spec", "deployment", "files"), 1)):
        broken = copy.deepcopy(topology)
        target = broken
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, topology_crd)


def test_a_hundred_nodes_render_for_kubernetes(topology_crd: dict[str, Any]) -> None:
    source = "kind: clos\nleaves: 24\nspines: 4\nservers_per_leaf: 3\n"
    fabric = load_fabric_text(source, "f.yml", default_name="hundred")
    assert len(fabric.node_names) == 100
    _validate_objects(fabric, topology_crd)


def test_an_object_too_large_for_kubernetes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    monkeypatch.setattr("fabtest.render.clabernetes.LIMIT", 20_000)
    with pytest.raises(UsageError, match="ConfigMap clos-2x2-leaf1 would be"):
        list(clabernetes_objects(fabric, fabric.name, Images()))


def test_limits_of_the_topology_reach_kubernetes() -> None:
    fabric = replace(
        load_fabric(shipped_topologies()["clos-2x2"]), emulation=Emulation(cpu=0.5, memory="3GB", sonic_image="r/s:1")
    )
    topology = list(clabernetes_objects(fabric, "x", Images("r/s:1", "r/h:1")))[-1]
    assert topology["spec"]["deployment"]["resources"]["leaf1"]["requests"] == {"cpu": "500m", "memory": "3Gi"}
    definition = yaml.safe_load(topology["spec"]["definition"]["containerlab"])
    assert definition["topology"]["kinds"]["sonic-vs"]["image"] == "r/s:1"
    assert definition["topology"]["kinds"]["sonic-vs"]["image-pull-policy"] == "IfNotPresent"


# ---------------------------------------------------------------------------------------------------------- Air

#: What NVIDIA's documentation of custom topologies and the SDK's node labels allow.
AIR = {
    "type": "object",
    "required": ["format", "title", "content"],
    "properties": {
        "format": {"const": "JSON"},
        "title": {"type": "string"},
        "ztp": {},
        "content": {
            "type": "object",
            "required": ["nodes", "links"],
            "additionalProperties": False,
            "properties": {
                "nodes": {
                    "additionalProperties": {
                        "type": "object",
                        "required": ["os"],
                        "additionalProperties": False,
                        "properties": {
                            "os": {"type": "string"},
                            "cpu": {"type": "integer"},
                            "memory": {"type": "integer"},
                            "storage": {"type": "integer"},
                            "labels": {
                                "additionalProperties": False,
                                "properties": {
                                    **{k: {"type": "string"} for k in ("group", "model", "sku", "role")},
                                    **{
                                        k: {"type": "integer"}
                                        for k in ("scalable_unit", "rail_index", "pod", "superspine_group", "plane_id")
                                    },
                                },
                            },
                        },
                    }
                },
                "links": {
                    "items": {
                        "minItems": 2,
                        "maxItems": 2,
                        "items": {
                            "required": ["interface", "node"],
                            "additionalProperties": False,
                            "properties": {"interface": {"pattern": r"^eth\d+$"}, "node": {"type": "string"}},
                        },
                    }
                },
            },
        },
    },
}


@pytest.mark.parametrize("name", ["rail-8x8", "dual-plane", "clos-3tier"])
def test_air_topology_keeps_to_the_published_format(name: str) -> None:
    fabric = load_fabric(shipped_topologies()[name])
    value = air_topology(fabric, name)
    jsonschema.validate(value, AIR)
    ends = [end for link in value["content"]["links"] for end in link]
    assert {e["node"] for e in ends} <= value["content"]["nodes"].keys()
    assert len({(e["node"], e["interface"]) for e in ends}) == len(ends)
    for switch in fabric.switches:
        labels = value["content"]["nodes"][switch.name]["labels"]
        assert labels["plane_id"] == switch.plane
        assert labels.get("rail_index") == switch.rail


# ------------------------------------------------------------------------------------------------- the wrapper

#: What containerlab 0.79 prints, and what releases before 0.68 did (their types/types.go).
NEW = """{"t1": [{"lab_name": "t1", "labPath": "t1.clab.yml", "absLabPath": "/tmp/t1.clab.yml", "name": "clab-t1-gpu1",
 "container_id": "0123456789ab", "image": "fabtest/host", "kind": "linux", "group": "server", "state": "running",
 "status": "Up 5 seconds", "ipv4_address": "172.31.7.3/24", "ipv6_address": "N/A"}]}"""
OLD = """{"containers": [{"lab_name": "t1", "labPath": "t1.clab.yml", "name": "clab-t1-gpu1", "container_id": "0123456789ab",
 "image": "fabtest/host", "kind": "linux", "group": "server", "state": "running", "status": "Up", "ipv4_address":
 "172.31.7.3/24", "ipv6_address": "N/A"}]}"""


@pytest.mark.parametrize("text", [NEW, OLD])
def test_inspect_of_every_release_is_read(text: str) -> None:
    (container,) = parse_inspect(text)
    assert (container.lab, container.node, container.ipv4) == ("t1", "gpu1", "172.31.7.3")


def test_inspect_without_labs_and_without_sense() -> None:
    assert parse_inspect("{}") == []
    assert parse_inspect("") == []
    for text in ("not json", "[1]", '{"a": 3}'):
        with pytest.raises(LabError, match="not its JSON"):
            parse_inspect(text)


def _program(folder: Path, script: str) -> Path:
    path = folder / "containerlab"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '    version: 0.54.2'", "0.54.2 is too old"),
        ("echo nothing", "does not work"),
        ("echo 'ERRO no daemon' >&2; exit 1", "no daemon"),
    ],
)
def test_a_containerlab_that_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    _program(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Exception, match=words):
        Containerlab.find()


def test_what_containerlab_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(
        tmp_path,
        "if [ $1 = version ]; then echo '  version: 0.79.0'; exit; fi\n"
        "echo '12:00:01 INFO Creating container name=leaf1' >&2\n"
        "echo '12:00:02 ERRO node leaf1: image not found' >&2\nexit 1",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    seen: list[str] = []
    topology = tmp_path / "x.clab.yml"
    topology.write_text("name: x\n")
    with pytest.raises(LabError, match="node leaf1: image not found"):
        Containerlab.find().deploy(topology, log=tmp_path / "log", line=seen.append)
    assert len(seen) == 2
    assert "Creating container" in (tmp_path / "log").read_text()


def test_the_last_error_is_the_reason() -> None:
    log = "10:00:00 INFO a\n10:00:01 ERRO first\n10:00:02 INFO b\nError: second\n10:00:03 INFO c\n"
    assert last_error(log) == "second"
    assert last_error("") == "it gave no reason"


# --------------------------------------------------------------------------------------------------- the lock


def test_differences_of_locks_are_named() -> None:
    lock = LabLock(
        1, "0.1", "netns", "a" * 64, "b" * 64, {"fabtest/host:latest": "c" * 64}, {"kernel": "6.1", "frr": "8.4"},
        {"leaf1": 7},
    )  # fmt: skip
    assert differences(lock, lock) == []
    other = replace(lock, rendered="d" * 64, versions={"kernel": "6.2", "frr": "8.4"}, seeds={"leaf1": 8}, images={})
    assert differences(lock, other) == [
        "rendered: bbbbbbbbbbbb is locked, dddddddddddd is here",
        "image fabtest/host:latest: cccccccccccc is locked, nothing is here",
        "version kernel: 6.1 is locked, 6.2 is here",
        "seed leaf1: 7 is locked, 8 is here",
    ]


def test_every_rendered_file_is_below_its_node() -> None:
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    names = [name for name, _ in iter_files(fabric)]
    names += [n for n, _ in container_files(fabric, "x", Images(), default_management(fabric, "x"))]
    assert len(names) == len(set(names))
    assert not [n for n in names if ".." in n or n.startswith("/")]
