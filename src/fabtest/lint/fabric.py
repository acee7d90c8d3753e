"""Rules across a fabric: both ends of a cable, neighbours of BGP, tiers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from fabtest.lint.cabling import CablingRow
from fabtest.lint.rule import Hit, Severity
from fabtest.lint.switch import SwitchConfig, number, text

Fabric = Mapping[str, SwitchConfig]
#: The rule of two files with one hostname; found where files become switches.
SAME_NAME = "FAB106"
#: Found where a ``cabling.csv`` lies in the folder.
NOT_AS_CABLED = "FAB107"


@dataclass(frozen=True, slots=True)
class FabricRule:
    """A rule of a whole fabric; hits carry the switch they are about."""

    id: str
    severity: Severity
    title: str
    why: str
    remedy: str
    source: str


FABRIC_RULES = {
    r.id: r
    for r in (
        FabricRule("FAB101", Severity.ERROR, "Both ends of a cable have different speed, MTU or FEC",
                   "The link does not come up, or drops what one end sends and the other does not take.",
                   "Use the same speed, mtu and fec on both ends.", "sonic-buildimage issue 5201"),
        FabricRule("FAB102", Severity.ERROR, "Both ends of a cable have PFC on different priorities",
                   "One end pauses a class the other does not stop: lossless traffic is dropped, or a class starves.",
                   "Use the same pfc_enable on both ends.", "IEEE 802.1Qbb"),
        FabricRule("FAB103", Severity.ERROR, "Both ends of a cable classify by DSCP differently",
                   "A packet is lossless on one hop and lossy on the next.",
                   "Use the same DSCP_TO_TC_MAP and TC_TO_PRIORITY_GROUP_MAP everywhere.", "SONiC qos_config.j2"),
        FabricRule("FAB104", Severity.ERROR, "A BGP neighbour does not have this switch as its neighbour, or with another AS",
                   "The session stays down.", "Make neighbours and AS numbers mutual.", "RFC 4271"),
        FabricRule("FAB105", Severity.ERROR, "DEVICE_NEIGHBOR of two switches contradict each other",
                   "Cables are not where the files say.", "Correct the file, or the cable.", "DEVICE_NEIGHBOR"),
        FabricRule(SAME_NAME, Severity.ERROR, "Two files have the same hostname",
                   "Neighbours name a switch by it: only one of the two is compared with its neighbours, and logs and "
                   "telemetry take them for one.",
                   "Give every switch a hostname of its own; ASICs of one switch are config_db0.json, config_db1.json.",
                   "DEVICE_METADATA"),
        FabricRule(NOT_AS_CABLED, Severity.ERROR, "DEVICE_NEIGHBOR is not as cabling.csv has it",
                   "The file and the plan of the cables disagree: addresses, sessions and QoS are of another neighbour.",
                   "Correct the file, or the plan.", "DEVICE_NEIGHBOR"),
        FabricRule("FAB022", Severity.WARNING, "Neighbouring tiers have the same DEVICE_METADATA type",
                   "The type picks ecmp_hash_seed and offset: with the same on both tiers, what one tier has chosen the next "
                   "chooses again, and paths stay idle (polarisation).",
                   "Use ToRRouter, LeafRouter, SpineRouter by tier.", "sonic-buildimage issues 17505, 17215, 25441, 11880"),
    )
}  # fmt: skip


def host_of(name: str) -> str:
    """The switch an ASIC belongs to (``<host>-asic0``); of another switch itself."""
    return re.sub(r"-asic[0-9]+$", "", name)


def cables(fabric: Fabric) -> Iterator[tuple[str, str, str, str]]:
    """(switch, port, neighbour, its port) of DEVICE_NEIGHBOR, both switches in the fabric; each cable once."""
    asics: dict[str, list[str]] = {}
    for name in fabric:
        asics.setdefault(host_of(name), []).append(name)
    seen = set()
    for name, s in fabric.items():
        for port, row in s.table("DEVICE_NEIGHBOR").items():
            far, far_port = text(row.get("name")), text(row.get("port"))
            # A neighbour is named by its host; the port is of one of its ASICs.
            owners = (n for n in asics.get(far, ()) if n != far and _has_port(fabric[n], far_port))
            far = next(owners, far)
            key = frozenset(((name, port), (far, far_port)))
            if far in fabric and key not in seen:
                seen.add(key)
                yield name, port, far, far_port


def _has_port(s: SwitchConfig, port: str) -> bool:
    ports = s.table("PORT")
    return port in ports or any(text(row.get("alias")) == port for row in ports.values())


def fabric_hits(fabric: Fabric) -> Iterator[tuple[str, str, Hit]]:
    """(rule, switch, hit) of every fault between switches."""
    for a, a_port, b, b_port in cables(fabric):
        yield from _ends(fabric, a, a_port, b, b_port)
    yield from _sessions(fabric)
    tiers: set[frozenset[str]] = set()
    for a, port, b, _ in cables(fabric):
        kinds = [text(fabric[n].metadata.get("type")) for n in (a, b)]
        if kinds[0] and kinds[0] == kinds[1] and frozenset((a, b)) not in tiers:
            tiers.add(frozenset((a, b)))
            yield "FAB022", a, Hit("DEVICE_METADATA|localhost|type", f"is {kinds[0]}, and {b} on {port} is too")


def cabling_hits(fabric: Fabric, rows: Sequence[CablingRow]) -> Iterator[tuple[str, str, Hit]]:
    """(rule, switch, hit) of every end whose DEVICE_NEIGHBOR is not as the plan of the cables has it."""
    named = {name.lower(): name for name in fabric}
    for row in rows:
        for near, port, far, far_port in (
            (row.a, row.a_port, row.b, row.b_port), (row.b, row.b_port, row.a, row.a_port),
        ):  # fmt: skip
            switch = named.get(near.lower())
            if switch is None or not fabric[switch].has("DEVICE_NEIGHBOR"):
                continue
            own = _by_alias(fabric[switch], port)
            said = fabric[switch].table("DEVICE_NEIGHBOR").get(own)
            if said is None:
                yield (
                    NOT_AS_CABLED,
                    switch,
                    Hit("DEVICE_NEIGHBOR", f"has no {own}, cabling.csv has {far}:{far_port} there"),
                )
                continue
            name, their = text(said.get("name")), text(said.get("port"))
            there = named.get(far.lower())
            ports = {far_port, _by_alias(fabric[there], far_port) if there else far_port}
            theirs = {their, _by_alias(fabric[there], their) if there else their}
            if name.lower() != far.lower() or (their and not ports & theirs):
                where = f"DEVICE_NEIGHBOR|{own}"
                yield NOT_AS_CABLED, switch, Hit(where, f"says {name}:{their}, cabling.csv has {far}:{far_port}")


def _by_alias(s: SwitchConfig, port: str) -> str:
    """A port by its name or its alias."""
    if port in s.table("PORT"):
        return port
    return next((name for name, row in s.table("PORT").items() if text(row.get("alias")) == port), port)


def _ends(fabric: Fabric, a: str, a_port: str, b: str, b_port: str) -> Iterator[tuple[str, str, Hit]]:
    near, far = fabric[a], fabric[b]
    alias = {text(row.get("alias")): port for port, row in far.table("PORT").items()}
    b_port = alias.get(b_port, b_port) if b_port not in far.table("PORT") else b_port
    back = far.table("DEVICE_NEIGHBOR").get(b_port)
    mine_too = (a_port, text(near.table("PORT").get(a_port, {}).get("alias")))
    if back is not None and (text(back.get("name")) not in (a, host_of(a)) or text(back.get("port")) not in mine_too):
        said = f"{text(back.get('name'))}:{text(back.get('port'))}"
        yield "FAB105", a, Hit(f"DEVICE_NEIGHBOR|{a_port}", f"says {b}:{b_port}, which says {said}")
        return
    if far.has("PORT") and b_port not in far.table("PORT"):
        yield "FAB105", a, Hit(f"DEVICE_NEIGHBOR|{a_port}|port", f"{b} has no port {b_port}")
        return
    mine, theirs = near.table("PORT").get(a_port, {}), far.table("PORT").get(b_port, {})
    for field in ("speed", "mtu", "fec"):
        x, y = text(mine.get(field)), text(theirs.get(field))
        if x and y and x != y:
            yield "FAB101", a, Hit(f"PORT|{a_port}|{field}", f"is {x}, {b}:{b_port} has {y}")
    if near.has("PORT_QOS_MAP") and far.has("PORT_QOS_MAP"):
        one, other = near.lossless.get(a_port, set()), far.lossless.get(b_port, set())
        if one != other:
            yield (
                "FAB102",
                a,
                Hit(
                    near.binding(a_port, "pfc_enable"),
                    f"is {','.join(sorted(one)) or 'not set'}, {b}:{b_port} has {','.join(sorted(other)) or 'none'}",
                ),
            )
        for field, table in (("dscp_to_tc_map", "DSCP_TO_TC_MAP"), ("tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP")):
            x_map, y_map = near.map_of(a_port, field, table), far.map_of(b_port, field, table)
            differ = [k for k in sorted({*x_map, *y_map}, key=lambda k: number(k) or 0) if x_map.get(k) != y_map.get(k)]
            if x_map and y_map and differ:
                k = differ[0]
                yield (
                    "FAB103",
                    a,
                    Hit(
                        near.binding(a_port, field),
                        f"{table}: {k} goes to {x_map.get(k)}, on {b}:{b_port} to {y_map.get(k)}"
                        + (f" (and {len(differ) - 1} more)" if len(differ) > 1 else ""),
                    ),
                )


def _plain(address: str) -> str:
    """An address in its one form; what is none, as it is."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address


