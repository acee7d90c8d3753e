"""From a topology file to a ``Fabric``, or to every fault in the file at once."""

from __future__ import annotations

import difflib
import zlib
from collections import Counter
from importlib import resources
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path as FilePath
from typing import Any

import networkx as nx
from pydantic import ValidationError

from fabtest.errors import FileProblem, Problem, TopologyError
from fabtest.model import (
    BgpIntent,
    BgpSession,
    EcnCurve,
    Emulation,
    Endpoint,
    Fabric,
    FailoverBounds,
    HashIntent,
    Link,
    Nic,
    NicPort,
    QosIntent,
    Server,
    Shape,
    Switch,
    Tier,
    Vlan,
    Watchdog,
)
from fabtest.sonic.hash import TIER_SEED
from fabtest.topology.addressing import AddressPlan, check_pools
from fabtest.topology.asn import asn_of
from fabtest.topology.faults import fault_of, merge
from fabtest.topology.ports import Plugged, plug
from fabtest.topology.schema import KINDS, CustomSpec, DualPlaneSpec, HashSpec, QosSpec, TopologySpec
from fabtest.topology.shapes import GENERATORS
from fabtest.topology.source import Source, parse
from fabtest.topology.units import NAME, format_speed, generated_mac, parse_speed
from fabtest.topology.wiring import Cable, ServerDecl, SwitchDecl, Wiring

SERVER_VLAN = 100


def load_fabric(file: str | FilePath) -> Fabric:
    """Read a topology file. Raises FileProblem, or TopologyError with every fault and its position."""
    path = FilePath(file)
    return load_fabric_text(read_topology(path), str(file), default_name=path.stem)


def read_topology(path: FilePath) -> str:
    """The text of a topology file. Raises FileProblem or TopologyError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TopologyError(str(path), [Problem(1, 1, "", f"not UTF-8 text: byte {error.start}")]) from None
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}", hint="`topologies` lists those shipped") from None


def load_fabric_text(text: str, file: str, *, default_name: str = "fabric", configs: FilePath | None = None) -> Fabric:
    """The same from text; ``file`` is used in messages, and to find what the topology names relative to it.

    ``configs`` is where the given configurations of a ``custom`` topology are, one folder per node, if not where it
    says.
    """
    source = parse(text, file)
    spec = _validate(source)
    if isinstance(spec, CustomSpec) and spec.configs is not None:
        return _given(spec, source, default_name, configs)
    problems = [*check_pools(spec.addressing, source), *_shape_faults(spec, source)]
    if problems:
        raise TopologyError(file, problems)
    wiring = GENERATORS[spec.kind](spec)
    problems = _wiring_faults(wiring, source)
    if problems:
        raise TopologyError(file, problems)
    plugged, problems = plug(wiring, source)
    problems += _speed_faults(spec, plugged, source)
    name = _fabric_name(spec, source, default_name, problems)
    if problems:
        raise TopologyError(file, problems)
    plan = AddressPlan(spec.addressing, wiring, source)
    fabric = _Builder(spec, wiring, plugged, plan).fabric(name)
    if plan.problems:
        raise TopologyError(file, plan.problems)
    return fabric


def parse_custom(text: str, file: str) -> tuple[CustomSpec, Source]:
    """The words of a ``custom`` topology. Raises TopologyError."""
    source = parse(text, file)
    spec = _validate(source)
    assert isinstance(spec, CustomSpec)
    return spec, source


def _given(spec: CustomSpec, source: Source, default_name: str, configs: FilePath | None) -> Fabric:
    """A custom topology whose switches have given configurations. Raises TopologyError, FileProblem, ConfigError."""
    from fabtest.importer import given_fabric, read_switch

    assert spec.configs is not None
    problems = [
        source.problem((key,), "the given configurations say this", "remove it, or `configs`", key=True)
        for key in ("addressing", "bgp", "hash", "mtu")
        if key in source.data
    ]
    for n, node in enumerate(source.data["nodes"]):
        for key in ("asn", "model"):
            if key in node:
                problems.append(source.problem(("nodes", n, key), "the given configuration says this", "remove it"))
    name = _fabric_name(spec, source, default_name, problems)
    problems += _wiring_faults(GENERATORS["custom"](spec), source)
    root = configs or FilePath(source.file).parent / spec.configs
    if not root.is_dir():
        problems.append(source.problem(("configs",), f"there is no folder {root}", "relative to this file"))
    if problems:
        raise TopologyError(source.file, problems)
    given = {}
    for n, words in enumerate(spec.nodes):
        where = words.name if configs else words.config or words.name
        if not (root / where).exists():
            what = f"there is no {root / where}"
            problems.append(source.problem(("nodes", n), what, "name its folder below `configs` with `config:`"))
            continue
        given[words.name] = read_switch(root, where, words.name)
    if not problems:
        fabric, problems = given_fabric(spec, source, given, name)
        if fabric is not None:
            return fabric
    raise TopologyError(source.file, problems)


def _fabric_name(spec: TopologySpec, source: Source, default_name: str, problems: list[Problem]) -> str:
    """The name given, or the file's."""
    name = spec.name or default_name.lower().replace("_", "-").replace(".", "-")
    if not NAME.match(name):
        problems.append(source.problem((), f"the file's name {default_name!r} is no host name", "add `name:`"))
    return name


