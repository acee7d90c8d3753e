"""A fabric as a containerlab topology: ``<lab>.clab.yml`` beside the folders of its nodes, and what else those read.

Port N of a switch is its wire ``ethN`` (docker-sonic-vs's rule); the lane map rendered with each switch is what ties
the two together on the real image, for any number of ports and any break-out. The same tree serves people who deploy
it themselves: all paths are relative to the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import IPv4Network
from typing import Any

import yaml

from fabtest.model import Endpoint, Fabric, Link, Switch, Tier
from fabtest.render.server import SYSCTLS
from fabtest.sonic.hash import kernel_hash
from fabtest.sonic.sysctl import SWITCH_SYSCTLS, Sysctls, hash_sysctls
from fabtest.topology.units import format_speed

#: Where a switch finds its folder (docker-sonic-vs's own place for a configuration), and a server its.
SWITCH_FOLDER, SERVER_FOLDER = "/var/sonic", "/etc/fabtest"
#: How a server gets its network. Docker's default route goes first: the script's own may be a default route too.
SERVER_BOOT = f"ip route del default dev eth0 2>/dev/null; exec sh {SERVER_FOLDER}/network.sh"
#: The label that marks a container as a node of a lab of ours; its value is the lab.
LABEL = "fabtest.lab"
#: The device folder of the image that the rendered port map is put into.
HWSKU = "fabtest"
#: Docker gives containers their name as host name in its DNS (RFC 1123 label).
LONGEST_CONTAINER_NAME = 63
WIRE = re.compile(r"eth[1-9]\d{0,3}\Z")
HEALTHCHECK = {
    "test": ["CMD-SHELL", "sonic-db-cli CONFIG_DB PING | grep -qE 'PONG|True'"],
    "interval": 10,
    "timeout": 5,
    "retries": 30,
    "start-period": 30,
}


@dataclass(frozen=True, slots=True)
class Images:
    """Image references of switches and servers."""

    sonic: str = "fabtest/sonic-lite:latest"
    server: str = "fabtest/host:latest"


@dataclass(frozen=True, slots=True)
class Management:
    """The network of the containers' ``eth0``."""

    network: str
    subnet: IPv4Network


def images_of(fabric: Fabric) -> Images:
    """Those the topology names, else fabtest's own."""
    default = Images()
    return Images(fabric.emulation.sonic_image or default.sonic, fabric.emulation.server_image or default.server)


def default_management(fabric: Fabric, lab: str) -> Management:
    """A network with room for every node, below 172.31.0.0/16 (what Docker itself hands out last)."""
    return Management(f"fabtest-{lab}", next(candidate_subnets(len(fabric.node_names))))


def candidate_subnets(nodes: int) -> Iterator[IPv4Network]:
    """Management subnets to try, each with room for the nodes, a gateway and the two ends."""
    length = min(24, 32 - (nodes + 3).bit_length())
    for block in ("172.31.0.0/16", "172.30.0.0/16", "10.254.0.0/16", "10.253.0.0/16"):
        yield from IPv4Network(block).subnets(new_prefix=max(16, length))


def wire(switch: Switch, port: str) -> str:
    """``Ethernet8`` -> ``eth2``: wires are numbered as the ports of the switch, from 1."""
    return f"eth{_position(switch)[port]}"


def _position(switch: Switch) -> dict[str, int]:
    return {p.name: n for n, p in enumerate(switch.ports, 1)}


def wires(fabric: Fabric, switch: Switch) -> dict[str, str]:
    """Port -> wire, of the ports with a cable."""
    return {name: f"eth{n}" for name, n in _position(switch).items() if Endpoint(switch.name, name) in fabric.link_at}


