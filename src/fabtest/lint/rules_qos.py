"""Rules of classification, PFC, ECN and scheduling."""

from __future__ import annotations

from collections.abc import Iterator

from fabtest.lint.rule import Hit, Severity, rule
from fabtest.lint.switch import SwitchConfig, listed, number, text
from fabtest.sonic.db import Row

COLOURS = ("green", "yellow", "red")
ROCE_DSCPS, CNP_DSCP = ("26", "24"), "48"
WRED_FIELDS = frozenset(
    {"ecn"}
    | {f"wred_{c}_enable" for c in COLOURS}
    | {f"{c}_{f}" for c in COLOURS for f in ("min_threshold", "max_threshold", "drop_probability")}
)
LARGEST_THRESHOLD = 2**31 - 1
#: Field of PORT_QOS_MAP -> table it names.
MAPS = {
    "dscp_to_tc_map": "DSCP_TO_TC_MAP", "dot1p_to_tc_map": "DOT1P_TO_TC_MAP", "tc_to_queue_map": "TC_TO_QUEUE_MAP",
    "tc_to_pg_map": "TC_TO_PRIORITY_GROUP_MAP", "pfc_to_queue_map": "MAP_PFC_PRIORITY_TO_QUEUE",
    "pfc_to_pg_map": "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", "tc_to_dscp_map": "TC_TO_DSCP_MAP",
}  # fmt: skip


def ecn_colours(row: Row) -> set[str]:
    """Colours a WRED profile's ``ecn`` is to mark; one that is no word of the field marks none."""
    words = text(row.get("ecn")).removeprefix("ecn_").split("_")
    return set(COLOURS) if words == ["all"] else set(words) & set(COLOURS)


def enabled_colours(row: Row) -> set[str]:
    """Colours a WRED profile is enabled for."""
    return {c for c in COLOURS if text(row.get(f"wred_{c}_enable")) == "true"}


def _bound_profiles(s: SwitchConfig) -> set[str]:
    return {text(row.get("wred_profile")) for row in s.table("QUEUE").values() if "wred_profile" in row}


@rule(
    "QOS001",
    Severity.ERROR,
    roce=True,
    why="Without wred_<colour>_enable orchagent sets no *_ENABLE attribute, and the profile never marks: DCQCN is blind.",
    remedy='Add "wred_green_enable": "true" (and yellow, red) to the profile.',
    source="sonic-buildimage issue 4545; sonic-wred-profile.yang (default false)",
)
def wred_not_enabled(s: SwitchConfig) -> Iterator[Hit]:
    """A WRED profile with ECN is not enabled for any colour it marks."""
    for name, row in s.table("WRED_PROFILE").items():
        marked, enabled = ecn_colours(row), enabled_colours(row)
        if marked and not marked & enabled:
            seen = f"wred_<colour>_enable is true for {' and '.join(sorted(enabled))} only" if enabled else ""
            yield Hit(
                f"WRED_PROFILE|{name}",
                f"ecn is {text(row.get('ecn'))}, but {seen or 'no wred_<colour>_enable is true'}",
            )


@rule(
    "QOS067",
    Severity.WARNING,
    roce=True,
    why="orchagent enables WRED colour by colour: packets of that colour are not marked, whatever ecn says.",
    remedy='Add "wred_<colour>_enable": "true" for every colour of ecn, or take the colour out of ecn.',
    source="sonic-wred-profile.yang (default false); qosorch.cpp",
)
def wred_colour_not_enabled(s: SwitchConfig) -> Iterator[Hit]:
    """ECN marks a colour whose wred_<colour>_enable is not true."""
    for name, row in s.table("WRED_PROFILE").items():
        marked, enabled = ecn_colours(row), enabled_colours(row)
        for colour in COLOURS:
            if marked & enabled and colour in marked - enabled:
                yield Hit(
                    f"WRED_PROFILE|{name}|wred_{colour}_enable", f"is not true, and ecn is {text(row.get('ecn'))}"
                )


