"""FRR's configuration as the management framework makes it of CONFIG_DB (``frr_mgmt_framework_config``). Pure.

After sonic-buildimage's src/sonic-frr-mgmt-framework (templates and frrcfgd.py), release 202605: BGP_GLOBALS and its
address families, peer groups, neighbours by address or interface, networks, redistribution, route-maps and
prefix-lists of the default VRF. As there, nothing is said of RFC 8212: without a policy FRR passes no eBGP route.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from fabtest.sonic.bgpcfgd import printable, with_printable_keys
from fabtest.sonic.db import ConfigDb, Row

FAMILIES = {"ipv4_unicast": "ipv4 unicast", "ipv6_unicast": "ipv6 unicast"}
#: Fields of BGP_GLOBALS that are true or false -> the statement.
GLOBAL_FLAGS = {
    "log_nbr_state_changes": "bgp log-neighbor-changes",
    "always_compare_med": "bgp always-compare-med",
    "deterministic_med": "bgp deterministic-med",
    "graceful_restart_enable": "bgp graceful-restart",
    "graceful_shutdown": "bgp graceful-shutdown",
    "load_balance_mp_relax": "bgp bestpath as-path multipath-relax",
    "external_compare_router_id": "bgp bestpath compare-routerid",
    "network_import_check": "bgp network import-check",
}
#: Fields of neighbours and peer groups: true or false, and with a value.
NEIGHBOUR_FLAGS = {
    "bfd": "bfd",
    "passive_mode": "passive",
    "disable_ebgp_connected_route_check": "disable-connected-check",
    "enforce_first_as": "enforce-first-as",
    "capability_dynamic": "capability dynamic",
    "capability_ext_nexthop": "capability extended-nexthop",
}
NEIGHBOUR_VALUES = {
    "local_asn": "local-as",
    "name": "description",
    "ebgp_multihop_ttl": "ebgp-multihop",
    "local_addr": "update-source",
    "min_adv_interval": "advertisement-interval",
    "conn_retry": "timers connect",
}
FAMILY_FLAGS = {
    "as_override": "as-override",
    "nhself": "next-hop-self",
    "rrclient": "route-reflector-client",
    "send_default_route": "default-originate",
    "soft_reconfiguration_in": "soft-reconfiguration inbound",
    "route_server_client": "route-server-client",
}


def frrcfgd_frr(config: ConfigDb) -> tuple[str, tuple[str, ...]]:
    """The configuration, and what of CONFIG_DB it has no place for."""
    warnings: list[str] = []
    config = with_printable_keys(config)
    hostname = _text(config.get("DEVICE_METADATA", {}).get("localhost", {}).get("hostname")) or "sonic"
    lines = ["frr defaults traditional", f"hostname {hostname}", "!", *_prefix_lists(config), *_route_maps(config)]
    bgp = config.get("BGP_GLOBALS", {}).get("default", {})
    for vrf in config.get("BGP_GLOBALS", {}):
        if vrf != "default":
            warnings.append(f"BGP_GLOBALS|{vrf}: only the default VRF runs in a lab")
    asn = _text(bgp.get("local_asn"))
    plain = [key for key in config.get("BGP_NEIGHBOR", {}) if "|" not in key]
    if plain:
        warnings.append(
            f"BGP_NEIGHBOR|{plain[0]}: a key of bgpcfgd's form; the management framework reads "
            "BGP_NEIGHBOR|<vrf>|<peer>"
        )
    if not asn.isdigit():
        warnings.append("BGP_GLOBALS|default|local_asn: not set, so no BGP runs")
        return "\n".join([*lines, "end"]) + "\n", tuple(warnings)
    lines += [f"router bgp {asn}", *_globals(bgp)]
    for key, row in config.get("BGP_PEER_GROUP", {}).items():
        vrf, _, name = key.partition("|")
        if vrf == "default":
            lines += [f" neighbor {name} peer-group", *_neighbour(name, row, interface=False)]
    for key, row in config.get("BGP_NEIGHBOR", {}).items():
        vrf, _, name = key.partition("|")
        if vrf == "default" and name:
            lines += _neighbour(name, row, interface=not _is_address(name))
    for key, row in config.get("BGP_GLOBALS_LISTEN_PREFIX", {}).items():
        vrf, _, prefix = key.partition("|")
        if vrf == "default" and "peer_group" in row:
            lines.append(f" bgp listen range {prefix} peer-group {_text(row['peer_group'])}")
    for family, words in FAMILIES.items():
        inside = list(_family(config, family))
        if inside:
            lines += [f" address-family {words}", *inside, " exit-address-family"]
    return "\n".join([*lines, "exit", "!", "end"]) + "\n", tuple(warnings)


def _text(value: object) -> str:
    return printable(value if isinstance(value, str) else ",".join(map(str, value)) if isinstance(value, list) else "")


def _texts(value: object) -> list[str]:
    return [printable(str(v)) for v in value] if isinstance(value, list) else [x for x in _text(value).split(",") if x]


def _true(value: object) -> bool:
    return _text(value) == "true"


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _prefix_lists(config: ConfigDb) -> Iterator[str]:
    """PREFIX|set|prefix|range or, newer, PREFIX|set|sequence|prefix|range; a range is ``exact`` or ``24..32``."""
    modes = {name: _text(row.get("mode")) or "IPv4" for name, row in config.get("PREFIX_SET", {}).items()}
    for key, row in config.get("PREFIX", {}).items():
        parts = key.split("|")
        if len(parts) not in (3, 4) or parts[0] not in modes:
            continue
        name, prefix, span = parts[0], parts[-2], parts[-1]
        number = parts[1] if len(parts) == 4 else _text(row.get("sequence_number"))
        word = "ipv6" if modes[name] == "IPv6" else "ip"
        action = _text(row.get("action")) or "permit"
        line = f"{word} prefix-list {name} " + (f"seq {number} " if number else "") + f"{action} {prefix}"
        if span != "exact":
            low, _, high = span.partition("..")
            length = prefix.partition("/")[2]
            line += (
                f" ge {low}" if low.isdigit() and length.isdigit() and int(low) > int(length) else ""
            ) + f" le {high}"
        yield line


def _route_maps(config: ConfigDb) -> Iterator[str]:
    modes = {
        name: "ipv6" if _text(row.get("mode")) == "IPv6" else "ip" for name, row in config.get("PREFIX_SET", {}).items()
    }
    for key, row in config.get("ROUTE_MAP", {}).items():
        name, _, number = key.partition("|")
        if "route_operation" not in row:
            continue
        yield f"route-map {name} {_text(row['route_operation'])} {number}"
        for field in ("match_prefix_set", "match_ipv6_prefix_set"):
            wanted = _text(row.get(field))
            if wanted in modes:
                yield f" match {modes[wanted]} address prefix-list {wanted}"
        for field, words in (
            ("match_as_path", "match as-path"), ("match_community", "match community"),
            ("match_interface", "match interface"), ("match_tag", "match tag"),
            ("match_protocol", "match source-protocol"),
            ("call_route_map", "call"), ("set_community_ref", "set community"), ("set_tag", "set tag"),
            ("set_local_pref", "set local-preference"), ("set_next_hop", "set ip next-hop"),
            ("set_ipv6_next_hop_global", "set ipv6 next-hop global"), ("set_med", "set metric"),
        ):  # fmt: skip
            if field in row:
                yield f" {words} {_text(row[field])}"
        if "set_asn" in row:
            times, own = _text(row.get("set_repeat_asn")), _text(row["set_asn"])
            yield " set as-path prepend" + f" {own}" * (int(times) if times.isdigit() and times != "0" else 1)
        if "set_community_inline" in row:
            yield " set community " + " ".join(_texts(row["set_community_inline"]))
        if _true(row.get("set_ipv6_next_hop_prefer_global")):
            yield " set ipv6 next-hop prefer-global"
        yield "exit"


def _globals(bgp: Row) -> Iterator[str]:
    if "router_id" in bgp:
        yield f" bgp router-id {_text(bgp['router_id'])}"
    yield " bgp default ipv4-unicast" if _true(bgp.get("default_ipv4_unicast")) else " no bgp default ipv4-unicast"
    for field, words in GLOBAL_FLAGS.items():
        if _true(bgp.get(field)):
            yield f" {words}"
    if _text(bgp.get("fast_external_failover")) == "false":
        yield " no bgp fast-external-failover"
    if "coalesce_time" in bgp:
        yield f" coalesce-time {_text(bgp['coalesce_time'])}"
    if "keepalive" in bgp and "holdtime" in bgp:
        yield f" timers bgp {_text(bgp['keepalive'])} {_text(bgp['holdtime'])}"


def _neighbour(name: str, row: Mapping[str, object], *, interface: bool) -> Iterator[str]:
    word = "interface " if interface else ""
    remote = _text(row.get("peer_type")) or _text(row.get("asn"))
    if remote:
        yield f" neighbor {name} {word}remote-as {remote}"
    if "peer_group_name" in row:
        yield f" neighbor {name} {word}peer-group {_text(row['peer_group_name'])}"
    elif interface and not remote:
        yield f" neighbor {name} interface"
    for field, words in NEIGHBOUR_VALUES.items():
        if field in row:
            yield f" neighbor {name} {words} {_text(row[field])}"
    for field, words in NEIGHBOUR_FLAGS.items():
        if _true(row.get(field)):
            yield f" neighbor {name} {words}"
    if "ebgp_multihop_ttl" not in row and _true(row.get("ebgp_multihop")):
        yield f" neighbor {name} ebgp-multihop 255"
    if "keepalive" in row and "holdtime" in row:
        yield f" neighbor {name} timers {_text(row['keepalive'])} {_text(row['holdtime'])}"
    if _text(row.get("admin_status")) in ("down", "false"):
        yield f" neighbor {name} shutdown"


def _family(config: ConfigDb, family: str) -> Iterator[str]:
    """The statements of one address family."""
    for key, row in config.get("BGP_GLOBALS_AF_NETWORK", {}).items():
        vrf, af, prefix = (*key.split("|", 2), "", "")[:3]
        if (vrf, af) == ("default", family):
            policy = _text(row.get("policy"))
            yield f"  network {prefix}" + (f" route-map {policy}" if policy else "")
    for key, row in config.get("BGP_GLOBALS_AF_AGGREGATE_ADDR", {}).items():
        vrf, af, prefix = (*key.split("|", 2), "", "")[:3]
        if (vrf, af) == ("default", family):
            yield f"  aggregate-address {prefix}" + (" summary-only" if _true(row.get("summary_only")) else "")
    for key, row in config.get("ROUTE_REDISTRIBUTE", {}).items():
        parts = key.split("|")
        if len(parts) == 4 and parts[0] == "default" and parts[2] == "bgp" and parts[3] == family[:4]:
            maps = _texts(row.get("route_map"))
            yield f"  redistribute {parts[1]}" + (f" route-map {maps[0]}" if maps else "")
    for table in ("BGP_PEER_GROUP_AF", "BGP_NEIGHBOR_AF"):
        for key, row in config.get(table, {}).items():
            vrf, name, af = (*key.split("|", 2), "", "")[:3]
            if (vrf, af) == ("default", family):
                yield from _neighbour_family(name, row)
    for key, row in config.get("BGP_GLOBALS_AF", {}).items():
        vrf, _, af = key.partition("|")
        if (vrf, af) == ("default", family):
            if "max_ebgp_paths" in row:
                yield f"  maximum-paths {_text(row['max_ebgp_paths'])}"
            if "max_ibgp_paths" in row:
                yield f"  maximum-paths ibgp {_text(row['max_ibgp_paths'])}"


def _neighbour_family(name: str, row: Row) -> Iterator[str]:
    status = _text(row.get("admin_status"))
    if status:
        yield f"  {'' if status in ('up', 'true') else 'no '}neighbor {name} activate"
    for field, words in FAMILY_FLAGS.items():
        if _true(row.get(field)):
            yield f"  neighbor {name} {words}"
    if _true(row.get("allow_as_in")):
        count = _text(row.get("allow_as_count"))
        yield f"  neighbor {name} allowas-in" + (f" {count}" if count else "")
    for way in ("in", "out"):
        if f"prefix_list_{way}" in row:
            yield f"  neighbor {name} prefix-list {_text(row[f'prefix_list_{way}'])} {way}"
        for policy in _texts(row.get(f"route_map_{way}")):
            yield f"  neighbor {name} route-map {policy} {way}"