def shipped_topologies() -> dict[str, FilePath]:
    """The topologies that come with fabtest, by name: of the checkout, or of the installed package."""
    for folder in (
        FilePath(__file__).parents[3] / "topologies",
        FilePath(str(resources.files("fabtest"))) / "_data/topologies",
    ):
        if folder.is_dir():
            return {f.stem: f for f in sorted(folder.glob("*.yml"))}
    return {}


def topology_path(word: str) -> FilePath:
    """A file the user named, by path or, for a shipped one, by name. Raises FileProblem."""
    path = FilePath(word)
    if path.suffix in (".yml", ".yaml") or path.is_file():
        if not path.is_file():
            raise FileProblem(f"no such file: {word}", hint=f"shipped: {', '.join(shipped_topologies())}")
        return path
    shipped = shipped_topologies()
    if word in shipped:
        return shipped[word]
    near = difflib.get_close_matches(word, shipped, 1)
    hint = f"did you mean {near[0]}?" if near else f"shipped: {', '.join(shipped)}"
    raise FileProblem(f"no topology named {word!r} and no such file", hint=hint)


# ---------------------------------------------------------------------------------------------- words to faults


def _validate(source: Source) -> TopologySpec:
    kind = source.data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, 1)
        remedy = f"did you mean {near[0]}?" if near else f"one of {', '.join(KINDS)}"
        what = "missing" if kind is None else f"{kind!r} is not a kind of fabric"
        raise TopologyError(source.file, [source.problem(("kind",), what, remedy)])
    model = KINDS[kind]
    data = dict(source.data)
    if isinstance(data.get("qos"), str):
        data["qos"] = {"profile": data["qos"]}
        source.marks.setdefault(("qos", "profile"), source.marks[("qos",)])
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [fault_of(source, model, dict(e)) for e in error.errors(include_url=False)]
        raise TopologyError(source.file, merge(problems)) from None


