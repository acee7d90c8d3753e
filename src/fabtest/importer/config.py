"""What the configuration of one switch says of its ports, VLANs, hardware, hash and class of RoCE. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from fabtest.importer.cables import addresses_of
from fabtest.importer.files import SWITCH_JSON, GivenSwitch
from fabtest.lint.switch import listed, number, text
from fabtest.model import BgpIntent, EcnCurve, HashIntent, Port, QosIntent, SwitchKind, Vlan, Watchdog
from fabtest.sonic.config_db import DEVICE_TYPE
from fabtest.sonic.db import ConfigDb, Row
from fabtest.sonic.effective import rows_of
from fabtest.sonic.frr_config import Session
from fabtest.sonic.hash import SAI_DEFAULT_FIELDS, TIER_SEED
from fabtest.topology.units import format_speed

DEFAULT_MTU = 9100
#: DEVICE_METADATA type, in lower case -> seed; 0 for any other.
SEED_OF_TYPE = {kind.lower(): TIER_SEED[tier] for tier, kind in DEVICE_TYPE.items()}


def port_mtu(row: Row) -> int:
    """MTU of a PORT row, bytes; SONiC's default where it has none that means anything."""
    mtu = number(row.get("mtu"))
    return mtu if mtu is not None and 68 <= mtu <= 9216 else DEFAULT_MTU


def cable_length(config: ConfigDb, port: str) -> int:
    """CABLE_LENGTH of a port in metres; 0 where it says nothing."""
    lengths = (number(text(row.get(port)).removesuffix("m")) for row in config.get("CABLE_LENGTH", {}).values())
    return next((m for m in lengths if m is not None and 0 < m <= 40_000), 0)


def switch_vlans(config: ConfigDb) -> tuple[Vlan, ...]:
    """VLANs with their untagged members and the addresses of their SVIs."""
    addresses = addresses_of(config, "VLAN_INTERFACE")
    members: dict[str, list[str]] = defaultdict(list)
    for key, row in config.get("VLAN_MEMBER", {}).items():
        vlan, _, port = key.partition("|")
        if row.get("tagging_mode") == "untagged" and port in config.get("PORT", {}):
            members[vlan].append(port)
    found = []
    for name in config.get("VLAN", {}):
        vid = number(name.removeprefix("Vlan"))
        if vid is not None:
            found.append(Vlan(vid, tuple(members[name]), tuple(addresses.get(name, ()))))
    return tuple(found)


def switch_ports(config: ConfigDb) -> tuple[Port, ...]:
    """PORT, in the order of the file."""
    modes = {port: str(row.get("brkout_mode", "")) for port, row in config.get("BREAKOUT_CFG", {}).items()}
    found = []
    parent, mode = "", ""
    for n, (name, row) in enumerate(config.get("PORT", {}).items(), 1):
        speed = (number(row.get("speed")) or 1) * 10**6
        subport = number(row.get("subport")) or 0
        if subport <= 1 or not parent:
            parent, mode = name, modes.get(name, "")
        lanes = tuple(lane for x in listed(row.get("lanes")) if (lane := number(x)) is not None)
        found.append(
            Port(
                name=name, alias=str(row.get("alias", name)), index=number(row.get("index")) or n, lanes=lanes,
                speed=speed, subport=subport, breakout=mode or f"1x{format_speed(speed)}", parent=parent,
                fec=str(row.get("fec", "none")),
            )
        )  # fmt: skip
    return tuple(found)


def hardware(config: ConfigDb, ports: tuple[Port, ...]) -> SwitchKind:
    """As far as DEVICE_METADATA and the ports show it."""
    metadata = config.get("DEVICE_METADATA", {}).get("localhost", {})
    first = ports[0] if ports else None
    return SwitchKind(
        hwsku=str(metadata.get("hwsku", "")),
        platform=str(metadata.get("platform", "")),
        ports=len({p.parent for p in ports}),
        port_speed=max((p.speed for p in ports), default=0),
        lanes_per_port=max((len(p.lanes) for p in ports), default=1) or 1,
        fec=first.fec if first else "none",
        first_lane=first.lanes[0] if first and first.lanes else 1,
    )


