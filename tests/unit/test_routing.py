"""The routes a fabric should have."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from fabtest.model import Endpoint, Tier
from fabtest.topology import load_fabric, load_fabric_text, shipped_topologies
from fabtest.topology.routing import designed_routes, reachable_pairs


def test_two_tiers() -> None:
    fabric = load_fabric(shipped_topologies()["clos-4x2"])
    routes = designed_routes(fabric)
    far = fabric.switch["leaf2"].server_prefixes[0]
    assert routes.width("leaf1", far) == 2
    assert routes.width("spine1", far) == 1
    assert routes.width("leaf2", far) == 0, "its own block is connected, not a BGP route"
    spine2 = fabric.switch["spine2"].loopbacks[0].network
    assert routes.width("spine1", spine2) == 0, "spines share an ASN, so they do not learn of each other"


def test_a_session_that_is_down_narrows_what_it_should() -> None:
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    far = fabric.switch["leaf2"].server_prefixes[0]
    down = [Endpoint("spine1", "Ethernet0")]
    routes = designed_routes(fabric, down)
    assert routes.width("leaf1", far) == 1
    assert routes.width("leaf2", fabric.switch["leaf1"].server_prefixes[0]) == 1
    assert routes.width("spine1", fabric.switch["leaf1"].server_prefixes[0]) == 0
    assert designed_routes(fabric).width("leaf1", far) == 2


def test_three_tiers_go_up_once() -> None:
    fabric = load_fabric(shipped_topologies()["clos-3tier"])
    routes = designed_routes(fabric)
    for leaf in (s for s in fabric.switches if s.tier is Tier.LEAF):
        for other in (s for s in fabric.switches if s.tier is Tier.LEAF and s is not leaf):
            assert routes.width(leaf.name, other.server_prefixes[0]) == 2


def test_parallel_links_and_max_paths() -> None:
    text = "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 1\nlinks_per_spine: 3\n"
    fabric = load_fabric_text(text, "f", default_name="f")
    far = fabric.switch["leaf2"].server_prefixes[0]
    assert designed_routes(fabric).width("leaf1", far) == 6
    limited = load_fabric_text(text + "bgp: {max_paths: 4}\n", "f", default_name="f")
    assert designed_routes(limited).width("leaf1", far) == 4


def test_who_reaches_whom() -> None:
    fabric = load_fabric(shipped_topologies()["rail-only"])
    pairs = reachable_pairs(fabric)
    for (a, b), reach in pairs.items():
        assert reach == (fabric.switch[a].rail == fabric.switch[b].rail)


@pytest.mark.parametrize("name", ["clos-2x2", "rail-4x4", "dual-plane", "clos-3tier", "clos-32x8"])
def test_what_is_advertised_covers_what_is_originated(name: str) -> None:
    fabric = load_fabric(shipped_topologies()[name])
    for switch in fabric.switches:
        for prefix in (*switch.server_prefixes, *(loop.network for loop in switch.loopbacks)):
            assert any(prefix.subnet_of(pool) for pool in fabric.advertised[prefix.version])  # type: ignore[arg-type]
        for group in switch.addresses.values():
            for address in group:
                link = ip_network(address.network)
                inside = any(link.subnet_of(p) for p in fabric.advertised[link.version])  # type: ignore[arg-type]
                assert inside == any(link.subnet_of(p) for p in switch.server_prefixes)  # type: ignore[arg-type]
