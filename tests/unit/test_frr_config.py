"""Reading an frr.conf, and making one of CONFIG_DB in SONiC's two forms."""

from __future__ import annotations

import copy
import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from fabtest.sonic.bgpcfgd import bgpcfgd_frr
from fabtest.sonic.frr_config import BgpConfig, Session, read_frr
from fabtest.sonic.frrcfgd import frrcfgd_frr
from fabtest.sonic.lite_frr import lite_frr, split_by_daemon, uses_bfd
from fabtest.sonic.routing_config import RoutingForm, routing_config, routing_form

FABRICS = Path(__file__).parents[1] / "data" / "fabrics"


def config(form: str, switch: str) -> Any:
    return json.loads((FABRICS / form / switch / "config_db.json").read_text())


def bgp(text: str) -> BgpConfig:
    found = read_frr(text)
    assert found is not None
    return found


def session(text: str, peer: str) -> Session:
    return next(s for s in bgp(text).sessions if s.peer == peer)


HEAD = "frr defaults traditional\nrouter bgp 65001\n no bgp ebgp-requires-policy\n"


def test_what_show_running_config_prints() -> None:
    """Groups are inherited, families activated one by one, statements of other VRFs and families left out."""
    text = """
frr version 8.4.4
frr defaults datacenter
hostname leaf1
!
ip prefix-list LOOPS seq 5 permit 10.1.0.0/16 ge 32
ip prefix-list LOOPS seq 10 deny any
!
router bgp 4200000001
 bgp router-id 10.1.0.1
 bgp bestpath as-path multipath-relax
 neighbor UP peer-group
 neighbor UP remote-as external
 neighbor UP bfd
 neighbor UP timers 1 3
 neighbor Ethernet48 interface peer-group UP
 neighbor Ethernet52 interface v6only peer-group UP
 neighbor Ethernet52 shutdown
 neighbor 10.0.0.1 remote-as 65000
 !
 address-family ipv4 unicast
  network 10.1.0.1/32
  redistribute connected route-map C
  neighbor UP activate
  neighbor UP prefix-list LOOPS out
  neighbor UP allowas-in 2
  maximum-paths 32
 exit-address-family
 !
 address-family l2vpn evpn
  neighbor UP activate
  advertise-all-vni
 exit-address-family
exit
!
router bgp 4200000001 vrf Red
 neighbor 192.0.2.1 remote-as 1
exit
!
route-map C permit 10
 match ip address prefix-list LOOPS
exit
!
end
"""
    found = bgp(text)
    assert (found.asn, found.router_id, found.multipath_relax) == (4200000001, "10.1.0.1", True)
    assert found.networks == (ip_network("10.1.0.1/32"),)
    assert found.max_paths == {4: 32, 6: 256}
    assert [s.peer for s in found.sessions] == ["Ethernet48", "Ethernet52", "10.0.0.1"]
    up = found.sessions[0]
    assert (up.is_interface, up.asn, up.bfd, up.keepalive_s, up.hold_s, up.allow_own_as) == (
        True, "external", True, 1, 3, 2,
    )  # fmt: skip
    assert found.sessions[1].shutdown
    assert not up.shutdown
    plain = found.sessions[2]
    assert (plain.families, plain.hold_s, plain.exports) == ((4,), 9, {})
    assert up.exports[4].permits(ip_network("10.1.2.3/32"))
    assert not up.exports[4].permits(ip_network("10.1.2.0/24"))
    passes = found.redistribute[4]
    assert passes is not None
    assert passes.permits(ip_network("10.1.0.9/32"))
    assert not passes.permits(ip_network("192.0.2.0/24"))
    assert any("VRF" in w for w in found.warnings)


def test_a_file_without_indentation() -> None:
    """FRR goes by the words; so does the reader, and the split by daemon."""
    text = (
        "router bgp 65001\nno bgp ebgp-requires-policy\nneighbor 10.0.0.1 remote-as 65002\n"
        "address-family ipv4 unicast\nnetwork 10.9.0.0/24\nneighbor 10.0.0.1 activate\nexit-address-family\n"
        "ip prefix-list A permit any\nroute-map R permit 10\nmatch ip address prefix-list A\n"
    )
    assert [s.peer for s in bgp(text).sessions] == ["10.0.0.1"]
    parts = split_by_daemon(text)
    assert "  network 10.9.0.0/24" in parts["bgpd"]
    assert "neighbor" not in parts["zebra"]
    assert " match ip address prefix-list A" in parts["zebra"]
    assert parts["bgpd"].count("exit-address-family") == 1