def _sessions(fabric: Fabric) -> Iterator[tuple[str, str, Hit]]:
    owners = {}
    for name, s in fabric.items():
        for table in ("INTERFACE", "VLAN_INTERFACE", "LOOPBACK_INTERFACE", "PORTCHANNEL_INTERFACE"):
            for key in s.table(table):
                if "|" in key:
                    owners[_plain(key.partition("|")[2].partition("/")[0])] = name
    for name, s in fabric.items():
        for key, row in s.table("BGP_NEIGHBOR").items():
            address = _plain(key.rpartition("|")[2])
            peer = owners.get(address)
            if peer is None:
                if text(row.get("name")) in fabric:
                    yield "FAB104", name, Hit(f"BGP_NEIGHBOR|{key}", f"{row.get('name')} has no address {address}")
                continue
            asn, real = text(row.get("asn")), text(fabric[peer].metadata.get("bgp_asn"))
            if asn and real and asn != real:
                yield "FAB104", name, Hit(f"BGP_NEIGHBOR|{key}|asn", f"is {asn}, {peer} is AS {real}")
            local = _plain(text(row.get("local_addr")))
            theirs = {_plain(k.rpartition("|")[2]) for k in fabric[peer].table("BGP_NEIGHBOR")}
            listening = fabric[peer].has("BGP_PEER_RANGE") or fabric[peer].has("BGP_GLOBALS_LISTEN_PREFIX")
            if local and theirs and local not in theirs and not listening:
                yield "FAB104", name, Hit(f"BGP_NEIGHBOR|{key}", f"{peer} has no neighbour {local}")