def container_files(
    fabric: Fabric, lab: str, images: Images, management: Management, *, own: bool = False
) -> Iterator[tuple[str, bytes]]:
    """What containers need beyond the files of ``fabtest.render.files``: relative path, content."""
    boot = files("fabtest.render").joinpath("templates", "sonic-vs.sh").read_bytes()
    for switch in fabric.switches:
        yield f"{switch.name}/sonic-vs.sh", boot
        yield f"{switch.name}/ports", "".join(f"{p} {w}\n" for p, w in wires(fabric, switch).items()).encode()
        yield f"{switch.name}/sysctl.conf", _sysctl_conf(_switch_sysctls(fabric, switch))
        yield f"{switch.name}/hwsku/lanemap.ini", "".join(_lane_lines(switch)).encode()
        yield f"{switch.name}/hwsku/port_config.ini", "".join(_port_lines(switch)).encode()
    text = yaml.safe_dump(containerlab_topology(fabric, lab, images, management, own=own), sort_keys=False, width=120)
    yield f"{lab}.clab.yml", text.encode()


def _sysctl_conf(values: Sysctls) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def _switch_sysctls(fabric: Fabric, switch: Switch) -> Sysctls:
    return {
        **SWITCH_SYSCTLS,
        **hash_sysctls(kernel_hash(switch.hash.fields), switch.hash.seed, qp_hash=fabric.qp_hash),
        **_ipv6(fabric),
    }


def _ipv6(fabric: Fabric) -> Sysctls:
    off = 0 if 6 in fabric.families or fabric.unnumbered else 1
    return {"net.ipv6.conf.all.disable_ipv6": off, "net.ipv6.conf.default.disable_ipv6": off}


def _lane_lines(switch: Switch) -> Iterator[str]:
    for n, port in enumerate(switch.ports, 1):
        yield f"eth{n}:{','.join(map(str, port.lanes))}\n"


def _port_lines(switch: Switch) -> Iterator[str]:
    yield "# name lanes alias index speed\n"
    for port in switch.ports:
        lanes = ",".join(map(str, port.lanes))
        yield f"{port.name} {lanes} {port.alias} {port.index} {port.speed // 10**6}\n"


def containerlab_topology(
    fabric: Fabric, lab: str, images: Images, management: Management, *, pull: bool = False, own: bool = False
) -> dict[str, Any]:
    """``<lab>.clab.yml`` as a value (schema: containerlab's clab.schema.json).

    ``pull``: images come from a registry; else those of fabtest's own are only looked for here. ``own``: containers
    carry the mark of a lab of fabtest's, which ``lab-down`` removes; not on what others deploy themselves.
    """
    emulation = fabric.emulation
    switch: dict[str, Any] = {
        "image": images.sonic,
        "image-pull-policy": _pull_policy(images.sonic, pull),
        "env": {"HWSKU": HWSKU, **({"FABTEST_QP_HASH": "1"} if fabric.qp_hash else {})},
        "healthcheck": HEALTHCHECK,
        "stages": {
            "create-links": {
                "exec": [{"command": f"bash {SWITCH_FOLDER}/sonic-vs.sh prepare", "target": "container",
                          "phase": "on-exit"}]
            }
        },
        "exec": [f"bash {SWITCH_FOLDER}/sonic-vs.sh boot"],
    }  # fmt: skip
    if emulation.cpu is not None:
        switch["cpu"] = emulation.cpu
    if emulation.memory:
        switch["memory"] = emulation.memory
    if fabric.bgp.bfd:
        switch["env"]["FABTEST_BFD"] = "1"
    server = {
        "image": images.server,
        "image-pull-policy": _pull_policy(images.server, pull),
        "exec": [f"sh -c '{SERVER_BOOT}'"],
        "sysctls": {key: str(value) for key, value in {**SYSCTLS, **_ipv6(fabric)}.items()},
    }
    return {
        "name": lab,
        "mgmt": {
            "network": management.network,
            "ipv4-subnet": str(management.subnet),
            "external-access": False,
        },
        "topology": {
            "kinds": {"sonic-vs": switch, "linux": server},
            "groups": {name: {} for name in _groups(fabric)},
            "nodes": dict(_nodes(fabric, {LABEL: lab} if own else {})),
            "links": [_link(fabric, link) for link in fabric.links],
        },
    }