@rule(
    "QOS002",
    Severity.ERROR,
    roce=True,
    why="A profile without ECN drops what it should mark: a lossless queue then loses packets before PFC acts.",
    remedy='Set "ecn": "ecn_all" in the profile.',
    source="SONiC ECN high-level design; sonic-wred-profile.yang",
)
def wred_without_ecn(s: SwitchConfig) -> Iterator[Hit]:
    """A lossless queue has a WRED profile without ECN."""
    told = set()
    for port, priorities in s.lossless.items():
        for queue, row in s.queues(port).items():
            name = text(row.get("wred_profile"))
            profile = s.table("WRED_PROFILE").get(name)
            if profile is None or str(queue) not in priorities or name in told:
                continue
            if text(profile.get("ecn")) in ("", "ecn_none"):
                told.add(name)
                seen = text(profile.get("ecn")) or "not set"
                yield Hit(f"WRED_PROFILE|{name}|ecn", f"ecn is {seen}, and queue {queue} of {port} is lossless")


@rule(
    "QOS010",
    Severity.ERROR,
    roce=True,
    why="PFC protects a class nothing is classified into, so RoCE runs in a lossy class.",
    remedy="Map the RoCE DSCP (26 or 24) to the traffic class with PFC in the port's DSCP_TO_TC_MAP.",
    source="SONiC qos_config.j2 (DSCP 24 and 26 go to TC 1); sonic-swss issues 2046, 2328",
)
def nothing_lossless(s: SwitchConfig) -> Iterator[Hit]:
    """No DSCP leads to a priority that has PFC."""
    for port, priorities in s.lossless.items():
        dscp = s.map_of(port, "dscp_to_tc_map", "DSCP_TO_TC_MAP")
        row = s.bindings[port]
        everywhere = s.bindings.get("global", {})
        if s.has("PORT") and not any(f in r for r in (row, everywhere) for f in ("dscp_to_tc_map", "dot1p_to_tc_map")):
            yield Hit(
                s.binding(port, "dscp_to_tc_map"),
                f"PFC on {','.join(sorted(priorities))}, and no map classifies anything",
            )
        if dscp and not priorities & set(dscp.values()):
            for priority in sorted(priorities):
                name = text(s.bindings[port].get("dscp_to_tc_map"))
                yield Hit(
                    s.binding(port, "pfc_enable"),
                    f"PFC on {priority}, but DSCP_TO_TC_MAP|{name} maps nothing to it",
                )


@rule(
    "QOS063",
    Severity.WARNING,
    roce=True,
    why="The class takes headroom on every port and carries nothing.",
    remedy="Map a DSCP to it, or take PFC off it.",
    source="buffer arithmetic",
)
def idle_lossless_class(s: SwitchConfig) -> Iterator[Hit]:
    """One of several PFC priorities has no DSCP."""
    for port, priorities in s.lossless.items():
        used = set(s.map_of(port, "dscp_to_tc_map", "DSCP_TO_TC_MAP").values())
        if used & priorities:
            for priority in sorted(priorities - used):
                yield Hit(s.binding(port, "pfc_enable"), f"PFC on {priority}, and no DSCP is mapped to it")


@rule(
    "QOS064",
    Severity.ERROR,
    roce=True,
    why="Lossless classes are counted where there is no headroom: in priority group 0.",
    remedy="Bind a TC_TO_PRIORITY_GROUP_MAP with the identity for every PFC class.",
    source="SAI buffer model: PFC is sent for a priority group",
)
def no_group_map(s: SwitchConfig) -> Iterator[Hit]:
    """A port with PFC has no tc_to_pg_map."""
    if s.has("PORT"):
        for port in s.lossless:
            if "tc_to_pg_map" not in s.bindings[port]:
                yield Hit(s.binding(port, "tc_to_pg_map"), "is not set")


@rule(
    "QOS065",
    Severity.ERROR,
    why="The watchdog rejects the entry without it.",
    remedy="Set detection_time (200 ms is usual).",
    source="pfcwdorch.cpp",
)
def watchdog_without_detection(s: SwitchConfig) -> Iterator[Hit]:
    """A watchdog has no detection_time."""
    for port, row in s.table("PFC_WD").items():
        if port != "GLOBAL" and "detection_time" not in row:
            yield Hit(f"PFC_WD|{port}", "has no detection_time")