def hashing(s: GivenSwitch) -> HashIntent:
    """Fields of SWITCH_HASH, and the seed: of ``switch.json`` where it is given, else as the type of switch has it."""
    value = s.config.get("SWITCH_HASH", {}).get("GLOBAL", {}).get("ecmp_hash")
    fields = [value] if isinstance(value, str) else list(value or SAI_DEFAULT_FIELDS)
    kind = str(s.config.get("DEVICE_METADATA", {}).get("localhost", {}).get("type", ""))
    seed = seed_of(s.files.get(SWITCH_JSON))
    return HashIntent(tuple(fields), SEED_OF_TYPE.get(kind.lower(), 0) if seed is None else seed)


def seed_of(switch_json: bytes | None) -> int | None:
    """``ecmp_hash_seed`` of a switch.json, as SONiC writes it (a list of operations) or as a plain object."""
    match = re.search(rb'"ecmp_hash_seed"\s*:\s*"?(\d{1,10})"?', switch_json or b"")
    return int(match[1]) if match else None


def timers(sessions: Iterable[Session]) -> BgpIntent:
    """The fabric's timers: the slowest anywhere; BFD where every session has it."""
    every = [x for x in sessions if not x.shutdown]
    if not every:
        return BgpIntent()
    return BgpIntent(
        keepalive_s=max(x.keepalive_s for x in every),
        hold_s=max(x.hold_s for x in every),
        connect_s=max(x.connect_s for x in every),
        bfd=all(x.bfd for x in every),
    )


def roce_class(switches: Iterable[GivenSwitch]) -> QosIntent:
    """The class of RoCE: the lossless priority of most ports, the DSCP that lead to it, ECN and watchdog if any."""
    votes: dict[tuple[int, ...], int] = defaultdict(int)
    chosen: dict[tuple[int, ...], tuple[ConfigDb, str]] = {}
    for s in switches:
        for port, row in s.config.get("PORT_QOS_MAP", {}).items():
            found = {p for x in listed(row.get("pfc_enable")) if (p := number(x)) is not None}
            priorities = tuple(sorted(found))
            if port != "global" and priorities:
                votes[priorities] += 1
                chosen.setdefault(priorities, (s.config, port))
    if not votes:
        return QosIntent("lossy", pfc_priorities=())
    priorities = max(votes, key=lambda p: votes[p])
    config, port = chosen[priorities]
    name = str(config["PORT_QOS_MAP"][port].get("dscp_to_tc_map", ""))
    pairs = ((number(d), number(tc)) for d, tc in config.get("DSCP_TO_TC_MAP", {}).get(name, {}).items())
    tc_of = {d: tc for d, tc in pairs if d is not None and tc is not None}
    tc = 3 if 3 in priorities else priorities[0]
    dscps = sorted(d for d, t in tc_of.items() if t == tc)
    dscp = next((d for d in (26, 24, *dscps) if d in dscps), 26)
    curve = None
    wred = str(rows_of(config, "QUEUE", port).get(tc, {}).get("wred_profile", ""))
    profile = config.get("WRED_PROFILE", {}).get(wred, {})
    if str(profile.get("ecn", "ecn_none")) != "ecn_none":
        values = [number(profile.get(f"green_{x}")) for x in ("min_threshold", "max_threshold", "drop_probability")]
        speed = (number(config.get("PORT", {}).get(port, {}).get("speed")) or 100_000) / 100_000
        if None not in values:
            kmin, kmax, pmax = (int(v or 0) for v in values)
            curve = EcnCurve(max(1, int(kmin / speed)), max(1, int(kmax / speed)), pmax)
    guarded = bool(config.get("PFC_WD", {}).get(port)) or "pfcwd_sw_enable" in config["PORT_QOS_MAP"][port]
    return QosIntent(
        "roce-lossless", roce_dscp=dscp, roce_tc=tc, cnp_dscp=48, cnp_tc=tc_of.get(48, 6), pfc_priorities=priorities,
        ecn_at_100g=curve, watchdog=Watchdog() if guarded else None,
    )  # fmt: skip