def _pull_policy(image: str, pull: bool) -> str:
    return "Never" if image.startswith("fabtest/") and not pull else "IfNotPresent"


def topology_faults(topology: dict[str, Any]) -> list[str]:
    """What containerlab's JSON schema lets pass and a deploy would trip over, one line each."""
    found: list[str] = []
    nodes = topology["topology"]["nodes"]
    kinds = topology["topology"]["kinds"]
    used: set[tuple[str, str]] = set()
    macs: set[str] = set()
    for name, node in nodes.items():
        if len(f"clab-{topology['name']}-{name}") > LONGEST_CONTAINER_NAME:
            found.append(f"node {name}: the container's name would be longer than {LONGEST_CONTAINER_NAME} characters")
        if node.get("kind") not in kinds:
            found.append(f"node {name}: unknown kind {node.get('kind')!r}")
        if node.get("group") not in topology["topology"]["groups"]:
            found.append(f"node {name}: unknown group {node.get('group')!r}")
    for n, link in enumerate(topology["topology"]["links"], 1):
        ends = link["endpoints"]
        if len(ends) != 2:
            found.append(f"link {n}: {len(ends)} ends; a cable has two")
        for end in ends:
            key = (end.get("node", ""), end.get("interface", ""))
            if key[0] not in nodes:
                found.append(f"link {n}: there is no node {key[0]!r}")
            if not WIRE.match(key[1]):
                found.append(f"link {n}: {key[1]!r} of {key[0]} is not eth1, eth2, ...: no port map would have it")
            if key in used:
                found.append(f"link {n}: {key[0]}:{key[1]} has a cable already")
            used.add(key)
            mac = end.get("mac")
            if mac in macs:
                found.append(f"link {n}: MAC {mac} is used twice")
            if mac:
                macs.add(mac)
        if not 68 <= link["mtu"] <= 65535:
            found.append(f"link {n}: {link['mtu']} is not an MTU")
    return found


def _groups(fabric: Fabric) -> list[str]:
    """containerlab orders its graph by these names."""
    tiers = sorted({s.tier for s in fabric.switches}, reverse=True)
    return [*(t.name.lower() for t in tiers), *(["server"] if fabric.servers else [])]


def _nodes(fabric: Fabric, mark: dict[str, str]) -> Iterable[tuple[str, dict[str, Any]]]:
    for s in fabric.switches:
        labels = {**mark, "tier": s.tier.name.lower(), "plane": str(s.plane)}
        if s.rail is not None:
            labels["rail"] = str(s.rail)
        if s.unit is not None:
            labels["su"] = str(s.unit)
        yield s.name, {
            "kind": "sonic-vs", "group": s.tier.name.lower(), "binds": [f"{s.name}:{SWITCH_FOLDER}:ro"],
            "labels": labels,
        }  # fmt: skip
    for server in fabric.servers:
        labels = {**mark, "tier": Tier.SERVER.name.lower()}
        if server.unit is not None:
            labels["su"] = str(server.unit)
        yield server.name, {
            "kind": "linux", "group": "server", "binds": [f"{server.name}:{SERVER_FOLDER}:ro"], "labels": labels,
        }  # fmt: skip


def _link(fabric: Fabric, link: Link) -> dict[str, Any]:
    labels = {"speed": format_speed(link.speed), "plane": str(link.plane)}
    if link.rail is not None:
        labels["rail"] = str(link.rail)
    return {
        "type": "veth",
        "endpoints": [_endpoint(fabric, link.a), _endpoint(fabric, link.b)],
        "mtu": link.mtu,
        "labels": labels,
    }


def _endpoint(fabric: Fabric, end: Endpoint) -> dict[str, str]:
    switch = fabric.switch.get(end.node)
    if switch is not None:
        return {"node": end.node, "interface": wire(switch, end.port)}
    mac = next(p.mac for p in fabric.server[end.node].ports if p.name == end.port)
    return {"node": end.node, "interface": end.port, "mac": mac}
