"""What CONFIG_DB asks of the kernel, and what is published: pure parts of the lite node."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from fabtest.litenode import lldp, publish
from fabtest.litenode.intent import switch_intent
from fabtest.litenode.kernel import reconcile_links
from fabtest.runtime.netlink import LinkInfo, RouteInfo
from fabtest.sonic.config_db import render_config_db
from fabtest.sonic.db import from_redis, to_redis
from fabtest.topology import load_fabric, load_fabric_text, shipped_topologies

STATS = (0,) * 8


def link(name: str, index: int, **words: object) -> LinkInfo:
    base = {
        "up": True,
        "running": True,
        "mtu": 9100,
        "mac": "02:00:00:00:00:01",
        "master": 0,
        "xdp": False,
        "stats": STATS,
    }
    return LinkInfo(index, name, **{**base, **words})  # type: ignore[arg-type]


def test_intent_of_a_rendered_switch() -> None:
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    switch = fabric.switches[0]
    intent = switch_intent(render_config_db(fabric, switch))
    assert intent.warnings == ()
    assert {n for n, p in intent.ports.items() if p.admin_up} == {
        x.end(switch.name).port for x in fabric.links_of[switch.name]
    }
    assert intent.addresses["Loopback0"] == frozenset(switch.loopbacks)
    assert intent.hash is not None
    assert intent.hash.fields == 0x37


def test_rows_that_mean_nothing_are_warned_about() -> None:
    intent = switch_intent({
        "PORT": {"Ethernet0": {"admin_status": "up", "mtu": "many"}},
        "INTERFACE": {"Ethernet0|10.0.0.300/24": {}, "Ethernet4": {}},
        "VLAN": {"Vlan10": {}},
        "VLAN_MEMBER": {"Vlan10|Ethernet0": {"tagging_mode": "tagged"}, "Vlan11|Ethernet0": {"tagging_mode": "untagged"}},
        "SWITCH_HASH": {"GLOBAL": {"ecmp_hash": ["DST_MAC", "SRC_IP"]}},
    })  # fmt: skip
    text = "\n".join(intent.warnings)
    for words in (
        "mtu: 'many' is not an MTU",
        "'10.0.0.300/24' is not an address",
        "no port Ethernet4",
        "tagged members",
        "no such VLAN",
        "does not hash DST_MAC",
    ):
        assert words in text


def test_only_what_differs_is_changed() -> None:
    intent = switch_intent(
        {"PORT": {"Ethernet0": {"admin_status": "up", "mtu": "9100"}, "Ethernet4": {"admin_status": "down"}}}
    )
    right = {
        "Ethernet0": link("Ethernet0", 2),
        "Ethernet4": link("Ethernet4", 3, up=False),
        "lo": link("lo", 1, mtu=65536),
    }
    assert not reconcile_links(intent, right, ())
    assert reconcile_links(intent, right, {"Ethernet0"}).labels == ["link Ethernet0"]
    wrong = {**right, "Ethernet0": link("Ethernet0", 2, mtu=1500), "Loopback3": link("Loopback3", 4)}
    assert set(reconcile_links(intent, wrong, ()).labels) == {"link Ethernet0", "delete Loopback3"}


def test_routes_as_fpmsyncd_writes_them() -> None:
    gateway = ip_address("172.16.0.1")
    routes = [
        RouteInfo(ip_network("10.0.2.0/24"), 254, 186, 1, ((ip_address("172.16.0.3"), 3, 1), (gateway, 2, 1))),
        RouteInfo(ip_network("192.168.0.2/32"), 254, 186, 1, ((gateway, 2, 1),)),
        RouteInfo(ip_network("10.0.1.0/31"), 254, 2, 1, ((None, 2, 1),)),
        RouteInfo(ip_network("10.9.0.0/16"), 255, 2, 1, ((None, 2, 1),)),
    ]
    rows = publish.route_table(routes, {2: "Ethernet0", 3: "Ethernet4"})
    assert rows == {
        "ROUTE_TABLE:10.0.2.0/24": {"protocol": "bgp", "nexthop": "172.16.0.1,172.16.0.3", "ifname": "Ethernet0,Ethernet4", "weight": "1,1"},
        "ROUTE_TABLE:192.168.0.2": {"protocol": "bgp", "nexthop": "172.16.0.1", "ifname": "Ethernet0", "weight": "1"},
        "ROUTE_TABLE:10.0.1.0/31": {"protocol": "kernel", "nexthop": "0.0.0.0", "ifname": "Ethernet0", "weight": "1"},
    }  # fmt: skip


def test_rates() -> None:
    before = {"Ethernet0": link("Ethernet0", 2, stats=(100, 10, 1000, 100, 0, 0, 0, 0))}
    after = {"Ethernet0": link("Ethernet0", 2, stats=(300, 30, 5000, 500, 0, 0, 0, 0))}
    row = next(iter(publish.rates(before, after, 2.0, ["Ethernet0", "Ethernet4"]).values()))
    assert row == {"RX_BPS": "2000.00", "RX_PPS": "100.00", "TX_BPS": "200.00", "TX_PPS": "10.00"}


def test_vlan_attachment() -> None:
    text = "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 3\nserver: {attachment: vlan}\n"
    fabric = load_fabric_text(text, "f", default_name="f")
    intent = switch_intent(render_config_db(fabric, fabric.switches[0]))
    assert len(intent.vlans["Vlan100"]) == 3
    assert len(intent.addresses["Vlan100"]) == 1


@given(
    st.dictionaries(
        st.text("abc_", min_size=1),
        st.one_of(st.text("xyz0/.", min_size=1), st.lists(st.text("xyz0", min_size=1), min_size=1)),
    )
)
def test_rows_survive_redis(row: dict[str, str | list[str]]) -> None:
    assert from_redis(to_redis(row)) == row


def test_lldp_frames_are_read_as_written() -> None:
    frame = lldp.frame("02:00:00:00:00:09", "etp1", "Ethernet0", "leaf1", "SONiC", lldp.BRIDGE_ROUTER)
    found = lldp.parse(frame)
    assert found is not None
    assert (found.chassis_id, found.port_id, found.port_description, found.system_name) == (
        "02:00:00:00:00:09",
        "etp1",
        "Ethernet0",
        "leaf1",
    )
    from scapy.contrib.lldp import LLDPDU, LLDPDUSystemName
    from scapy.layers.l2 import Ether

    packet = Ether(frame)
    assert packet.haslayer(LLDPDU)
    assert packet[LLDPDUSystemName].system_name == b"leaf1"


@given(st.binary(max_size=200))
def test_lldp_parse_never_raises(data: bytes) -> None:
    lldp.parse(data)
    lldp.parse(b"\0" * 12 + b"\x88\xcc" + data)