@pytest.mark.parametrize(
    ("lines", "prefix", "passes"),
    [
        ("ip prefix-list P permit 10.0.0.0/8", "10.0.0.0/8", True),
        ("ip prefix-list P permit 10.0.0.0/8", "10.1.0.0/16", False),
        ("ip prefix-list P permit 10.0.0.0/8 le 24", "10.1.0.0/16", True),
        ("ip prefix-list P permit 10.0.0.0/8 ge 25", "10.1.0.0/16", False),
        ("ip prefix-list P permit 10.0.0.0/8 ge 25", "10.1.0.0/25", True),
        ("ip prefix-list P permit any", "192.0.2.0/24", True),
        ("ip prefix-list P seq 10 permit any\nip prefix-list P seq 5 deny 192.0.2.0/24", "192.0.2.0/24", False),
    ],
)
def test_prefix_lists(lines: str, prefix: str, passes: bool) -> None:
    text = HEAD + " neighbor 10.0.0.1 remote-as 2\n address-family ipv4\n  neighbor 10.0.0.1 prefix-list P in\n" + lines
    assert session(text, "10.0.0.1").accepts[4].permits(ip_network(prefix)) is passes


def test_route_maps_go_on_and_end() -> None:
    """An entry with on-match decides nothing; the first of the others that matches does; none is a no."""
    text = HEAD + (
        " neighbor 10.0.0.1 remote-as 2\n address-family ipv4\n  neighbor 10.0.0.1 route-map M out\n exit\nexit\n"
        "ip prefix-list A permit 10.0.0.0/8 le 32\nip prefix-list B permit 10.1.0.0/16 le 32\n"
        "route-map M permit 5\n on-match next\n set community 1:1\n"
        "route-map M deny 10\n match ip address prefix-list B\n"
        "route-map M permit 20\n match ip address prefix-list A\n"
    )
    out = session(text, "10.0.0.1").exports[4]
    assert out.permits(ip_network("10.2.0.0/24"))
    assert not out.permits(ip_network("10.1.5.0/24"))
    assert not out.permits(ip_network("172.16.0.0/24"))


def test_statements_outside_a_family_are_of_ipv4() -> None:
    text = HEAD + (
        " neighbor 10.0.0.1 remote-as 2\n neighbor 10.0.0.1 route-map M in\n neighbor 10.0.0.1 allowas-in 2\n"
        " maximum-paths 8\n redistribute connected\nroute-map M deny 10\n"
    )
    found = bgp(text)
    assert found.max_paths[4] == 8
    assert found.redistribute == {4: None}
    assert found.sessions[0].allow_own_as == 2
    assert not found.sessions[0].accepts[4].permits(ip_network("10.0.0.0/8"))


def test_filters_that_are_not_there_or_no_longer() -> None:
    head = HEAD + " neighbor 10.0.0.1 remote-as 2\n address-family ipv4\n"
    named = session(head + "  neighbor 10.0.0.1 prefix-list NONE in\n", "10.0.0.1")
    assert not named.accepts[4].permits(ip_network("10.0.0.0/8"))
    gone = "  neighbor 10.0.0.1 route-map M in\n  no neighbor 10.0.0.1 route-map M in\n"
    assert session(head + gone, "10.0.0.1").accepts == {}