@rule(
    "QOS066",
    Severity.ERROR,
    why="orchagent reads it with stoi, which throws: the daemon ends, as with a number too large.",
    remedy="Write bytes as digits, probabilities from 0 to 100.",
    source="qosorch.cpp (stoi); sonic-wred-profile.yang",
)
def wred_value(s: SwitchConfig) -> Iterator[Hit]:
    """A WRED threshold or probability is not a number that can be."""
    for name, row in s.table("WRED_PROFILE").items():
        for field, value in row.items():
            size = number(value)
            highest = 100 if field.endswith("_drop_probability") else None
            if field.endswith(("_threshold", "_drop_probability")) and (
                size is None or size < 0 or (highest is not None and size > highest)
            ):
                yield Hit(f"WRED_PROFILE|{name}|{field}", f"is {text(value)!r}")


@rule(
    "QOS051",
    Severity.WARNING,
    roce=True,
    why="NICs send RoCE with DSCP 26 or 24 unless told otherwise; there it would be dropped under congestion.",
    remedy="Map 26 (or 24) to the lossless class, or set the NICs to the DSCP that is mapped.",
    source="vendor RoCE guides; SONiC qos_config.j2",
)
def customary_dscp_lossy(s: SwitchConfig) -> Iterator[Hit]:
    """Both customary RoCE DSCPs go to lossy classes."""
    told = set()
    for port, priorities in s.lossless.items():
        name = text(s.bindings[port].get("dscp_to_tc_map"))
        dscp = s.map_of(port, "dscp_to_tc_map", "DSCP_TO_TC_MAP")
        if name in told or not dscp or any(dscp.get(d) in priorities for d in ROCE_DSCPS):
            continue
        told.add(name)
        yield Hit(
            f"DSCP_TO_TC_MAP|{name}",
            f"DSCP 26 goes to TC {dscp.get('26', '(nothing)')}, 24 to {dscp.get('24', '(nothing)')}",
        )


@rule(
    "QOS052",
    Severity.WARNING,
    why="What is not in the map is left to the ASIC's default, which differs from vendor to vendor.",
    remedy="Map all 64 DSCPs.",
    source="seen with SONiC 202411: accepted, the others left to SAI",
)
def dscp_map_partial(s: SwitchConfig) -> Iterator[Hit]:
    """A DSCP map does not map every DSCP."""
    for name, row in s.table("DSCP_TO_TC_MAP").items():
        missing = [d for d in map(str, range(64)) if d not in row]
        if missing:
            yield Hit(
                f"DSCP_TO_TC_MAP|{name}", f"{len(missing)} of 64 DSCPs are missing ({', '.join(missing[:4])}, ...)"
            )


@rule(
    "QOS011",
    Severity.ERROR,
    roce=True,
    why="The port has no maps, no PFC and no watchdog: dot1p and SAI defaults apply, and its neighbour's pauses are ignored.",
    remedy="Give the port the same PORT_QOS_MAP row as the others.",
    source="sonic-buildimage issue 3539; SONiC 202411: 'Failed to start PFC Watchdog', retried for ever",
)
def port_without_maps(s: SwitchConfig) -> Iterator[Hit]:
    """A cabled port is missing from PORT_QOS_MAP."""
    if not s.has("PORT", "PORT_QOS_MAP") or not s.lossless:
        return
    wired = s.fabric_ports or [p for p, r in s.table("PORT").items() if text(r.get("admin_status")) == "up"]
    for port in wired:
        if port not in s.bindings:
            yield Hit(s.binding(port), f"{port} is in use and has no row; {len(s.lossless)} other ports have PFC")


@rule(
    "QOS012",
    Severity.ERROR,
    why="orchagent skips the unknown field: the port has no PFC, and only the log says so.",
    remedy="Move pfc_enable to PORT_QOS_MAP|<port>.",
    source="sonic-mgmt pull request 25442; SONiC 202411: 'Unknown field(pfc_enable): skipping'",
)
def pfc_in_port_table(s: SwitchConfig) -> Iterator[Hit]:
    """pfc_enable stands in PORT, where nothing reads it."""
    for port, row in s.table("PORT").items():
        if "pfc_enable" in row:
            yield Hit(f"PORT|{port}|pfc_enable", f"pfc_enable {text(row['pfc_enable'])} in PORT is ignored")