def _shape_faults(spec: TopologySpec, source: Source) -> list[Problem]:
    """What no single key shows."""
    problems: list[Problem] = []
    if isinstance(spec, CustomSpec):
        return problems
    if spec.kind == "rail-only":
        if spec.units > 1 and not spec.spines:
            problems.append(source.problem(("units",), "rails of several units need spines to meet", "add `spines:`"))
        if spec.superspines:
            problems.append(source.problem(("superspines",), "rail-only has no super-spines"))
    elif spec.kind == "clos":
        if not spec.spines and spec.pods * spec.leaves > 1:
            problems.append(source.problem(("spines",), "several leaves need at least one spine"))
        if spec.pods > 1 and not spec.superspines:
            problems.append(source.problem(("pods",), "several pods need super-spines", "add `superspines:`"))
    elif not spec.spines and spec.units > 1:
        problems.append(source.problem(("spines",), "several units need spines", "set `spines:` to at least 1"))
    if spec.superspines:
        for key, count in (("spines", spec.spines), ("superspines", spec.superspines)):
            if count % spec.superspine_groups:
                what = f"{spec.superspine_groups} groups do not divide {count} {key}"
                problems.append(source.problem(("superspine_groups",), what))
    elif spec.superspine_groups > 1:
        problems.append(source.problem(("superspine_groups",), "there are no super-spines"))
    if spec.kind != "clos" and "nics" in (source.data.get("server") or {}):
        what = "rail fabrics have one NIC per rail"
        problems.append(source.problem(("server", "nics"), what, "remove it; `rails` says it", key=True))
    if spec.bgp.holdtime < 3 * spec.bgp.keepalive and "holdtime" in (source.data.get("bgp") or {}):
        what = f"{spec.bgp.holdtime} s is less than three keepalives of {spec.bgp.keepalive} s"
        problems.append(source.problem(("bgp", "holdtime"), what, "RFC 4271 suggests a third"))
    qos = spec.qos
    if isinstance(qos, QosSpec):
        if qos.ecn and qos.ecn.kmin > qos.ecn.kmax:
            problems.append(source.problem(("qos", "ecn", "kmin"), f"above kmax {qos.ecn.kmax}", "kmin <= kmax"))
        if qos.roce_tc == qos.cnp_tc:
            problems.append(source.problem(("qos", "cnp_tc"), "the same class as RoCE data", "give CNPs their own"))
        if qos.roce_dscp == qos.cnp_dscp:
            problems.append(source.problem(("qos", "cnp_dscp"), "the same DSCP as RoCE data"))
        dog = qos.watchdog
        if dog and min(dog.detection_time, dog.restoration_time) < dog.poll_interval:
            what = "detection and restoration must not be shorter than poll_interval"
            problems.append(source.problem(("qos", "watchdog"), what, "SONiC's YANG refuses it"))
    return problems


def _speed_faults(spec: TopologySpec, plugged: Plugged, source: Source) -> list[Problem]:
    if isinstance(spec, CustomSpec) or spec.server.nic_speed is None or not plugged.ends:
        return []
    planes = spec.planes if isinstance(spec, DualPlaneSpec) else 1
    want = parse_speed(spec.server.nic_speed)
    for (_, _, speed), cable in zip(plugged.ends, GENERATORS[spec.kind](spec).cables, strict=True):
        if cable.tier is Tier.SERVER and speed * planes != want:
            per = f" in {planes} ports" if planes > 1 else ""
            what = f"speeds do not match: the NIC has {spec.server.nic_speed}{per}, the leaf port {format_speed(speed)}"
            remedy = f"set nic_speed to {format_speed(speed * planes)}, or the leaf's port_speed or downlink_breakout"
            return [source.problem(("server", "nic_speed"), what, remedy)]
    return []


def _wiring_faults(wiring: Wiring, source: Source) -> list[Problem]:
    """Names used twice, links to nowhere, links that skip the order of tiers: only `custom` can have them."""
    problems: list[Problem] = []
    nodes: list[SwitchDecl | ServerDecl] = [*wiring.switches, *wiring.servers]
    counts = Counter(node.name for node in nodes)
    seen: set[str] = set()
    for node in nodes:
        if counts[node.name] > 1 and node.name in seen:
            problems.append(source.problem((*node.at, "name"), f"{node.name} is used twice", "names are unique"))
        seen.add(node.name)
    switches = {s.name for s in wiring.switches}
    for cable in wiring.cables:
        for end in (cable.a, cable.b):
            if end not in counts:
                near = difflib.get_close_matches(end, counts, 1)
                remedy = f"did you mean {near[0]}?" if near else "list it under nodes or servers"
                problems.append(source.problem(cable.at, f"there is no node {end!r}", remedy))
        if cable.a == cable.b:
            problems.append(source.problem(cable.at, "both ends are on the same node"))
        elif cable.b in counts and cable.b not in switches:
            problems.append(source.problem(cable.at, "a link between two servers", "one end must be a switch"))
    return problems


# ------------------------------------------------------------------------------------------------ words to model