def test_rfc_8212() -> None:
    """FRR's traditional defaults pass no eBGP route without a policy; its datacenter defaults do."""
    lines = "router bgp 1\n neighbor 10.0.0.1 remote-as 2\n"
    assert not session("frr defaults traditional\n" + lines, "10.0.0.1").exports[4].permits(ip_network("10.0.0.0/8"))
    assert any("RFC 8212" in w for w in bgp("frr defaults traditional\n" + lines).warnings)
    assert session("frr version 7.2.1\nfrr defaults traditional\n" + lines, "10.0.0.1").exports == {}
    assert session("frr defaults datacenter\n" + lines, "10.0.0.1").exports == {}
    assert session(HEAD + " neighbor 10.0.0.1 remote-as 2\n", "10.0.0.1").exports == {}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (" neighbor 10.0.0.1 ebgp-multihop 2", "not over one cable"),
        (" bgp listen range 10.0.0.0/8 peer-group X", "not listed"),
        (" address-family ipv4 unicast\n  aggregate-address 10.0.0.0/8", "not part of the intended"),
        (" address-family ipv4 unicast\n  network nonsense", "not understood"),
        ("route-map M permit 10\n match community C\nrouter bgp 65001\n address-family ipv4\n"
         "  neighbor 10.0.0.1 route-map M in", "not followed"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(line: str, word: str) -> None:
    found = bgp(HEAD + " neighbor 10.0.0.1 remote-as 2\n" + line + "\n")
    assert any(word in w for w in found.warnings), found.warnings


def test_no_bgp() -> None:
    assert read_frr("hostname x\ninterface Ethernet0\n ip address 10.0.0.1/24\n") is None
    assert read_frr("") is None


# ---------------------------------------------------------------------------------------------------- CONFIG_DB


def test_bgpcfgd_form() -> None:
    text, warnings = bgpcfgd_frr(config("bgpcfgd", "DC1-LEAF-01"))
    assert not warnings
    found = bgp(text)
    assert found.asn == 65101
    assert found.router_id == "10.1.0.1"
    assert found.networks == (ip_network("10.1.0.1/32"), ip_network("172.16.1.0/24"))
    assert {s.peer: (s.asn, s.keepalive_s, s.hold_s, s.connect_s, s.allow_own_as) for s in found.sessions} == {
        "10.0.0.1": (65100, 3, 10, 10, 1), "10.0.0.3": (65100, 3, 10, 10, 1),
    }  # fmt: skip
    assert not bgp(bgpcfgd_frr(config("bgpcfgd", "DC1-SPINE-01"))[0]).sessions[0].allow_own_as
    assert not found.warnings


def test_bgpcfgd_leaves_out_what_bgpcfgd_leaves_out() -> None:
    base = config("bgpcfgd", "DC1-LEAF-01")

    def with_change(change: object) -> tuple[list[str], tuple[str, ...]]:
        c = copy.deepcopy(base)
        change(c)  # type: ignore[operator]
        text, warnings = bgpcfgd_frr(c)
        found = read_frr(text)
        return [s.peer for s in found.sessions if not s.shutdown] if found else [], warnings

    def set_field(key: str, field: str, value: str) -> object:
        return lambda c: c["BGP_NEIGHBOR"][key].__setitem__(field, value)

    peers, warnings = with_change(set_field("10.0.0.1", "local_addr", "10.99.0.1"))
    assert peers == ["10.0.0.3"]
    assert "BGP_NEIGHBOR|10.0.0.1|local_addr" in warnings[0]
    assert with_change(set_field("10.0.0.1", "admin_status", "down"))[0] == ["10.0.0.3"]
    peers, warnings = with_change(set_field("10.0.0.1", "asn", "none"))
    assert peers == ["10.0.0.3"]
    assert "|asn" in warnings[0]
    peers, warnings = with_change(lambda c: c["LOOPBACK_INTERFACE"].clear())
    assert not peers
    assert "Loopback0" in warnings[0]
    peers, warnings = with_change(lambda c: c["DEVICE_METADATA"]["localhost"].pop("bgp_asn"))
    assert not peers
    assert "bgp_asn" in warnings[0]
    peers, warnings = with_change(lambda c: c["BGP_NEIGHBOR"].__setitem__("Ethernet56", {"asn": "1"}))
    assert peers == ["10.0.0.1", "10.0.0.3"]
    assert "addresses only" in warnings[0]


def test_a_value_is_no_second_statement() -> None:
    """A line break in a value of CONFIG_DB must not begin a statement of FRR's."""
    c = config("bgpcfgd", "DC1-LEAF-01")
    c["BGP_NEIGHBOR"]["10.0.0.1"]["name"] = "x\n neighbor 10.0.0.3 shutdown"
    assert not any(s.shutdown for s in bgp(bgpcfgd_frr(c)[0]).sessions)
    c = config("frr-mgmt", "rail1-leaf")
    c["BGP_NEIGHBOR"]["default|Ethernet56"]["name"] = "x\n neighbor Ethernet60 shutdown"
    c["BGP_NEIGHBOR"]["default|Ethernet60\n no router bgp 65201"] = {"peer_group_name": "FABRIC"}
    found = bgp(frrcfgd_frr(c)[0])
    assert [s.peer for s in found.sessions if not s.shutdown] == ["Ethernet56", "Ethernet60"]


def test_frr_mgmt_form() -> None:
    text, warnings = frrcfgd_frr(config("frr-mgmt", "rail1-leaf"))
    assert not warnings
    found = bgp(text)
    assert found.asn == 65201
    assert [(s.peer, s.is_interface, s.asn, s.families) for s in found.sessions] == [
        ("Ethernet56", True, "external", (4,)), ("Ethernet60", True, "external", (4,)),
    ]  # fmt: skip
    assert found.max_paths[4] == 64
    connected = found.redistribute[4]
    assert connected is not None
    assert connected.permits(ip_network("172.20.1.0/31"))
    assert connected.permits(ip_network("10.2.0.1/32"))
    assert not connected.permits(ip_network("192.0.2.0/24"))
    assert found.sessions[0].exports[4].permits(ip_network("172.20.9.8/31"))
    assert not found.sessions[0].accepts[4].permits(ip_network("0.0.0.0/0"))
    assert " neighbor FABRIC capability extended-nexthop" in text


def test_frr_mgmt_without_a_policy_passes_nothing() -> None:
    c = config("frr-mgmt", "rail1-leaf")
    del c["BGP_PEER_GROUP_AF"]["default|FABRIC|ipv4_unicast"]["route_map_in"]
    found = bgp(frrcfgd_frr(c)[0])
    assert not found.sessions[0].accepts[4].permits(ip_network("10.2.0.1/32"))
    assert any("RFC 8212" in w for w in found.warnings)


def test_keys_of_the_other_form_are_named() -> None:
    c = config("bgpcfgd", "DC1-LEAF-01")
    c["DEVICE_METADATA"]["localhost"]["frr_mgmt_framework_config"] = "true"
    found = routing_config(c, None)
    assert found.form is RoutingForm.FRRCFGD
    assert any("BGP_NEIGHBOR|10.0.0.1: a key of bgpcfgd's form" in w for w in found.warnings)
    assert found.bgp is None


@pytest.mark.parametrize(
    ("mode", "managed", "form"),
    [
        ("", "false", RoutingForm.BGPCFGD), ("separated", "false", RoutingForm.BGPCFGD),
        ("separated", "true", RoutingForm.FRRCFGD), ("unified", "false", RoutingForm.FRRCFGD),
        ("unified", "true", RoutingForm.FRRCFGD), ("split", "false", RoutingForm.GIVEN),
        ("split-unified", "true", RoutingForm.GIVEN),
    ],
)  # fmt: skip
def test_modes(mode: str, managed: str, form: RoutingForm) -> None:
    row: Any = {"frr_mgmt_framework_config": managed} | ({"docker_routing_config_mode": mode} if mode else {})
    assert routing_form({"DEVICE_METADATA": {"localhost": row}}) is form


def test_given_or_not() -> None:
    split: Any = {"DEVICE_METADATA": {"localhost": {"docker_routing_config_mode": "split-unified"}}}
    assert routing_config(split, "router bgp 7\n").text == "router bgp 7\n"
    assert "no BGP runs" in routing_config(split, None).warnings[0]
    assert "not used" in routing_config(config("bgpcfgd", "DC1-LEAF-01"), "router bgp 7\n").warnings[-1]


# ------------------------------------------------------------------------------------------------- the lite node


def test_lite_frr() -> None:
    """Kernel next-hop objects stay off whatever the file says; what Debian's FRR cannot take is bounded or dropped."""
    text = (
        "zebra nexthop kernel enable\nfpm address 127.0.0.1\nagentx\nlog syslog\nrouter bgp 1\n"
        " bgp suppress-fib-pending\n address-family ipv4 unicast\n  maximum-paths 514\n exit-address-family\n"
    )
    lite = lite_frr(text, ["Loopback0", "Loopback4096"])
    assert lite.startswith("no zebra nexthop kernel enable\n")
    assert "\nzebra nexthop" not in lite
    assert "fpm" not in lite
    assert "suppress-fib" not in lite
    assert "  maximum-paths 256\n" in lite
    assert "interface Loopback4096\n no link-detect\nexit\n" in lite
    parts = split_by_daemon(text)
    assert "interface Loopback0" in parts["zebra"]
    assert "maximum-paths 256" in parts["bgpd"]


def test_bfd_is_started_where_a_session_has_it() -> None:
    assert uses_bfd("router bgp 1\n neighbor 10.0.0.1 remote-as 2\n neighbor 10.0.0.1 bfd\n")
    assert not uses_bfd("bfd\n profile X\n exit\nexit\nrouter bgp 1\n neighbor 10.0.0.1 remote-as 2\n")