@rule(
    "QOS014",
    Severity.ERROR,
    roce=True,
    why="The watchdog finds no lossless class and retries for ever: a pause storm is never stopped.",
    remedy="Set pfcwd_sw_enable to the same priorities as pfc_enable.",
    source="sonic-utilities issue 1508, sonic-swss issue 795; pfcwdorch.cpp",
)
def watchdog_without_priorities(s: SwitchConfig) -> Iterator[Hit]:
    """PFC_WD guards a port whose pfcwd_sw_enable is missing or differs from pfc_enable."""
    for port in s.table("PFC_WD"):
        row = s.bindings.get(port)
        if port == "GLOBAL" or row is None:
            continue
        pfc, dog = set(listed(row.get("pfc_enable"))), set(listed(row.get("pfcwd_sw_enable")))
        if dog != pfc or not dog:
            seen = ",".join(sorted(dog)) or "not set"
            yield Hit(
                s.binding(port, "pfcwd_sw_enable"), f"is {seen}, pfc_enable is {','.join(sorted(pfc)) or 'not set'}"
            )


@rule(
    "QOS053",
    Severity.WARNING,
    roce=True,
    why="One NIC that pauses without end stops the whole fabric, and nothing ends it.",
    remedy="Add PFC_WD|<port> (action drop, detection_time and restoration_time) and PFC_WD|GLOBAL POLL_INTERVAL.",
    source="SONiC PFC watchdog high-level design",
)
def no_watchdog(s: SwitchConfig) -> Iterator[Hit]:
    """A port has PFC and no watchdog."""
    if not s.has("PORT"):
        return
    # With the default on, `pfcwd start_default` gives one to every port with a neighbour.
    default = s.table("DEVICE_NEIGHBOR") if text(s.metadata.get("default_pfcwd_status")) == "enable" else {}
    for port in s.lossless:
        if port not in s.table("PFC_WD") and port not in default:
            yield Hit(f"PFC_WD|{port}", f"{port} has PFC and no watchdog")


@rule(
    "QOS015",
    Severity.WARNING,
    roce=True,
    why="`pfcwd start_default` then does nothing, without a word: after a reload the watchdog is gone.",
    remedy='Set DEVICE_METADATA|localhost|default_pfcwd_status to "enable".',
    source="sonic-buildimage issues 14458, 20589",
)
def watchdog_off_by_default(s: SwitchConfig) -> Iterator[Hit]:
    """default_pfcwd_status is disable, and a port with PFC has no watchdog of its own."""
    without = [port for port in s.lossless if port not in s.table("PFC_WD")]
    if without and text(s.metadata.get("default_pfcwd_status")) == "disable":
        yield Hit(
            "DEVICE_METADATA|localhost|default_pfcwd_status", f"is disable, and {without[0]} has PFC and no PFC_WD"
        )


@rule(
    "QOS016",
    Severity.WARNING,
    why="YANG refuses it (a later `config replace` fails); a time shorter than the poll cannot be measured.",
    remedy="Make detection_time and restoration_time at least POLL_INTERVAL.",
    source="sonic-buildimage issue 27865, sonic-mgmt issues 26045, 4431; sonic-pfcwd.yang",
)
def watchdog_faster_than_poll(s: SwitchConfig) -> Iterator[Hit]:
    """A watchdog time is shorter than POLL_INTERVAL."""
    poll = number(s.table("PFC_WD").get("GLOBAL", {}).get("POLL_INTERVAL"))
    for port, row in s.table("PFC_WD").items():
        for field in ("detection_time", "restoration_time"):
            value = number(row.get(field))
            if port != "GLOBAL" and poll is not None and value is not None and value < poll:
                yield Hit(f"PFC_WD|{port}|{field}", f"is {value} ms, POLL_INTERVAL is {poll} ms")


@rule(
    "QOS045",
    Severity.ERROR,
    roce=True,
    why="A queue the watchdog has stopped is never given back: the class stays dead until someone acts.",
    remedy="Set restoration_time.",
    source="pfcwdorch.cpp, sonic-utilities pfcwd/main.py",
)
def watchdog_never_restores(s: SwitchConfig) -> Iterator[Hit]:
    """A watchdog has no restoration_time."""
    for port, row in s.table("PFC_WD").items():
        if port != "GLOBAL" and "restoration_time" not in row:
            yield Hit(f"PFC_WD|{port}", "has no restoration_time")


