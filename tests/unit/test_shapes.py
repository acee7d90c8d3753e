"""Generators against published reference counts, and the properties every fabric must have."""

from __future__ import annotations

import importlib.util
import io
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fabtest.model import Fabric, Tier
from fabtest.topology import load_fabric, load_fabric_text, shipped_topologies

SHIPPED = sorted(shipped_topologies())


def counts(fabric: Fabric) -> tuple[int, int, int]:
    tiers = Counter(s.tier for s in fabric.switches)
    return tiers[Tier.LEAF], tiers[Tier.SPINE], tiers[Tier.SUPERSPINE]


def build(**words: Any) -> Fabric:
    return load_fabric_text(yaml.safe_dump(words), "test.yml", default_name="test")


@pytest.fixture(scope="session")
def reference(shared: Path) -> Any:
    spec = importlib.util.spec_from_file_location("sizing_reference", shared / "tools" / "sizing_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    return module


def test_all_that_was_promised_is_shipped() -> None:
    assert {
        "clos-2x2", "clos-4x2", "rail-4x4", "rail-8x8", "rail-only", "dual-plane", "clos-3tier", "clos-32x8",
        "clos-112x16", "rail-8192",
    } <= set(SHIPPED)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "switches", "servers", "gpus"),
    [
        ("clos-32x8", 40, 128, 128),
        ("clos-112x16", 128, 448, 448),
        ("rail-4x4", 8, 4, 16),
        ("rail-8192", 640, 1024, 8192),
    ],
)
def test_sizes(name: str, switches: int, servers: int, gpus: int) -> None:
    fabric = load_fabric(shipped_topologies()[name])
    assert len(fabric.switches) == switches
    assert len(fabric.servers) == servers
    assert sum(nic.gpus for s in fabric.servers for nic in s.nics) == gpus


def test_paper_size_is_nvidias() -> None:
    """8,192 GPUs at radix 64: 256 leaves, 256 spines, 128 cores (NVIDIA B200 reference architecture)."""
    assert counts(load_fabric(shipped_topologies()["rail-8192"])) == (256, 256, 128)