def qos_intent(spec: TopologySpec) -> QosIntent:
    """What a topology file asks for."""
    words = spec.qos if isinstance(spec.qos, QosSpec) else QosSpec(profile=spec.qos)
    base = {
        "profile": words.profile, "roce_dscp": words.roce_dscp, "roce_tc": words.roce_tc, "cnp_dscp": words.cnp_dscp,
        "cnp_tc": words.cnp_tc, "roce_weight": words.roce_weight, "best_effort_weight": words.best_effort_weight,
        "buffer_bytes": words.buffer_size, "dynamic_th": words.dynamic_th,
    }  # fmt: skip
    if words.profile == "lossy":
        return QosIntent(**base, pfc_priorities=())  # type: ignore[arg-type]
    from fabtest.topology.schema import EcnSpec, WatchdogSpec

    ecn, dog = words.ecn or EcnSpec(), words.watchdog or WatchdogSpec()
    return QosIntent(
        **base,  # type: ignore[arg-type]
        pfc_priorities=(words.roce_tc,),
        ecn_at_100g=EcnCurve(ecn.kmin, ecn.kmax, ecn.pmax),
        watchdog=Watchdog(dog.action, dog.detection_time, dog.restoration_time, dog.poll_interval),
    )


def _seed(spec: HashSpec, switch: SwitchDecl) -> int:
    if spec.seed == "per-switch":
        return zlib.crc32(switch.name.encode()) & 0x7FFFFFFF or 1
    if spec.seed == "per-tier":
        return TIER_SEED[switch.tier]
    return int(spec.seed)