@rule(
    "QOS046",
    Severity.WARNING,
    why="Broadcom with DLR takes one action for all ports; and a storm is treated differently from port to port.",
    remedy="Use the same action (drop) on every port.",
    source="pfcwdorch.cpp",
)
def watchdog_actions_differ(s: SwitchConfig) -> Iterator[Hit]:
    """Watchdog actions differ between ports."""
    actions: dict[str, str] = {}
    for port, row in s.table("PFC_WD").items():
        if port != "GLOBAL":
            actions.setdefault(text(row.get("action")) or "drop", port)
    if len(actions) > 1:
        seen = ", ".join(f"{action} ({port})" for action, port in actions.items())
        yield Hit(f"PFC_WD|{list(actions.values())[-1]}|action", f"actions differ: {seen}")


@rule(
    "QOS032",
    Severity.ERROR,
    why="orchagent rejects the whole profile for one field it does not know: every queue loses WRED and ECN.",
    remedy="Remove the field (its name may be misspelt).",
    source="qosorch.cpp; SONiC 202411: 'Unknown wred profile field'",
)
def wred_unknown_field(s: SwitchConfig) -> Iterator[Hit]:
    """A WRED profile has a field orchagent does not know."""
    for name, row in s.table("WRED_PROFILE").items():
        for field in row:
            if field not in WRED_FIELDS:
                yield Hit(f"WRED_PROFILE|{name}|{field}", f"{field} is no field of a WRED profile")


@rule(
    "QOS054",
    Severity.ERROR,
    why="The whole profile is rejected: no marking.",
    remedy="Make the minimum no larger than the maximum.",
    source="sonic-wred-profile.yang; SONiC 202411",
)
def wred_thresholds_reversed(s: SwitchConfig) -> Iterator[Hit]:
    """A WRED minimum threshold is above its maximum."""
    for name, row in s.table("WRED_PROFILE").items():
        for colour in COLOURS:
            low, high = number(row.get(f"{colour}_min_threshold")), number(row.get(f"{colour}_max_threshold"))
            if low is not None and high is not None and low > high:
                yield Hit(f"WRED_PROFILE|{name}|{colour}_min_threshold", f"is {low}, the maximum is {high}")


@rule(
    "QOS055",
    Severity.ERROR,
    why="orchagent ends (std::out_of_range): the switch loses all of its QoS. YANG lets it pass.",
    remedy=f"Use at most {LARGEST_THRESHOLD}.",
    source="qosorch.cpp (stoi); SONiC 202411",
)
def wred_threshold_too_large(s: SwitchConfig) -> Iterator[Hit]:
    """A WRED threshold does not fit 31 bits and crashes orchagent."""
    for name, row in s.table("WRED_PROFILE").items():
        for field, value in row.items():
            size = number(value)
            if size is not None and size > LARGEST_THRESHOLD:
                yield Hit(f"WRED_PROFILE|{name}|{field}", f"is {size}, orchagent takes at most {LARGEST_THRESHOLD}")


@rule(
    "QOS038",
    Severity.WARNING,
    roce=True,
    why="Congestion notifications wait behind the traffic that causes the congestion, and DCQCN reacts late.",
    remedy='Give the CNP queue a scheduler of type "STRICT".',
    source="vendor RoCE guides",
)
def cnp_not_strict(s: SwitchConfig) -> Iterator[Hit]:
    """The queue of CNPs (DSCP 48) is not strict."""
    told = set()
    for port in s.lossless:
        tc = s.map_of(port, "dscp_to_tc_map", "DSCP_TO_TC_MAP").get(CNP_DSCP)
        queue = s.map_of(port, "tc_to_queue_map", "TC_TO_QUEUE_MAP").get(tc or "", tc)
        row = s.queues(port).get(number(queue) if number(queue) is not None else -1)  # type: ignore[arg-type]
        if tc is None or row is None or "scheduler" not in row or tc in s.lossless[port]:
            continue
        name = text(row["scheduler"])
        kind = text(s.table("SCHEDULER").get(name, {}).get("type"))
        if name not in told and kind and kind != "STRICT":
            told.add(name)
            yield Hit(f"SCHEDULER|{name}|type", f"is {kind}; queue {queue} of {port} carries CNPs")


