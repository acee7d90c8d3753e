"""A folder of configurations as a fabric: cables, roles, servers, and what is said where it does not fit."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fabtest.errors import FabtestError, FileProblem, TopologyError
from fabtest.importer.files import lldp_table, node_name, read_given
from fabtest.importer.limits import limits_of
from fabtest.importer.load import fabric_of
from fabtest.importer.topology import Imported, understand
from fabtest.lint.cabling import read_cabling
from fabtest.model import Fabric, Tier
from fabtest.render import iter_files, write_tree
from fabtest.topology import load_fabric, load_fabric_text, topology_path
from fabtest.topology.routing import designed_routes

FABRICS = Path(__file__).parents[1] / "data" / "fabrics"
SHARED = Path(__file__).parents[3] / "shared" / "data"
Config = dict[str, Any]


@pytest.fixture
def bgpcfgd(tmp_path: Path) -> Path:
    shutil.copytree(FABRICS / "bgpcfgd", tmp_path / "prod")
    return tmp_path / "prod"


def edit(folder: Path, switch: str, change: Callable[[Config], object]) -> None:
    path = folder / switch / "config_db.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def understood(folder: Path) -> Imported:
    return understand("prod", read_given(folder), read_cabling(folder))


def cables(found: Imported) -> set[frozenset[str]]:
    return {frozenset((f"{c.a}:{c.a_port}", f"{c.b}:{c.b_port}")) for c in found.cabling.cables}


# ------------------------------------------------------------------------------------ what fabtest itself renders

SHIPPED = ("clos-2x2", "rail-4x4", "rail-8x8", "dual-plane", "rail-only", "clos-3tier")
OTHERS = {
    "vlan": "kind: rail\nunits: 2\nrails: 2\nspines: 2\nservers_per_unit: 3\nserver: {attachment: vlan}\n",
    "dual": "kind: clos\nleaves: 3\nspines: 2\nservers_per_leaf: 2\naddressing: {families: dual}\n",
    "ipv6": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 1\naddressing: {families: ipv6}\n",
    "unnumbered": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 1\naddressing: {fabric_links: unnumbered}\n",
    "bfd": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 1\nbgp: {bfd: true}\n",
    "parallel": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 1\nlinks_per_spine: 3\n",
    "planes": "kind: dual-plane\nunits: 2\nrails: 2\nspines: 2\nsuperspines: 2\nservers_per_unit: 2\n",
    "lossy": "kind: clos\nleaves: 2\nspines: 2\nservers_per_leaf: 1\nqos: lossy\n",
}


@pytest.mark.parametrize("name", [*SHIPPED, *OTHERS])
def test_a_rendering_is_the_fabric_it_came_from(name: str, tmp_path: Path) -> None:
    """Rendered, its topology thrown away, imported: the same switches, servers, cables, routes, and the same files."""
    if name in OTHERS:
        fabric = load_fabric_text(OTHERS[name], f"{name}.yml", default_name=name)
    else:
        fabric = load_fabric(topology_path(name))
    write_tree(iter_files(fabric), tmp_path / name)
    found = understand(name, read_given(tmp_path / name), read_cabling(tmp_path / name))
    assert not found.cabling.missing
    assert not found.cabling.contradictions
    (tmp_path / "again.yml").write_text(found.text(name))
    again = load_fabric(tmp_path / "again.yml")
    assert {s.name: (s.tier, s.plane, s.unit, s.rail) for s in again.switches} == {
        s.name: (s.tier, s.plane, s.unit, s.rail) for s in fabric.switches
    }
    assert again.servers == fabric.servers
    assert designed_routes(again) == designed_routes(fabric)
    for field in ("bgp", "families", "unnumbered", "mtu"):
        if name != "bfd" or field != "bgp":  # intervals of BFD profiles are not read
            assert getattr(again, field) == getattr(fabric, field), field
    before, after = dict(iter_files(fabric)), dict(iter_files(again))
    # fabric.json tells the kind of the topology; an inventory lists tiers one after another
    differ = {k for k in {*before, *after} if before.get(k) != after.get(k)} - {"fabric.json", "inventory.json"}
    assert not differ
    assert json.loads(before["inventory.json"])["hosts"] == json.loads(after["inventory.json"])["hosts"]


# -------------------------------------------------------------------------------------------- production's own form


def test_bgpcfgd_form(bgpcfgd: Path) -> None:
    fabric, _ = fabric_of(str(bgpcfgd))
    assert [s.name for s in fabric.switches] == ["dc1-leaf-01", "dc1-leaf-02", "dc1-spine-01", "dc1-spine-02"]
    leaf = fabric.switch["dc1-leaf-01"]
    assert (leaf.tier, leaf.asn, leaf.mac) == (Tier.LEAF, 65101, "52:54:00:0a:01:01")
    assert leaf.hash.seed == 0
    assert fabric.switch["dc1-spine-01"].hash.seed == 10  # by its type, as switch.json.j2 has it
    hosts = {s.name: [str(a) for p in s.ports for a in p.addresses] for s in fabric.servers}
    assert hosts["gpu-a1"] == ["172.16.1.2/24"]
    assert hosts["gpu-a5"] == ["172.16.2.3/24"]
    routes = designed_routes(fabric).routes["dc1-leaf-01"]
    assert {str(p): len(ports) for p, ports in routes.items()} == {
        "10.1.0.2/32": 2, "172.16.2.0/24": 2, "10.1.0.101/32": 1, "10.1.0.102/32": 1,
    }  # fmt: skip
    assert (fabric.bgp.keepalive_s, fabric.bgp.hold_s, fabric.bgp.connect_s) == (3, 10, 10)
    assert (fabric.qos.roce_dscp, fabric.qos.roce_tc, fabric.qos.cnp_tc, fabric.qos.pfc_priorities) == (26, 3, 6, (3,))
    assert fabric.qos.ecn_at_100g is not None
    files = dict(iter_files(fabric))
    for switch in ("DC1-LEAF-01", "DC1-SPINE-02"):
        assert files[f"{node_name(switch)}/config_db.json"] == (bgpcfgd / switch / "config_db.json").read_bytes()


def test_frr_mgmt_form() -> None:
    fabric, _ = fabric_of(str(FABRICS / "frr-mgmt"))
    assert {s.name: (s.tier, s.rail, s.unit) for s in fabric.switches} == {
        "agg1": (Tier.SPINE, None, None), "agg2": (Tier.SPINE, None, None), "rail1-leaf": (Tier.LEAF, 1, 1),
        "rail2-leaf": (Tier.LEAF, 2, 1),
    }  # fmt: skip
    assert fabric.unnumbered
    assert [nic.rail for nic in fabric.servers[0].nics] == [1, 2]
    assert [str(a) for p in fabric.servers[2].ports for a in p.addresses] == ["172.20.1.5/31", "172.20.2.5/31"]
    routes = designed_routes(fabric).routes["rail1-leaf"]
    assert {str(p): len(ports) for p, ports in routes.items()} == {
        "10.2.0.2/32": 2, "10.2.0.101/32": 1, "10.2.0.102/32": 1, "172.20.2.0/31": 2, "172.20.2.2/31": 2,
        "172.20.2.4/31": 2,
    }  # fmt: skip


def test_intended_routes_follow_policy_and_width(tmp_path: Path) -> None:
    shutil.copytree(FABRICS / "frr-mgmt", tmp_path / "m")
    edit(tmp_path / "m", "rail1-leaf", lambda c: c["BGP_GLOBALS_AF"]["default|ipv4_unicast"].update(max_ebgp_paths="1"))
    edit(tmp_path / "m", "rail2-leaf", lambda c: c["PREFIX"].pop("SERVERS|10|172.20.0.0/16|31..31"))
    fabric, _ = fabric_of(str(tmp_path / "m"))
    routes = designed_routes(fabric)
    ours = {str(p): len(ports) for p, ports in routes.routes["rail1-leaf"].items()}
    assert ours == {"10.2.0.2/32": 1, "10.2.0.101/32": 1, "10.2.0.102/32": 1}
    assert not any(str(p).startswith("172.20.1") for p in routes.routes["rail2-leaf"])
    assert any(str(p).startswith("172.20.1") for p in routes.routes["agg1"])


# --------------------------------------------------------------------------------------------------- where cables are


def without(*tables: str) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        for table in tables:
            config.pop(table, None)

    return change


ALL = ("DC1-LEAF-01", "DC1-LEAF-02", "DC1-SPINE-01", "DC1-SPINE-02")


def test_subnets_alone(bgpcfgd: Path) -> None:
    whole = cables(understood(bgpcfgd))
    for switch in ALL:
        edit(bgpcfgd, switch, without("DEVICE_NEIGHBOR", "DEVICE_NEIGHBOR_METADATA"))
    found = understood(bgpcfgd)
    assert not found.cabling.missing
    between = {c for c in whole if not any("gpu" in end for end in c)}
    assert between <= cables(found)
    assert {c.source for c in found.cabling.cables} == {"subnet", "assumed"}
    assert found.cabling.servers == [f"host{n}" for n in range(1, 7)]
    assert found.roles.switch["dc1-spine-01"].tier is Tier.SPINE


def test_lldp(bgpcfgd: Path) -> None:
    """A dump of APPL_DB on one side, `show lldp table` on the other; servers by their interface names."""
    for switch in ALL:
        edit(bgpcfgd, switch, without("DEVICE_NEIGHBOR", "DEVICE_NEIGHBOR_METADATA", "INTERFACE", "BGP_NEIGHBOR"))
    entry = {"lldp_rem_sys_name": "DC1-SPINE-01", "lldp_rem_port_desc": "Ethernet0", "lldp_rem_port_id": "Eth1/1"}
    (bgpcfgd / "DC1-LEAF-01" / "appl_db.json").write_text(
        json.dumps({"LLDP_ENTRY_TABLE:Ethernet56": {"type": "hash", "value": entry}})
    )
    (bgpcfgd / "DC1-LEAF-02" / "lldp.txt").write_text(
        "Capability codes: (R) Router, (B) Bridge, (O) Other\n"
        "LocalPort    RemoteDevice    RemotePortID    Capability    RemotePortDescr\n"
        "-----------  --------------  --------------  ------------  -----------------\n"
        "Ethernet56   DC1-SPINE-01    Eth1/2          BR            Ethernet4\n"
        "Ethernet0    gpu-b1          ens1f0          O             ens1f0\n"
    )
    found = understood(bgpcfgd)
    assert frozenset(("dc1-leaf-01:Ethernet56", "dc1-spine-01:Ethernet0")) in cables(found)
    assert frozenset(("dc1-leaf-02:Ethernet56", "dc1-spine-01:Ethernet4")) in cables(found)
    assert frozenset(("gpu-b1:eth1", "dc1-leaf-02:Ethernet0")) in cables(found)
    assert "gpu-b1: ens1f0 is eth1 in a lab" in found.cabling.notes


def test_lldp_table() -> None:
    assert lldp_table("Ethernet0  spine1  Eth1/1  BR  Ethernet0\nEthernet4 x fortyGigE0/4 BR\n--- --\nTotal: 2") == {
        "Ethernet0": ("spine1", "Ethernet0"), "Ethernet4": ("x", "fortyGigE0/4"),
    }  # fmt: skip


def test_lldp_with_domain_names_and_descriptions(bgpcfgd: Path) -> None:
    for switch in ALL:
        edit(bgpcfgd, switch, without("DEVICE_NEIGHBOR", "DEVICE_NEIGHBOR_METADATA", "INTERFACE", "BGP_NEIGHBOR"))
    entry = {
        "lldp_rem_sys_name": "dc1-spine-01.example.net",
        "lldp_rem_port_desc": "to leaf1",
        "lldp_rem_port_id": "Eth1/1",
    }
    (bgpcfgd / "DC1-LEAF-01" / "appl_db.json").write_text(json.dumps({"LLDP_ENTRY_TABLE:Ethernet56": entry}))
    found = understood(bgpcfgd)
    assert frozenset(("dc1-leaf-01:Ethernet56", "dc1-spine-01:Ethernet0")) in cables(found)


def test_one_address_on_two_leaves_is_no_cable(bgpcfgd: Path) -> None:
    for switch in ALL[:2]:
        edit(bgpcfgd, switch, without("DEVICE_NEIGHBOR"))
        edit(bgpcfgd, switch, lambda c: c["INTERFACE"].update({"Ethernet12": {}, "Ethernet12|10.66.0.0/31": {}}))
        edit(bgpcfgd, switch, lambda c: c["PORT"]["Ethernet12"].update(admin_status="up"))
    found = understood(bgpcfgd)
    assert frozenset(("dc1-leaf-01:Ethernet12", "dc1-leaf-02:Ethernet12")) not in cables(found)
    assert any(note.startswith("10.66.0.0 is on dc1-leaf-01:Ethernet12 and") for note in found.cabling.notes)


def test_a_gateway_on_two_leaves(bgpcfgd: Path) -> None:
    """An anycast gateway: the servers of both leaves share its subnet, and no address."""

    def anycast(c: Config) -> None:
        c["VLAN_INTERFACE"] = {"Vlan1000": {}, "Vlan1000|172.16.0.1/24": {}}

    for switch in ALL[:2]:
        edit(bgpcfgd, switch, anycast)
    fabric, _ = fabric_of(str(bgpcfgd))
    addresses = [str(a) for s in fabric.servers for p in s.ports for a in p.addresses]
    assert sorted(addresses) == [f"172.16.0.{n}/24" for n in range(2, 8)]


def test_long_names_stay_apart() -> None:
    names = [node_name(f"gpu-server-of-the-training-cluster-number-{n}") for n in range(3)]
    assert len(set(names)) == 3
    assert all(len(n) <= 32 for n in names)
    assert node_name("DC1_LEAF.01") == "dc1-leaf-01"


def test_cabling_alone(bgpcfgd: Path) -> None:
    whole = cables(understood(bgpcfgd))
    for switch in ALL:
        edit(bgpcfgd, switch, without("DEVICE_NEIGHBOR", "DEVICE_NEIGHBOR_METADATA", "INTERFACE", "BGP_NEIGHBOR"))
    rows = ["a,a_port,b,b_port,length_m"]
    for cable in sorted(whole, key=sorted):
        (a, _, a_port), (b, _, b_port) = (end.partition(":") for end in sorted(cable))
        rows.append(f"{a.upper() if a.startswith('dc1') else a},{a_port},{b},{b_port},7")
    (bgpcfgd / "cabling.csv").write_text("\n".join(rows) + "\n")
    found = understood(bgpcfgd)
    assert cables(found) == whole
    assert {c.length_m for c in found.cabling.cables} == {7}


def test_aliases_are_ports(bgpcfgd: Path) -> None:
    whole = cables(understood(bgpcfgd))
    edit(bgpcfgd, "DC1-LEAF-01", lambda c: c["DEVICE_NEIGHBOR"]["Ethernet56"].update(port="Eth1/1"))
    assert cables(understood(bgpcfgd)) == whole


def test_contradictions_are_told_and_the_first_source_wins(bgpcfgd: Path) -> None:
    whole = cables(understood(bgpcfgd))
    (bgpcfgd / "cabling.csv").write_text(
        "a,a_port,b,b_port\nDC1-LEAF-01,Ethernet56,DC1-SPINE-02,Ethernet0\n"
    )  # fmt: skip
    found = understood(bgpcfgd)
    assert cables(found) == whole
    assert (
        "dc1-leaf-01:Ethernet56: DEVICE_NEIGHBOR says dc1-spine-01:Ethernet0, cabling.csv says dc1-spine-02:Ethernet0"
        in found.cabling.contradictions
    )


def test_missing_ends_are_asked_for_by_name(bgpcfgd: Path) -> None:
    shutil.rmtree(bgpcfgd / "DC1-SPINE-02")
    found = understood(bgpcfgd)
    assert any(
        t == "dc1-leaf-01:Ethernet60 leads to dc1-spine-02 (LeafRouter): there is no dc1-spine-02/config_db.json"
        for t in found.cabling.missing
    ), found.cabling.missing
    with pytest.raises(FabtestError, match="not whole"):
        fabric_of(str(bgpcfgd))
    edit(bgpcfgd, "DC1-SPINE-01", lambda c: c["DEVICE_NEIGHBOR"]["Ethernet0"].update(name="DC1-LEAF-02"))
    assert any("which says" in t for t in understood(bgpcfgd).cabling.missing)


def test_a_type_that_the_cables_belie(bgpcfgd: Path) -> None:
    edit(bgpcfgd, "DC1-SPINE-01", lambda c: c["DEVICE_METADATA"]["localhost"].update(type="SpineRouter"))
    found = understood(bgpcfgd)
    assert found.roles.switch["dc1-spine-01"].tier is Tier.SPINE
    assert found.roles.notes == ["dc1-spine-01: DEVICE_METADATA type is SpineRouter, and by its cables it is a spine"]


# -------------------------------------------------------------------------------------------------- what cannot be


def test_two_of_one_hostname(bgpcfgd: Path) -> None:
    edit(bgpcfgd, "DC1-LEAF-02", lambda c: c["DEVICE_METADATA"]["localhost"].update(hostname="DC1-LEAF-01"))
    with pytest.raises(FabtestError, match="the same hostname, 'DC1-LEAF-01'"):
        read_given(bgpcfgd)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"PORT": 3}', b"\xff\xfe", b'{"PORT": {"Ethernet0": []}}'])
def test_files_that_are_none(bgpcfgd: Path, raw: bytes) -> None:
    (bgpcfgd / "DC1-LEAF-01" / "config_db.json").write_bytes(raw)
    with pytest.raises(FabtestError, match="DC1-LEAF-01"):
        read_given(bgpcfgd)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no such folder"):
        read_given(tmp_path / "nowhere")
    with pytest.raises(FileProblem, match="holds no config_db"):
        read_given(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config_db.json").write_text('{"DEVICE_METADATA": {"localhost": {"hostname": "../../etc"}}}')
    assert read_given(tmp_path)[0].name == "etc"


def test_flat_files(bgpcfgd: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for switch in ALL:
        shutil.copy(bgpcfgd / switch / "config_db.json", flat / f"{switch}.json")
    found = understood(flat)
    assert cables(found) == cables(understood(bgpcfgd))
    (tmp_path / "flat.yml").write_text(found.text("flat"))
    assert len(load_fabric(tmp_path / "flat.yml").switches) == 4


def topology(folder: Path, text: str) -> Fabric:
    return load_fabric_text(text, str(folder / "t.yml"), default_name="t")


HEAD = "kind: custom\nconfigs: prod\n"
NODES = "nodes:\n  - {name: dc1-leaf-01, config: DC1-LEAF-01}\n  - {name: dc1-spine-01, tier: spine, config: DC1-SPINE-01}\n"
LINK = 'links:\n  - {a: "dc1-leaf-01:Ethernet56", b: "dc1-spine-01:Ethernet0"}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace("prod", "nowhere") + NODES + LINK, "configs: there is no folder"),
        (HEAD + "mtu: 1500\n" + NODES + LINK, "mtu: the given configurations say this"),
        (HEAD + NODES.replace("tier: spine", "tier: spine, asn: 7") + LINK, "the given configuration says this"),
        (HEAD + NODES.replace("DC1-SPINE-01", "../../etc"), "nodes"),
        (HEAD + NODES.replace("DC1-SPINE-01", "DC1-SPINE-09") + LINK, "there is no"),
        (HEAD + NODES + LINK.replace("Ethernet56", "Ethernet57"), "dc1-leaf-01 has no port Ethernet57"),
        (HEAD + NODES + LINK.replace(":Ethernet56", ""), "names no port"),
        (HEAD + NODES + LINK + LINK.partition("\n")[2], "two links on dc1-leaf-01:Ethernet56"),
        (HEAD + NODES + LINK.replace("dc1-spine-01", "spine9"), "there is no node 'spine9'"),
    ],
)
def test_topologies_that_do_not_fit_the_files(bgpcfgd: Path, text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words.replace("(", r"\(")):
        topology(bgpcfgd.parent, text)
    assert len(topology(bgpcfgd.parent, HEAD + NODES + LINK).links) == 1


def test_what_a_lab_cannot_honour(bgpcfgd: Path) -> None:
    def change(c: Config) -> None:
        c["PORTCHANNEL"] = {"PortChannel1": {"admin_status": "up"}}
        c["ACL_TABLE"] = {"A": {"type": "L3"}}
        c["VLAN_MEMBER"]["Vlan1000|Ethernet0"]["tagging_mode"] = "tagged"
        c["INTERFACE"]["Ethernet56"] = {"vrf_name": "VrfRed"}

    edit(bgpcfgd, "DC1-LEAF-01", change)
    (bgpcfgd / "DC1-LEAF-01" / "frr.conf").write_text("router bgp 1\n")
    limits = limits_of(read_given(bgpcfgd)[0])
    for word in ("PORTCHANNEL (PortChannel1)", "ACL_TABLE (A)", "Vlan1000|Ethernet0", "VrfRed", "frr.conf is not used"):
        assert any(word in text for text in limits), word
    fabric_of(str(bgpcfgd))  # a warning, not an error
    assert not limits_of(read_given(bgpcfgd)[1])


# -------------------------------------------------------------------------------------------------- anything at all


def test_any_mutation_ends_in_a_fabric_or_a_sentence(bgpcfgd: Path) -> None:
    """Rows and fields taken away or replaced at random: whatever comes of it, it is no traceback."""
    rng = random.Random(5)
    values: list[Any] = ["", "0", "-1", "x" * 300, "Ethernet0", "10.0.0.1/31", "fe80::1/64", ["a", "b"], "999999999999"]
    originals = {s: (bgpcfgd / s / "config_db.json").read_text() for s in ALL}
    fabrics = 0
    for _ in range(150):
        for switch, text in originals.items():
            config = json.loads(text)
            for _ in range(rng.randrange(4)):
                table = rng.choice(list(config))
                if not config[table]:
                    continue
                key = rng.choice(list(config[table]))
                what = rng.randrange(5)
                if what == 0:
                    del config[table]
                elif what == 1:
                    del config[table][key]
                elif what == 2:
                    config[table][rng.choice(["", "|", "a|b|c", "Vlan5|x", "Ethernet0|1.2.3.4/24"])] = {}
                elif config[table][key]:
                    config[table][key][rng.choice(list(config[table][key]))] = rng.choice(values)
                if not config:
                    break
            (bgpcfgd / switch / "config_db.json").write_text(json.dumps(config))
        try:
            fabric, _ = fabric_of(str(bgpcfgd))
        except FabtestError:
            continue
        designed_routes(fabric)
        dict(iter_files(fabric))
        fabrics += 1
    assert fabrics > 10


@pytest.mark.skipif(not SHARED.is_dir(), reason="the reference material is not beside the checkout")
def test_configurations_of_others(tmp_path: Path) -> None:
    """Files no one here wrote are taken, or refused in a sentence."""
    taken = 0
    for path in sorted([*SHARED.glob("config_db/*.json"), *SHARED.glob("sonic-vs-202411/**/*.json")]):
        folder = tmp_path / path.stem
        folder.mkdir(exist_ok=True)
        shutil.copy(path, folder / "config_db.json")
        try:
            given = read_given(folder)
            found = understand("x", given)
            limits_of(given[0])
            taken += 1
            if found.cabling.cables:
                load_fabric_text(found.text(str(folder)), "x.yml", default_name="x")
        except FabtestError as error:
            assert str(error)
    assert taken > 10