class _Builder:
    """Joins wiring, ports and addresses into the model."""

    def __init__(self, spec: TopologySpec, wiring: Wiring, plugged: Plugged, plan: AddressPlan) -> None:
        self.spec = spec
        self.wiring = wiring
        self.plugged = plugged
        self.plan = plan
        self.decl = {s.name: s for s in wiring.switches}
        self.asn = {s.name: asn_of(s, spec.bgp) for s in wiring.switches}
        self.links: list[Link] = []
        self.addresses: dict[str, dict[str, list[Any]]] = {s.name: {} for s in wiring.switches}
        self.sessions: dict[str, list[BgpSession]] = {s.name: [] for s in wiring.switches}
        self.members: dict[str, list[str]] = {s.name: [] for s in wiring.switches}
        self.prefixes: dict[str, list[Any]] = {s.name: [] for s in wiring.switches}
        self.nic_ports: dict[str, list[tuple[Cable, NicPort]]] = {s.name: [] for s in wiring.servers}
        self.server_index = {s.name: s.index for s in wiring.servers}
        self.numbered = spec.addressing.fabric_links == "numbered"
        self.vlan = not isinstance(spec, CustomSpec) and spec.server.attachment == "vlan"

    def fabric(self, name: str) -> Fabric:
        for cable, (a_port, b_port, speed) in zip(self.wiring.cables, self.plugged.ends, strict=True):
            a, b = Endpoint(cable.a, a_port), Endpoint(cable.b, b_port)
            mtu = cable.mtu or self.spec.mtu
            link = Link(a, b, cable.tier, speed, mtu, cable.length_m, cable.plane, cable.rail)
            self.links.append(link)
            if cable.tier is Tier.SERVER:
                self._attach(cable, link)
            else:
                self._join(cable, link)
        bgp = self.spec.bgp
        return Fabric(
            name=name,
            shape=Shape(self.spec.kind),
            switches=tuple(self._switch(i, s) for i, s in enumerate(self.wiring.switches)),
            servers=tuple(self._server(s) for s in self.wiring.servers),
            links=tuple(self.links),
            bgp=BgpIntent(
                bgp.keepalive, bgp.holdtime, bgp.connect_retry, bgp.max_paths, bgp.bfd, bgp.bfd_interval,
                bgp.bfd_multiplier,
            ),
            qos=qos_intent(self.spec),
            failover=FailoverBounds(self.spec.failover.carrier_loss, self.spec.failover.silent_loss),
            families=self.plan.families,
            unnumbered=not self.numbered,
            mtu=self.spec.mtu,
            emulation=Emulation(**self.spec.emulation.model_dump()),
        )  # fmt: skip

    def _attach(self, cable: Cable, link: Link) -> None:
        """A NIC port on its leaf."""
        leaf = self.decl[cable.b]
        nic_side: list[IPv4Interface | IPv6Interface] = []
        gateways = []
        for family in self.plan.families:
            block = self.plan.leaf_block(leaf, family)
            if block is not None and block not in self.prefixes[leaf.name]:
                self.prefixes[leaf.name].append(block)
            if self.vlan:
                gateway, host = self.plan.vlan_gateway(leaf, family), self.plan.vlan_host(leaf, cable.slot, family)
            else:
                gateway, host = self.plan.attachment(leaf, cable.slot, family) or (None, None)
                if gateway is not None:
                    self.addresses[leaf.name].setdefault(link.b.port, []).append(gateway)
            if gateway is not None and host is not None:
                nic_side.append(host)
                gateways.append(gateway.ip)
        if self.vlan:
            self.members[leaf.name].append(link.b.port)
        mac = generated_mac(0x10, self.server_index[cable.a], int(link.a.port.removeprefix("eth")))
        port = NicPort(
            link.a.port, cable.plane, mac, link.speed, link.mtu, tuple(nic_side), tuple(gateways), link.b
        )  # fmt: skip
        self.nic_ports[cable.a].append((cable, port))

    def _join(self, cable: Cable, link: Link) -> None:
        """A link between switches, and the session over it."""
        lower = self.decl[cable.a]
        low: list[Any] = []
        high: list[Any] = []
        if self.numbered:
            for family in self.plan.families:
                pair = self.plan.fabric_link(lower, cable, family)
                if pair:
                    low.append(pair[0])
                    high.append(pair[1])
        for near, far, mine, theirs in ((link.a, link.b, low, high), (link.b, link.a, high, low)):
            self.addresses[near.node][near.port] = list(mine)
            self.sessions[near.node].append(
                BgpSession(near.port, far.node, far.port, self.asn[far.node], tuple(mine), tuple(theirs))
            )

    def _switch(self, position: int, decl: SwitchDecl) -> Switch:
        loopbacks = [x for family in self.plan.families if (x := self.plan.loopback(decl, family))]
        router = self.plan.loopback(decl, 4)
        svi = [x for f in self.plan.families if self.members[decl.name] and (x := self.plan.vlan_gateway(decl, f))]
        return Switch(
            name=decl.name,
            tier=decl.tier,
            plane=decl.plane,
            unit=decl.unit,
            rail=decl.rail,
            kind=decl.kind,
            mac=generated_mac(int(decl.tier), decl.plane << 16 | decl.ordinal + 1, 0),
            asn=self.asn[decl.name],
            router_id=str(router.ip) if router else "0.0.0.0",
            loopbacks=tuple(loopbacks),
            ports=self.plugged.ports[decl.name],
            addresses={port: tuple(a) for port, a in self.addresses[decl.name].items()},
            vlans=(Vlan(SERVER_VLAN, tuple(self.members[decl.name]), tuple(svi)),) if svi else (),
            server_prefixes=tuple(self.prefixes[decl.name]),
            sessions=tuple(self.sessions[decl.name]),
            hash=HashIntent(tuple(self.spec.hash.fields), _seed(self.spec.hash, decl)),
        )

    def _server(self, decl: ServerDecl) -> Server:
        groups: dict[int, list[NicPort]] = {}
        rails: dict[int, int | None] = {}
        for number, (cable, port) in enumerate(self.nic_ports[decl.name], 1):
            nic = cable.rail if self.spec.kind != "custom" and cable.rail else number
            groups.setdefault(nic, []).append(port)
            rails[nic] = cable.rail
        nics = tuple(Nic(n, rails[n], decl.gpus_per_nic, tuple(ports)) for n, ports in sorted(groups.items()))
        return Server(decl.name, decl.index, decl.unit, nics)


def components(fabric: Fabric) -> list[set[str]]:
    """Sets of switches that can reach each other, for shapes that are cut on purpose (rails, planes)."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(s.name for s in fabric.switches)
    graph.add_edges_from((link.a.node, link.b.node) for link in fabric.fabric_links)
    return [set(c) for c in nx.connected_components(graph)]