@rule(
    "QOS056",
    Severity.ERROR,
    why="The scheduler is rejected, and every QUEUE row that names it is dropped with its WRED.",
    remedy="Use DWRR, WRR or STRICT.",
    source="sonic-scheduler.yang; SONiC 202411",
)
def scheduler_type(s: SwitchConfig) -> Iterator[Hit]:
    """A scheduler has an unknown type."""
    for name, row in s.table("SCHEDULER").items():
        if "type" in row and text(row["type"]) not in ("DWRR", "WRR", "STRICT"):
            yield Hit(f"SCHEDULER|{name}|type", f"is {text(row['type'])!r}")


@rule(
    "QOS057",
    Severity.ERROR,
    why="It is accepted and written to the ASIC as 0: the queue may starve.",
    remedy="Use a weight from 1 to 100.",
    source="sonic-scheduler.yang (1..100); SONiC 202411",
)
def scheduler_weight(s: SwitchConfig) -> Iterator[Hit]:
    """A scheduler's weight is not 1 to 100."""
    for name, row in s.table("SCHEDULER").items():
        weight = number(row.get("weight"))
        if "weight" in row and (weight is None or not 1 <= weight <= 100):
            yield Hit(f"SCHEDULER|{name}|weight", f"is {text(row['weight'])!r}")


@rule(
    "QOS039",
    Severity.ERROR,
    roce=True,
    why="The lossless class is counted in a priority group without headroom, so PFC is not sent in time, or never.",
    remedy="Map each PFC class to the priority group of the same number, and the others to 0.",
    source="SAI buffer model: PFC is sent for a priority group",
)
def class_in_wrong_group(s: SwitchConfig) -> Iterator[Hit]:
    """A lossless class goes to priority group 0, or a lossy one into a lossless group."""
    told = set()
    for port, priorities in s.lossless.items():
        name = text(s.bindings[port].get("tc_to_pg_map"))
        if name in told:
            continue
        for tc, group in s.map_of(port, "tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP").items():
            if (tc in priorities) != (group in priorities) or (tc in priorities and tc != group):
                told.add(name)
                kind = "lossless" if tc in priorities else "lossy"
                yield Hit(f"TC_TO_PRIORITY_GROUP_MAP|{name}|{tc}", f"{kind} TC {tc} goes to priority group {group}")


@rule(
    "QOS040",
    Severity.WARNING,
    roce=True,
    why="The watchdog watches the queue of the priority's number; if PFC stops another, it sees no storm.",
    remedy="Map each PFC priority to the queue and traffic class of the same number.",
    source="pfcwdorch.cpp",
)
def pfc_not_identity(s: SwitchConfig) -> Iterator[Hit]:
    """A PFC priority and its queue have different numbers."""
    told = set()
    for port, priorities in s.lossless.items():
        for field, table in (
            ("pfc_to_queue_map", MAPS["pfc_to_queue_map"]),
            ("tc_to_queue_map", MAPS["tc_to_queue_map"]),
        ):
            name = text(s.bindings[port].get(field))
            for priority in sorted(priorities):
                queue = s.map_of(port, field, table).get(priority)
                if queue is not None and queue != priority and (table, name) not in told:
                    told.add((table, name))
                    yield Hit(f"{table}|{name}|{priority}", f"priority {priority} goes to queue {queue}")


@rule(
    "QOS043",
    Severity.WARNING,
    roce=True,
    why="Every lossless class takes headroom on every port; few ASICs have it for more than two.",
    remedy="Use PFC on one priority, two at most.",
    source="buffer arithmetic (headroom per port and class)",
)
def many_lossless_classes(s: SwitchConfig) -> Iterator[Hit]:
    """PFC is on for more than two priorities."""
    for port, priorities in s.lossless.items():
        if len(priorities) > 2:
            yield Hit(
                s.binding(port, "pfc_enable"),
                f"PFC on {len(priorities)} priorities ({','.join(sorted(priorities))})",
            )


