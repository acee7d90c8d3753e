"""FRR's configuration as bgpcfgd makes it of CONFIG_DB (``docker_routing_config_mode`` ``separated``). Pure.

After sonic-buildimage's dockers/docker-fpm-frr/frr/bgpd (bgpd.main.conf.j2, templates/general) and bgpcfgd's
managers, release 202605, with the switches of constants.yml as they are shipped. Left out is what decides no route of
a fabric: FPM, community marks of the allow list, graceful restart, and EVPN.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from fabtest.sonic.db import ConfigDb, Row

#: constants.yml: bgp.maximum_paths. FRR takes what it was built with, 256 in Debian's.
MAX_PATHS = 514
#: Group and route-maps by family.
GROUP = {4: "PEER_V4", 6: "PEER_V6"}
WORD = {4: "ipv4", 6: "ipv6"}


def bgpcfgd_frr(config: ConfigDb) -> tuple[str, tuple[str, ...]]:
    """The configuration, and what of CONFIG_DB it has no place for."""
    warnings: list[str] = []
    config = with_printable_keys(config)
    metadata = config.get("DEVICE_METADATA", {}).get("localhost", {})
    asn = _text(metadata.get("bgp_asn"))
    hostname = _text(metadata.get("hostname")) or "sonic"
    head = ["frr defaults traditional", f"hostname {hostname}", "!"]
    if not asn.isdigit():
        if config.get("BGP_NEIGHBOR"):
            warnings.append("DEVICE_METADATA|localhost|bgp_asn: not set, so bgpcfgd runs no BGP")
        return "\n".join(head) + "\n", tuple(warnings)
    loopbacks = _loopback0(config)
    if 4 not in loopbacks:
        warnings.append("LOOPBACK_INTERFACE|Loopback0: no IPv4 address; bgpcfgd waits for it and adds no neighbour")
    lines = [*head, *_policies(loopbacks), f"router bgp {asn}", *_globals(metadata, loopbacks)]
    for family, group in GROUP.items():
        lines.append(f" neighbor {group} peer-group")
        lines += _group_family(family, group, metadata, config)
    tables = ("INTERFACE", "VLAN_INTERFACE", "LOOPBACK_INTERFACE", "PORTCHANNEL_INTERFACE")
    own = {str(a.ip) for table in tables for _, a in _interfaces(config, table)}
    for key, row in config.get("BGP_NEIGHBOR", {}).items():
        lines += _neighbour(key, row, own, metadata, warnings) if 4 in loopbacks else ()
    lines += _networks(config, loopbacks)
    return "\n".join([*lines, "exit", "!", "end"]) + "\n", tuple(warnings)


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else ""


def printable(text: str) -> str:
    """A value as it may stand in a statement: a line break in it would begin another."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def with_printable_keys(config: ConfigDb) -> ConfigDb:
    """Without rows whose keys cannot stand in a statement."""
    return {table: {key: row for key, row in rows.items() if key.isprintable()} for table, rows in config.items()}


def _interfaces(config: ConfigDb, table: str) -> Iterator[tuple[str, IPv4Interface | IPv6Interface]]:
    for key in config.get(table, {}):
        name, _, prefix = key.partition("|")
        try:
            yield name, ip_interface(prefix)
        except ValueError:
            continue


def _loopback0(config: ConfigDb) -> dict[int, IPv4Interface | IPv6Interface]:
    found: dict[int, IPv4Interface | IPv6Interface] = {}
    for name, address in _interfaces(config, "LOOPBACK_INTERFACE"):
        if name == "Loopback0":
            found.setdefault(address.version, address)
    return found


def _policies(loopbacks: dict[int, IPv4Interface | IPv6Interface]) -> Iterator[str]:
    for family, address in loopbacks.items():
        word = "ip" if family == 4 else "ipv6"
        yield f"{word} prefix-list PL_LoopbackV{family} permit {address.network if family == 4 else _lo6(address)}"
    for family, group in GROUP.items():
        if family == 6:
            yield from (
                f"route-map FROM_BGP_{group} permit 1",
                " on-match next",
                " set ipv6 next-hop prefer-global",
                "exit",
            )
        yield from (f"route-map FROM_BGP_{group} permit 100", "exit", f"route-map TO_BGP_{group} permit 100", "exit")
    yield "!"


