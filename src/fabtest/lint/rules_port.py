"""Rules of ports, ECMP, BGP and of values as such."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from fabtest.lint.rule import Hit, Severity, rule
from fabtest.lint.switch import SwitchConfig, listed, number, text
from fabtest.sonic.hash import FIELD_BITS

#: The largest RoCE payload and what is around it: Ethernet, IPv6, UDP, BTH, RETH, ICRC (IBTA A17).
ROCE_MTU = 4096 + 58
#: SWITCH_HASH fields of sonic-hash.yang.
HASH_FIELDS = frozenset(FIELD_BITS) | {
    "IN_PORT", "DST_MAC", "SRC_MAC", "ETHERTYPE", "VLAN_ID", "INNER_DST_MAC", "INNER_SRC_MAC", "INNER_ETHERTYPE",
}  # fmt: skip
MODES = ("separated", "unified", "split", "split-unified")


@rule(
    "PORT026",
    Severity.ERROR,
    roce=True,
    why="RDMA messages are cut for a path MTU of 4096; frames larger than the port's MTU are dropped without a word.",
    remedy="Use 9100 on every port of the fabric.",
    source="sonic-buildimage issue 5201, sonic-swss issue 1393; IBTA annex 17",
)
def mtu_below_roce(s: SwitchConfig) -> Iterator[Hit]:
    """A port's MTU is too small for RoCE's largest packets."""
    for port, row in s.table("PORT").items():
        mtu = number(row.get("mtu"))
        if port in s.lossless and mtu is not None and mtu < ROCE_MTU:
            yield Hit(f"PORT|{port}|mtu", f"is {mtu}, RoCE with 4096 byte payloads needs {ROCE_MTU}")


@rule(
    "PORT008",
    Severity.WARNING,
    why="A port without admin_status stays down, and buffermgrd gives it no BUFFER_PG.",
    remedy='Set "admin_status": "up".',
    source="sonic-buildimage issue 23354",
)
def no_admin_status(s: SwitchConfig) -> Iterator[Hit]:
    """A port in use has no admin_status."""
    for port in s.fabric_ports:
        if "admin_status" not in s.table("PORT")[port]:
            yield Hit(f"PORT|{port}", "is in use and has no admin_status")


@rule(
    "PORT044",
    Severity.WARNING,
    why="PAM4 lanes need FEC: without it the link flaps or loses frames.",
    remedy='Set "fec": "rs" on both ends.',
    source="IEEE 802.3bs, 802.3cd (RS-FEC mandatory for PAM4)",
)
def fast_port_without_fec(s: SwitchConfig) -> Iterator[Hit]:
    """A port of 200G or more has FEC off."""
    for port, row in s.table("PORT").items():
        speed = number(row.get("speed"))
        if speed is not None and speed >= 200_000 and text(row.get("fec")) == "none":
            yield Hit(f"PORT|{port}|fec", f"is none at {speed // 1000}G")


@rule(
    "ECMP023",
    Severity.ERROR,
    roce=True,
    why="All queue pairs between two hosts hash alike and share one path.",
    remedy="Add L4_SRC_PORT and L4_DST_PORT to SWITCH_HASH|GLOBAL|ecmp_hash.",
    source="sonic-buildimage issue 9236",
)
def hash_without_ports(s: SwitchConfig) -> Iterator[Hit]:
    """ECMP hashes addresses only."""
    fields = listed(s.table("SWITCH_HASH").get("GLOBAL", {}).get("ecmp_hash"))
    if fields and "L4_SRC_PORT" not in fields:
        yield Hit(
            "SWITCH_HASH|GLOBAL|ecmp_hash", f"is {','.join(fields)}: no L4_SRC_PORT, all that varies between RoCE flows"
        )


@rule(
    "ECMP060",
    Severity.ERROR,
    why="One unknown field, and the hash is not set at all ('Failed to parse field(ecmp_hash)').",
    remedy="Use field names of sonic-hash.yang.",
    source="sonic-hash.yang; SONiC 202411",
)
def hash_unknown_field(s: SwitchConfig) -> Iterator[Hit]:
    """SWITCH_HASH names a field that does not exist."""
    for field in ("ecmp_hash", "lag_hash"):
        for name in listed(s.table("SWITCH_HASH").get("GLOBAL", {}).get(field)):
            if name not in HASH_FIELDS:
                yield Hit(f"SWITCH_HASH|GLOBAL|{field}", f"{name!r} is no hash field")


@rule(
    "BGP035",
    Severity.ERROR,
    why="bgpcfgd takes neighbours by address only: the session is never configured.",
    remedy="Number the link (/31), or use frr-mgmt-framework or frr.conf (split mode).",
    source="sonic-buildimage issues 26960, 27723, 26959",
)
def unnumbered_in_bgpcfgd(s: SwitchConfig) -> Iterator[Hit]:
    """A BGP neighbour is an interface, and bgpcfgd configures BGP."""
    if s.frr_management or text(s.metadata.get("docker_routing_config_mode")) in ("split", "split-unified"):
        return
    for key in s.table("BGP_NEIGHBOR"):
        name = key.rpartition("|")[2]
        if not _is_address(name):
            yield Hit(f"BGP_NEIGHBOR|{key}", f"{name} is no address")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@rule(
    "BGP036",
    Severity.ERROR,
    why="The daemon that runs looks for the other form of key, so the neighbour is not there for it.",
    remedy="With frr_mgmt_framework_config true write BGP_NEIGHBOR|default|<ip>, else BGP_NEIGHBOR|<ip>.",
    source="sonic-bgp-neighbor.yang (two lists)",
)
def bgp_key_of_other_mode(s: SwitchConfig) -> Iterator[Hit]:
    """BGP_NEIGHBOR keys are in the form of the other management mode."""
    if not s.metadata:
        return
    for key in s.table("BGP_NEIGHBOR"):
        if s.frr_management and "|" not in key:
            yield Hit(f"BGP_NEIGHBOR|{key}", "frr_mgmt_framework_config is true, and the key names no VRF")
        elif not s.frr_management and key.startswith("default|"):
            yield Hit(f"BGP_NEIGHBOR|{key}", "frr_mgmt_framework_config is not true, and the key names the default VRF")


@rule(
    "BGP037",
    Severity.WARNING,
    why="unified asks for FRR in one file written by frrcfgd, which frr_mgmt_framework_config false does not start.",
    remedy="Set frr_mgmt_framework_config to true with unified, or use separated, split or split-unified.",
    source="docker_init.sh of docker-fpm-frr",
)
def routing_modes_disagree(s: SwitchConfig) -> Iterator[Hit]:
    """docker_routing_config_mode and frr_mgmt_framework_config do not go together."""
    mode = text(s.metadata.get("docker_routing_config_mode"))
    if mode and mode not in MODES:
        yield Hit("DEVICE_METADATA|localhost|docker_routing_config_mode", f"is {mode!r}")
    elif mode == "unified" and not s.frr_management:
        yield Hit(
            "DEVICE_METADATA|localhost|docker_routing_config_mode",
            f"is {mode}, frr_mgmt_framework_config is not true",
        )


@rule(
    "BGP042",
    Severity.ERROR,
    why="ECMP is narrower than the fabric: uplinks stay idle.",
    remedy="Leave max_ebgp_paths out (FRR then uses its maximum), or make it at least the number of uplinks.",
    source="sonic-bgp-global.yang; FRR 8.4 (without the line every next hop is used)",
)
def few_paths(s: SwitchConfig) -> Iterator[Hit]:
    """max_ebgp_paths is below the number of BGP neighbours that may give equal paths."""
    relaxed = any(text(row.get("load_balance_mp_relax")) == "true" for row in s.table("BGP_GLOBALS").values())
    peers: dict[str, int] = {}
    for row in s.table("BGP_NEIGHBOR").values():
        asn = text(row.get("asn"))
        if asn:
            group = "any" if relaxed else asn
            peers[group] = peers.get(group, 0) + 1
    for key, row in s.table("BGP_GLOBALS_AF").items():
        paths = number(row.get("max_ebgp_paths"))
        most = max(peers.values(), default=0)
        if paths is not None and paths < most:
            yield Hit(f"BGP_GLOBALS_AF|{key}|max_ebgp_paths", f"is {paths}; {most} neighbours may give equal paths")


#: Where a blank does harm; a banner or a description may hold what it likes.
BLANK_TABLES = (
    "PORT", "PORT_QOS_MAP", "DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "MAP_PFC_PRIORITY_TO_QUEUE",
    "QUEUE", "WRED_PROFILE", "SCHEDULER", "PFC_WD", "BUFFER_PG", "BUFFER_QUEUE", "BUFFER_PROFILE", "BUFFER_POOL",
    "CABLE_LENGTH", "DEVICE_METADATA", "BGP_NEIGHBOR", "SWITCH_HASH",
)  # fmt: skip


@rule(
    "GEN030",
    Severity.WARNING,
    why="Some daemons convert numbers strictly and refuse the row; comparisons of names fail.",
    remedy="Remove the blanks.",
    source="sonic-buildimage pull request 25626",
)
def blanks(s: SwitchConfig) -> Iterator[Hit]:
    """A value begins or ends with a blank."""
    for table in BLANK_TABLES:
        for key, row in s.table(table).items():
            for field, value in row.items():
                if isinstance(value, str) and value != value.strip() and field != "description":
                    yield Hit(f"{table}|{key}|{field}", f"is {value!r}")


#: Ranges and words the models give for fields a RoCE fabric depends on (table, field): (lowest, highest).
RANGES = {
    ("PORT", "mtu"): (68, 9216),
    ("BUFFER_POOL", "size"): (0, 2**64 - 1),
    ("PFC_WD", "detection_time"): (100, 5000),
    ("PFC_WD", "restoration_time"): (100, 60000),
    ("PFC_WD", "POLL_INTERVAL"): (100, 1000),
}
WORDS = {
    ("PORT", "admin_status"): ("up", "down"),
    ("PORT", "fec"): ("rs", "fc", "none", "auto"),
    ("BUFFER_POOL", "type"): ("ingress", "egress", "both"),
    ("BUFFER_POOL", "mode"): ("static", "dynamic"),
    ("PFC_WD", "action"): ("drop", "forward", "alert"),
    ("WRED_PROFILE", "ecn"): (
        "ecn_none", "ecn_green", "ecn_yellow", "ecn_red", "ecn_green_yellow", "ecn_green_red", "ecn_yellow_red", "ecn_all",
    ),
}  # fmt: skip
MAP_TABLES = {
    "DSCP_TO_TC_MAP": (63, 15), "TC_TO_QUEUE_MAP": (15, 15), "TC_TO_PRIORITY_GROUP_MAP": (15, 7),
    "MAP_PFC_PRIORITY_TO_QUEUE": (7, 7), "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": (7, 7),
}  # fmt: skip


@rule(
    "GEN061",
    Severity.ERROR,
    why="SONiC's validator refuses the file, or the daemon the row.",
    remedy="Write a value the model allows.",
    source="SONiC's YANG models (202511, 202605)",
)
def value_not_allowed(s: SwitchConfig) -> Iterator[Hit]:
    """A value is out of its range, or no word of its field."""
    for (table, field), (low, high) in RANGES.items():
        for key, row in s.table(table).items():
            found = number(row.get(field))
            if field in row and (found is None or not low <= found <= high):
                yield Hit(f"{table}|{key}|{field}", f"is {text(row[field])!r}; a number from {low} to {high}")
    for (table, field), allowed in WORDS.items():
        for key, row in s.table(table).items():
            if field in row and text(row[field]) not in allowed:
                yield Hit(f"{table}|{key}|{field}", f"is {text(row[field])!r}; one of {', '.join(allowed)}")
    for table, (source, target) in MAP_TABLES.items():
        for key, row in s.table(table).items():
            for field, value in row.items():
                a, b = number(field), number(value)
                if a is None or b is None or not 0 <= a <= source or not 0 <= b <= target:
                    yield Hit(
                        f"{table}|{key}|{field}", f"maps {field!r} to {text(value)!r}; 0..{source} to 0..{target}"
                    )
    for port, row in s.table("PORT_QOS_MAP").items():
        for field in ("pfc_enable", "pfcwd_sw_enable"):
            for part in listed(row.get(field)):
                if number(part) is None or not 0 <= (number(part) or 0) <= 7:
                    yield Hit(f"PORT_QOS_MAP|{port}|{field}", f"is {text(row[field])!r}; priorities 0 to 7 with commas")
    for key, row in s.table("CABLE_LENGTH").items():
        for port, value in row.items():
            if not text(value).endswith("m") or number(text(value)[:-1]) is None:
                yield Hit(f"CABLE_LENGTH|{key}|{port}", f"is {text(value)!r}; metres, like 40m")


#: Every field of the models for the tables RoCE depends on (WRED_PROFILE has a rule of its own).
FIELDS = {
    "BUFFER_PROFILE": {
        "static_th", "dynamic_th", "size", "pool", "xon_offset", "xon", "xoff", "headroom_type", "packet_discard_action",
    },
    "BUFFER_POOL": {"type", "mode", "size", "xoff", "percentage"},
    "SCHEDULER": {"type", "weight", "priority", "meter_type", "cir", "pir", "cbs", "pbs"},
    "PFC_WD": {"action", "detection_time", "restoration_time", "pfc_stat_history", "POLL_INTERVAL", "BIG_RED_SWITCH"},
    "PORT_QOS_MAP": {
        "tc_to_pg_map", "tc_to_queue_map", "pfc_enable", "pfcwd_sw_enable", "pfc_to_queue_map", "pfc_to_pg_map",
        "dscp_to_tc_map", "tc_to_dscp_map", "dot1p_to_tc_map", "scheduler", "dscp_to_fc_map", "exp_to_fc_map",
        "mpls_tc_to_tc_map",
    },
    "QUEUE": {"scheduler", "wred_profile"},
    "BUFFER_PG": {"profile"},
    "BUFFER_QUEUE": {"profile"},
}  # fmt: skip


@rule(
    "GEN062",
    Severity.ERROR,
    why="SONiC's validator refuses the file; the daemons skip the field, or the row, and what was meant does not happen.",
    remedy="Remove the field, or correct its name.",
    source="SONiC's YANG models (202511, 202605)",
)
def field_unknown(s: SwitchConfig) -> Iterator[Hit]:
    """A field is none of its table's."""
    for table, known in FIELDS.items():
        for key, row in s.table(table).items():
            for field in row:
                if field not in known and field != "NULL":
                    yield Hit(f"{table}|{key}|{field}", f"{field} is no field of {table}")