@rule(
    "QOS033",
    Severity.WARNING,
    roce=True,
    why="On these ASICs received PFC is mapped to priority groups by this table; without it pauses stop nothing.",
    remedy="Add PFC_PRIORITY_TO_PRIORITY_GROUP_MAP and pfc_to_pg_map.",
    source="SONiC qos_config.j2 (asic types mellanox, barefoot)",
)
def pfc_to_group_map(s: SwitchConfig) -> Iterator[Hit]:
    """A Mellanox or Barefoot switch has no pfc_to_pg_map."""
    platform = text(s.metadata.get("platform")).lower()
    if not any(word in platform for word in ("mlnx", "mellanox", "nvidia", "barefoot")):
        return
    for port in s.lossless:
        if "pfc_to_pg_map" not in s.bindings[port]:
            yield Hit(s.binding(port, "pfc_to_pg_map"), "is not set")


@rule(
    "QOS028",
    Severity.ERROR,
    why="Rows of a port that does not exist wait for ever, or are dropped before the port comes.",
    remedy="Remove the row, or create the port first.",
    source="sonic-swss issue 3234; leafref in YANG",
)
def unknown_port(s: SwitchConfig) -> Iterator[Hit]:
    """A QoS or buffer row names a port that is not in PORT."""
    if not s.table("PORT"):
        return
    known = set(s.table("PORT")) | {"global", "GLOBAL", "CPU"}
    for table in ("PORT_QOS_MAP", "QUEUE", "BUFFER_PG", "BUFFER_QUEUE", "PFC_WD", "BUFFER_PORT_INGRESS_PROFILE_LIST",
                  "BUFFER_PORT_EGRESS_PROFILE_LIST"):  # fmt: skip
        for key in s.table(table):
            ports = key.partition("|")[0].split(",")
            for port in ports:
                if port not in known and port.startswith("Ethernet"):
                    yield Hit(f"{table}|{key}", f"there is no port {port}")


@rule(
    "QOS020",
    Severity.ERROR,
    why="Nothing is bound: the queue has no WRED, the port no maps. A missing pool stops buffer initialisation, and with "
    "it PFC, maps and watchdog of every port, without an error in the log.",
    remedy="Define what is named, or name what is defined.",
    source="sonic-buildimage issues 25078, 28762; SONiC 202411 (missing pool)",
)
def dangling_reference(s: SwitchConfig) -> Iterator[Hit]:
    """A map, profile, scheduler or pool that is named is not there."""
    for table, field, target in (
        ("QUEUE", "wred_profile", "WRED_PROFILE"), ("QUEUE", "scheduler", "SCHEDULER"),
        ("BUFFER_PG", "profile", "BUFFER_PROFILE"), ("BUFFER_QUEUE", "profile", "BUFFER_PROFILE"),
        ("BUFFER_PROFILE", "pool", "BUFFER_POOL"),
        ("BUFFER_PORT_INGRESS_PROFILE_LIST", "profile_list", "BUFFER_PROFILE"),
        ("BUFFER_PORT_EGRESS_PROFILE_LIST", "profile_list", "BUFFER_PROFILE"),
        *(("PORT_QOS_MAP", field, target) for field, target in MAPS.items()),
    ):  # fmt: skip
        # A partial file does not hold every table; where the whole switch is here, what is named has to be too.
        if target not in s.config and not s.has("PORT"):
            continue
        for key, row in s.table(table).items():
            for name in listed(row.get(field)):
                if name not in s.table(target) and name not in ("NULL", "") and not name.startswith("["):
                    yield Hit(f"{table}|{key}|{field}", f"there is no {target}|{name}")


@rule(
    "QOS017",
    Severity.ERROR,
    why="Releases since 2021 refuse references in brackets ('malformed reference', retried for ever).",
    remedy="Write the plain name.",
    source="sonic-utilities db_migrator (3_0_x); SONiC 202411",
)
def bracket_reference(s: SwitchConfig) -> Iterator[Hit]:
    """A reference is written in brackets."""
    for table in ("QUEUE", "BUFFER_PG", "BUFFER_QUEUE", "BUFFER_PROFILE", "PORT_QOS_MAP",
                  "BUFFER_PORT_INGRESS_PROFILE_LIST", "BUFFER_PORT_EGRESS_PROFILE_LIST"):  # fmt: skip
        for key, row in s.table(table).items():
            for field, value in row.items():
                if text(value).startswith("["):
                    yield Hit(f"{table}|{key}|{field}", f"is {text(value)}")