def _lo6(address: IPv4Interface | IPv6Interface) -> str:
    """SONiC advertises the /64 of an IPv6 loopback."""
    return str(IPv6Interface(f"{address.ip}/64").network)


def _globals(metadata: Row, loopbacks: dict[int, IPv4Interface | IPv6Interface]) -> Iterator[str]:
    router_id = _text(metadata.get("bgp_router_id")) or (str(loopbacks[4].ip) if 4 in loopbacks else "")
    if router_id:
        yield f" bgp router-id {router_id}"
    yield from (
        " bgp log-neighbor-changes",
        " bgp suppress-fib-pending",
        " no bgp default ipv4-unicast",
        " no bgp ebgp-requires-policy",
        " bgp bestpath as-path multipath-relax",
    )


def _group_family(family: int, group: str, metadata: Row, config: ConfigDb) -> Iterator[str]:
    kind = _text(metadata.get("type"))
    bbr = _text(config.get("BGP_BBR", {}).get("all", {}).get("status")) == "enabled"
    yield f" address-family {WORD[family]} unicast"
    if kind == "ToRRouter" or (kind == "LeafRouter" and bbr):
        yield f"  neighbor {group} allowas-in 1"
    yield f"  neighbor {group} soft-reconfiguration inbound"
    yield f"  neighbor {group} route-map FROM_BGP_{group} in"
    yield f"  neighbor {group} route-map TO_BGP_{group} out"
    yield f"  maximum-paths {MAX_PATHS}"
    yield " exit-address-family"


def _neighbour(key: str, row: Row, own: set[str], metadata: Row, warnings: list[str]) -> Iterator[str]:
    """A row of BGP_NEIGHBOR. bgpcfgd leaves one out whose local address is on no interface."""
    where = f"BGP_NEIGHBOR|{key}"
    peer = key.removeprefix("default|")
    try:
        family = ip_address(peer).version
    except ValueError:
        warnings.append(f"{where}: bgpcfgd takes addresses only (frr-mgmt form takes interfaces and VRFs)")
        return
    asn, local = _text(row.get("asn")), _text(row.get("local_addr"))
    if not asn.isdigit():
        warnings.append(f"{where}|asn: {asn!r} is not an AS number; the neighbour is left out")
        return
    if local and local not in own:
        warnings.append(f"{where}|local_addr: {local} is on no interface; bgpcfgd leaves the neighbour out")
        return
    yield f" neighbor {peer} remote-as {asn}"
    yield f" neighbor {peer} peer-group {GROUP[family]}"
    if _text(row.get("name")):
        yield f" neighbor {peer} description {_text(row.get('name'))}"
    keepalive, hold = _text(row.get("keepalive")) or "60", _text(row.get("holdtime")) or "180"
    if (keepalive, hold) != ("60", "180"):
        yield f" neighbor {peer} timers {keepalive} {hold}"
    yield f" neighbor {peer} timers connect 10"
    if (_text(row.get("admin_status")) or _text(metadata.get("default_bgp_status")) or "up") == "down":
        yield f" neighbor {peer} shutdown"
    if _text(row.get("bfd")) == "true":
        yield f" neighbor {peer} bfd"
    yield f" address-family {WORD[family]} unicast"
    if _text(row.get("rrclient")) not in ("", "0"):
        yield f"  neighbor {peer} route-reflector-client"
    if _text(row.get("nhopself")) not in ("", "0"):
        yield f"  neighbor {peer} next-hop-self"
    yield f"  neighbor {peer} activate"
    yield " exit-address-family"


def _networks(config: ConfigDb, loopbacks: dict[int, IPv4Interface | IPv6Interface]) -> Iterator[str]:
    """Loopback0 and the subnets of VLAN interfaces."""
    vlans = [a for _, a in _interfaces(config, "VLAN_INTERFACE")]
    long = _text(config.get("DEVICE_METADATA", {}).get("localhost", {}).get("bgp_adv_lo_prefix_as_128")) == "true"
    for family in (4, 6):
        found = [str(a.network) for a in vlans if a.version == family]
        if family in loopbacks:
            own = loopbacks[family]
            found.insert(0, f"{own.ip}/32" if family == 4 else f"{own.ip}/128" if long else _lo6(own))
        if found:
            yield f" address-family {WORD[family]} unicast"
            yield from (f"  network {prefix}" for prefix in dict.fromkeys(found))
            yield " exit-address-family"