@pytest.mark.parametrize("gpus", [256, 512, 1024, 2048])
def test_rail_two_tiers_against_reference(reference: Any, gpus: int) -> None:
    want = reference.rail_opt(gpus, 64)
    spines = want["spine"]
    fabric = build(
        kind="rail", units=want["SU"], rails=8, servers_per_unit=gpus // 8 // want["SU"], spines=spines,
        links_per_spine=max(1, 32 // spines), switches={"leaf": {"ports": 64}, "spine": {"ports": 64}},
        addressing={"leaf_prefix_length": 25},
    )  # fmt: skip
    assert counts(fabric) == (want["leaf"], spines, 0)
    assert sum(1 for link in fabric.links if link.tier is Tier.SERVER) == gpus
    assert sum(1 for _ in fabric.fabric_links) == want["leaf_spine"]


@pytest.mark.parametrize("gpus", [512, 1024])
def test_dual_plane_against_reference(reference: Any, gpus: int) -> None:
    want = reference.dual_plane(gpus, 128)
    units = want["leaf"] // 2 // 8 or 1
    per_unit = gpus // 8 // units
    spines = want["spine"] // 2
    fabric = build(
        kind="dual-plane", planes=2, units=units, rails=8, servers_per_unit=per_unit, spines=spines,
        links_per_spine=64 // spines, switches={"leaf": {"ports": 128}, "spine": {"ports": 128}},
        server={"nic_speed": "800G"},
    )  # fmt: skip
    assert counts(fabric) == (want["leaf"], want["spine"], 0)
    assert sum(1 for link in fabric.links if link.tier is Tier.SERVER) == want["nic_links"]


# -------------------------------------------------------------------------------------------------- properties


def invariants(fabric: Fabric) -> None:
    """What holds for every fabric whatever its shape."""
    ends = [end for link in fabric.links for end in (link.a, link.b)]
    assert len(ends) == len(set(ends)), "two cables in one port"
    for link in fabric.links:
        for end in (link.a, link.b):
            if end.node in fabric.switch:
                assert fabric.switch[end.node].port_named[end.port].speed == link.speed
    addresses = [a.ip for s in fabric.switches for group in s.addresses.values() for a in group]
    addresses += [a.ip for s in fabric.switches for a in s.loopbacks]
    addresses += [a.ip for s in fabric.servers for p in s.ports for a in p.addresses]
    addresses += [a.ip for s in fabric.switches for v in s.vlans for a in v.addresses]
    assert len(addresses) == len(set(addresses)), "an address is used twice"
    macs = [p.mac for s in fabric.servers for p in s.ports] + [s.mac for s in fabric.switches]
    assert len(macs) == len(set(macs)), "a MAC address is used twice"
    for switch in fabric.switches:
        lanes = [lane for p in switch.ports for lane in p.lanes]
        assert len(lanes) == len(set(lanes)), "a lane is used twice"
        for session in switch.sessions:
            other = fabric.switch[session.peer]
            back = next(s for s in other.sessions if s.port == session.peer_port)
            assert (back.peer, back.peer_port, back.peer_asn) == (switch.name, session.port, switch.asn)
            assert (back.local, back.remote) == (session.remote, session.local)
            assert session.peer_asn == other.asn != switch.asn
    leaf_asns = [s.asn for s in fabric.switches if s.tier is Tier.LEAF]
    assert len(leaf_asns) == len(set(leaf_asns)), "leaves share an ASN"
    for server in fabric.servers:
        for port in server.ports:
            leaf = fabric.switch[port.leaf.node]
            for address in port.addresses:
                assert any(address.ip in block for block in leaf.server_prefixes)
    for plane in fabric.planes:
        names = {s.name for s in fabric.switches if s.plane == plane}
        assert all((link.a.node in names) == (link.b.node in names) for link in fabric.fabric_links)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_fabrics_are_sound(name: str) -> None:
    invariants(load_fabric(shipped_topologies()[name]))


common = st.fixed_dictionaries(
    {},
    optional={
        "addressing": st.fixed_dictionaries(
            {},
            optional={
                "families": st.sampled_from(["ipv4", "ipv6", "dual"]),
                "fabric_links": st.sampled_from(["numbered", "unnumbered"]),
            },
        ),
        "bgp": st.fixed_dictionaries({"bfd": st.booleans()}),
        "qos": st.sampled_from(["roce-lossless", "lossy"]),
        "server": st.fixed_dictionaries({"attachment": st.sampled_from(["routed", "vlan"])}),
    },
)
big = {"leaf": {"ports": 128}, "spine": {"ports": 128}, "superspine": {"ports": 128}}
clos = st.fixed_dictionaries({
    "kind": st.just("clos"), "switches": st.just(big), "pods": st.integers(1, 3), "leaves": st.integers(1, 4),
    "spines": st.sampled_from([2, 4]), "superspines": st.sampled_from([2, 4]), "superspine_groups": st.sampled_from([1, 2]),
    "servers_per_leaf": st.integers(1, 4), "links_per_spine": st.integers(1, 3), "links_per_superspine": st.integers(1, 2),
})  # fmt: skip
rail = st.fixed_dictionaries({
    "kind": st.sampled_from(["rail", "dual-plane", "rail-only"]), "switches": st.just(big), "units": st.integers(1, 3),
    "rails": st.integers(1, 4), "servers_per_unit": st.integers(1, 4), "spines": st.integers(1, 4),
    "links_per_spine": st.integers(1, 3),
})  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(shape=st.one_of(clos, rail), words=common)
def test_generated_fabrics_are_sound(shape: dict[str, Any], words: dict[str, Any]) -> None:
    invariants(build(**shape, **words))


def plan_of(fabric: Fabric) -> dict[str, object]:
    """Everything that must not change when something is added at the end."""
    found: dict[str, object] = {}
    for s in fabric.switches:
        found[s.name] = (s.mac, s.asn, s.router_id, s.loopbacks, s.hash, s.server_prefixes)
        found |= {f"{s.name}:{port}": a for port, a in s.addresses.items()}
    for server in fabric.servers:
        found |= {f"{server.name}:{p.name}": (p.mac, p.addresses, p.gateways, p.leaf) for p in server.ports}
    found |= {str(link.a): str(link.b) for link in fabric.links}
    return found


GROW = [
    ({"kind": "rail", "rails": 4, "spines": 4, "servers_per_unit": 2}, "servers_per_unit"),
    ({"kind": "dual-plane", "rails": 2, "spines": 2, "servers_per_unit": 2}, "servers_per_unit"),
    ({"kind": "clos", "leaves": 3, "spines": 2, "servers_per_leaf": 2}, "leaves"),
    ({"kind": "clos", "leaves": 3, "spines": 2, "servers_per_leaf": 2}, "servers_per_leaf"),
    ({"kind": "clos", "pods": 2, "leaves": 2, "spines": 2, "superspines": 2, "servers_per_leaf": 2}, "pods"),
    ({"kind": "rail", "units": 2, "rails": 4, "spines": 4, "servers_per_unit": 2}, "units"),
    ({"kind": "rail-only", "units": 2, "rails": 4, "spines": 2, "servers_per_unit": 2}, "units"),
    ({"kind": "dual-plane", "units": 2, "rails": 2, "spines": 2, "servers_per_unit": 2}, "units"),
]


@pytest.mark.parametrize(("words", "key"), GROW)
def test_growing_at_the_end_renumbers_nothing(words: dict[str, Any], key: str) -> None:
    before = plan_of(build(**words))
    after = plan_of(build(**{**words, key: words[key] + 1}))
    if key == "servers_per_leaf":  # servers are named through the fabric, so only wiring and addresses of ports stay
        before = {k: v for k, v in before.items() if not k.startswith("gpu")}
        switch_side = {k: v for k, v in before.items() if "gpu" not in str(v)}
        assert {k: after[k] for k in switch_side} == switch_side
        return
    assert {k: after.get(k) for k in before} == before


def test_an_address_tells_rail_and_server() -> None:
    fabric = build(kind="rail", units=2, rails=4, spines=4, servers_per_unit=3)
    for server in fabric.servers:
        for nic in server.nics:
            octets = str(nic.ports[0].addresses[0].ip).split(".")
            assert int(octets[1]) == nic.rail
            assert int(octets[2]) == server.unit
    by_address = [(s.index, int(str(s.ports[0].addresses[0].ip).split(".")[3])) for s in fabric.servers if s.unit == 1]
    assert [a for _, a in by_address] == sorted(a for _, a in by_address)


def reaches(fabric: Fabric) -> Callable[[str, str], bool]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(s.name for s in fabric.switches)
    graph.add_edges_from((link.a.node, link.b.node) for link in fabric.fabric_links)
    return lambda a, b: nx.has_path(graph, a, b)


def test_rail_only_rails_never_meet() -> None:
    fabric = load_fabric(shipped_topologies()["rail-only"])
    path = reaches(fabric)
    leaves = [s for s in fabric.switches if s.tier is Tier.LEAF]
    assert all(path(a.name, b.name) == (a.rail == b.rail) for a in leaves for b in leaves)


def test_planes_share_no_switch() -> None:
    fabric = load_fabric(shipped_topologies()["dual-plane"])
    path = reaches(fabric)
    leaves = [s for s in fabric.switches if s.tier is Tier.LEAF]
    assert all(path(a.name, b.name) == (a.plane == b.plane) for a in leaves for b in leaves)
    for server in fabric.servers:
        for nic in server.nics:
            assert sorted(p.plane for p in nic.ports) == [1, 2]


def test_rail_of_a_nic_is_its_leafs() -> None:
    for name in ("rail-4x4", "rail-8x8", "rail-only", "dual-plane"):
        fabric = load_fabric(shipped_topologies()[name])
        for server in fabric.servers:
            for nic in server.nics:
                for port in nic.ports:
                    assert fabric.switch[port.leaf.node].rail == nic.rail
                    assert fabric.switch[port.leaf.node].unit == server.unit
