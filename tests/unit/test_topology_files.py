"""Topology files: what is wrong in one is said all at once, with its place; fuzz never gives a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fabtest.errors import FabtestError, FileProblem, TopologyError
from fabtest.topology import load_fabric, load_fabric_text, shipped_topologies, topology_path
from fabtest.topology.schema import KINDS, json_schema

GOOD = "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 2\n"


def faults(text: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        load_fabric_text(text, "f.yml", default_name="f")
    return [p.text("f.yml") for p in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "leafs: 3\n", ["f.yml:5:1: leafs: unknown key (did you mean leaves?)"]),
        ("kind: closs\n", ["f.yml:1:7: kind: 'closs' is not a kind of fabric (did you mean clos?)"]),
        ("leaves: 2\n", ["f.yml:1:1: kind: missing (one of clos, rail, rail-only, dual-plane, custom)"]),
        (GOOD.replace("leaves: 2", "leaves: two"), ["f.yml:2:9: leaves: input should be a valid integer"]),
        (GOOD + "name: Bad_Name\n", ["f.yml:5:7: name: 'Bad_Name' is not a host name"]),
        (GOOD.replace("leaves: 2", "leaves: 200"), ["f.yml:1:1: switches.spine: spine1: too many links for the radix: 200 downlinks"]),
        (
            GOOD + "addressing:\n  server_pool: 10.0.0.0/8\n  fabric_pool: 10.1.0.0/16\n",
            ["f.yml:7:16: addressing.fabric_pool", "overlap"],
        ),
        (GOOD + "server:\n  nic_speed: 100G\n", ["f.yml:6:14: server.nic_speed: speeds do not match"]),
        (GOOD + "addressing: {families: ipv5}\n", ["addressing.families"]),
        (GOOD + "mtu: 90\nbgp:\n  keepalive: 0\n  foo: 1\n", ["f.yml:5:6: mtu", "f.yml:7:14: bgp.keepalive", "f.yml:8:3: bgp.foo: unknown key"]),
        ("kind: [clos\n", ["f.yml:2:1"]),
        ("kind: clos\nkind: rail\n", ["f.yml:2:1: kind", "twice"]),
        ("", ["f.yml:1:1"]),
        ("- a\n", ["f.yml:1:1"]),
    ],
)  # fmt: skip
def test_every_fault_has_its_place(text: str, expected: list[str]) -> None:
    found = "\n".join(faults(text))
    for words in expected:
        assert words in found, found


CUSTOM = (
    "kind: custom\nnodes:\n  - {name: leaf1}\n  - {name: spine1, tier: spine}\nservers:\n  - {name: gpu1}\nlinks:\n"
    "  - {a: leaf1:Ethernet0, b: spine1:Ethernet0}\n  - {a: gpu1, b: leaf1}\n"
)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("  - {a: leaf1:Ethernet0, b: spine1:Ethernet8}\n", ["f.yml:10:", "Ethernet0"]),
        ("  - {a: leef1, b: spine1}\n", ["there is no node 'leef1' (did you mean leaf1?)"]),
        ("  - {a: gpu1, b: gpu1}\n", ["both ends are on the same node"]),
        ("  - {a: leaf1:Ethernet7, b: spine1}\n", ["Ethernet7"]),
    ],
)
def test_custom_faults(extra: str, expected: list[str]) -> None:
    load_fabric_text(CUSTOM, "f.yml", default_name="f")
    found = "\n".join(faults(CUSTOM + extra))
    for words in expected:
        assert words in found, found


def test_several_faults_are_said_at_once() -> None:
    found = faults("kind: clos\nleaves: -1\nspines: x\nservers_per_leaf: 2\nmtuu: 1\n")
    assert [re.sub(r": .*", "", f) for f in found] == ["f.yml:2:9", "f.yml:3:9", "f.yml:5:1"]


def test_no_such_file_or_name(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match=r"did you mean clos-2x2"):
        topology_path("clos-2x")
    with pytest.raises(FileProblem, match="no such file"):
        topology_path(str(tmp_path / "x.yml"))
    with pytest.raises(FileProblem):
        load_fabric(tmp_path)
    binary = tmp_path / "b.yml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="not UTF-8"):
        load_fabric(binary)


@pytest.mark.parametrize(
    "text", ["a: &x [*x]\n", "a: &x 1\nb: *x\n", "!!python/object:os.system {}\n", "a: !!binary x\n"]
)
def test_yaml_that_is_more_than_data(text: str) -> None:
    assert faults(text)


# -------------------------------------------------------------------------------------------------------- fuzz

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10_000), st.floats(allow_nan=True), st.text(max_size=12),
    st.sampled_from(["400G", "2x200G", "10.0.0.0/8", "clos", "rail", "ipv4", "roce-lossless", "leaf1:Ethernet0"]),
)  # fmt: skip
words = st.sampled_from(
    sorted({field for model in KINDS.values() for field in model.model_fields} | {"ports", "nics", "a", "b", "fields"})
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=250, deadline=None)
@given(kind=st.sampled_from([*KINDS, "x"]), body=st.dictionaries(words, trees, max_size=8))
def test_fuzzed_structures_give_faults_not_tracebacks(kind: str, body: dict[str, Any]) -> None:
    small = {k: v for k, v in body.items() if not (isinstance(v, int) and v > 64)}
    try:
        load_fabric_text(yaml.safe_dump({**small, "kind": kind}), "f.yml", default_name="f")
    except FabtestError as error:
        assert "f.yml" in str(error)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_fuzzed_text_gives_faults_not_tracebacks(data: st.DataObject) -> None:
    """Shipped files with bytes replaced, removed and doubled."""
    text = data.draw(st.sampled_from([GOOD, CUSTOM]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 6))
        text = text[:at] + data.draw(st.text(alphabet="abk:{}[]-&*!|>'\"#%@ \n\t0129é", max_size=4)) + text[at + cut :]
    text = re.sub(r"\d{4,}", "9", text)  # sizes that would only take time
    try:
        load_fabric_text(text, "f.yml", default_name="f")
    except FabtestError as error:
        assert str(error)


# ------------------------------------------------------------------------------------------------------ schema


@pytest.mark.parametrize("name", sorted(shipped_topologies()))
def test_json_schema_accepts_what_is_shipped(name: str) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(shipped_topologies()[name].read_text()), schema)


def test_json_schema_refuses_what_load_refuses() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(GOOD + "leafs: 3\n"), json_schema())


def test_docs_name_every_key() -> None:
    """docs/topology.md documents every key of every kind."""
    text = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    missing = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            for key, value in node.get("properties", {}).items():
                if f"`{key}`" not in text:
                    missing.append(f"{path}.{key}")
                walk(value, f"{path}.{key}")
            for key, value in node.get("$defs", {}).items():
                walk(value, key)

    walk(json.loads(json.dumps(json_schema())), "")
    assert not missing
