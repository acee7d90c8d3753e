"""Rules of buffers: headroom, pools, thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from fabtest.lint.rule import Hit, Severity, rule
from fabtest.lint.switch import SwitchConfig, number, text
from fabtest.sonic.headroom import headroom

#: Cable lengths the lookup files of SONiC's devices have rows for.
LISTED_LENGTHS = frozenset(
    {"0m", "5m", "10m", "30m", "40m", "50m", "100m", "300m", "500m", "2000m", "120km", "120000m"}
)


def _metres(value: str) -> int | None:
    return number(value[:-1]) if value.endswith("m") and not value.endswith("km") else None


@rule(
    "BUF004",
    Severity.ERROR,
    roce=True,
    why="PFC is never sent for a priority group without xoff: the class drops instead of pausing.",
    remedy="Give the priority group a lossless profile (one with xon, xoff and size).",
    source="SONiC issue 480",
)
def lossless_group_lossy_profile(s: SwitchConfig) -> Iterator[Hit]:
    """A priority with PFC has a lossy buffer profile."""
    for port, priorities in s.lossless.items():
        for group, row in s.groups(port).items():
            profile = s.profile(row)
            if str(group) in priorities and profile is not None and "xoff" not in profile and not s.dynamic_buffers:
                # The key may be of several ports and a range of groups.
                key = next(k for k, r in s.table("BUFFER_PG").items() if r is row)
                yield Hit(f"BUFFER_PG|{key}|profile", f"{text(row.get('profile'))} has no xoff")


@rule(
    "BUF006",
    Severity.ERROR,
    roce=True,
    why="buffermgrd creates no lossless priority group for a cable of 0 m, and logs nothing.",
    remedy="Write the real length in CABLE_LENGTH, or the BUFFER_PG row.",
    source="sonic-swss issue 3548; SONiC 202411",
)
def cable_without_length(s: SwitchConfig) -> Iterator[Hit]:
    """A port with PFC and no lossless BUFFER_PG has a cable of 0 m, or none."""
    if not s.has("BUFFER_PG"):
        return
    for port, priorities in s.lossless.items():
        groups = {str(g) for g in s.groups(port)}
        length = s.cable_lengths.get(port, "")
        if priorities - groups and length in ("", "0m"):
            seen = f"CABLE_LENGTH {length}" if length else "no CABLE_LENGTH"
            yield Hit(f"CABLE_LENGTH|{port}", f"{port} has PFC, no BUFFER_PG for it, and {seen}")


@rule(
    "BUF005",
    Severity.WARNING,
    roce=True,
    why="'No PG profile configured for speed X and cable length Y': the port gets no lossless priority group.",
    remedy="Use a length pg_profile_lookup.ini has (5m, 40m, 300m), or write BUFFER_PG yourself.",
    source="sonic-buildimage issue 5837; SONiC 202411",
)
def cable_length_unlisted(s: SwitchConfig) -> Iterator[Hit]:
    """buffermgrd would have to find a profile for an unusual cable length."""
    if not s.has("BUFFER_PG") or s.dynamic_buffers:
        return
    for port, priorities in s.lossless.items():
        length = s.cable_lengths.get(port, "")
        if priorities - {str(g) for g in s.groups(port)} and length and length not in LISTED_LENGTHS:
            yield Hit(f"CABLE_LENGTH|{port}", f"{port} has PFC, no BUFFER_PG for it, and a cable of {length}")


@rule(
    "BUF058",
    Severity.WARNING,
    roce=True,
    why="PFC without its own priority group depends on buffermgrd finding a row for speed and cable, and only after link-up; "
    "neighbours may disagree until then.",
    remedy="Write BUFFER_PG for every priority with PFC, or take PFC off it.",
    source="SONiC 202411 ('applied after port is up')",
)
def pfc_without_group(s: SwitchConfig) -> Iterator[Hit]:
    """Some PFC priorities of a port have a BUFFER_PG and others do not."""
    for port, priorities in s.lossless.items():
        groups = {str(g) for g in s.groups(port)}
        if priorities & groups and priorities - groups:
            yield Hit(
                f"BUFFER_PG|{port}",
                f"PFC on {','.join(sorted(priorities))}, BUFFER_PG for {','.join(sorted(priorities & groups))}",
            )


@rule(
    "BUF018",
    Severity.ERROR,
    why="The traditional buffer manager takes NULL for a name: the group has no profile.",
    remedy="Name a profile, or set buffer_model to dynamic.",
    source="sonic-buildimage issue 10342",
)
def null_profile(s: SwitchConfig) -> Iterator[Hit]:
    """A BUFFER_PG has profile NULL in the traditional model."""
    if s.dynamic_buffers or not s.metadata:
        return
    for key, row in s.table("BUFFER_PG").items():
        if text(row.get("profile")) == "NULL":
            yield Hit(f"BUFFER_PG|{key}|profile", "is NULL, and buffer_model is not dynamic")


@rule(
    "BUF019",
    Severity.WARNING,
    roce=True,
    why="What ingress has accepted as lossless is dropped at egress.",
    remedy="Make the egress lossless pool at least as large as the ingress pool and its xoff.",
    source="sonic-buildimage issue 21320, sonic-mgmt issue 17149",
)
def egress_pool_small(s: SwitchConfig) -> Iterator[Hit]:
    """The egress lossless pool is smaller than the ingress pool with its headroom."""
    pools = s.table("BUFFER_POOL")
    ingress, egress = pools.get("ingress_lossless_pool"), pools.get("egress_lossless_pool")
    if ingress is None or egress is None:
        return
    size, xoff, out = number(ingress.get("size")), number(ingress.get("xoff")) or 0, number(egress.get("size"))
    if size is not None and out is not None and out < size + xoff:
        yield Hit("BUFFER_POOL|egress_lossless_pool|size", f"is {out}, ingress has {size} and xoff {xoff}")


@rule(
    "BUF021",
    Severity.WARNING,
    why="The threshold is not of the pool's kind; some ASICs accept it, some ignore it.",
    remedy="Use dynamic_th with a dynamic pool, static_th with a static one.",
    source="sonic-swss issue 2438, sonic-buildimage issues 10627, 28277",
)
def threshold_of_other_kind(s: SwitchConfig) -> Iterator[Hit]:
    """A profile's threshold is not of its pool's mode."""
    for name, row in s.table("BUFFER_PROFILE").items():
        mode = text(s.table("BUFFER_POOL").get(text(row.get("pool")), {}).get("mode"))
        for field, wanted in (("static_th", "static"), ("dynamic_th", "dynamic")):
            if field in row and mode and mode != wanted:
                yield Hit(f"BUFFER_PROFILE|{name}|{field}", f"is set, and the pool is {mode}")


@rule(
    "BUF059",
    Severity.ERROR,
    why="alpha is 2^dynamic_th; the models allow -8 to 7, and ASICs fewer.",
    remedy="Use -8 to 7 (lossless groups: -3 to 0 is usual).",
    source="sonic-buffer-profile.yang",
)
def dynamic_threshold_range(s: SwitchConfig) -> Iterator[Hit]:
    """dynamic_th is not -8 to 7."""
    for name, row in s.table("BUFFER_PROFILE").items():
        value = number(row.get("dynamic_th"))
        if "dynamic_th" in row and (value is None or not -8 <= value <= 7):
            yield Hit(f"BUFFER_PROFILE|{name}|dynamic_th", f"is {text(row['dynamic_th'])!r}")


@rule(
    "BUF031",
    Severity.ERROR,
    why="Both are mandatory; the profile is rejected, and what names it waits.",
    remedy="Add pool and size.",
    source="sonic-buildimage issue 13267; sonic-buffer-profile.yang",
)
def profile_incomplete(s: SwitchConfig) -> Iterator[Hit]:
    """A buffer profile has no pool or no size."""
    for name, row in s.table("BUFFER_PROFILE").items():
        missing = [f for f in ("pool", "size") if f not in row]
        # The dynamic model computes size.
        if missing and not (s.dynamic_buffers and missing == ["size"]):
            yield Hit(f"BUFFER_PROFILE|{name}", f"has no {' and no '.join(missing)}")


@rule(
    "BUF029",
    Severity.WARNING,
    why="Older releases take only a text with commas.",
    remedy='Write "profile_list": "a,b".',
    source="sonic-buildimage issue 9801",
)
def profile_list_as_list(s: SwitchConfig) -> Iterator[Hit]:
    """A profile_list is a JSON list."""
    for table in ("BUFFER_PORT_INGRESS_PROFILE_LIST", "BUFFER_PORT_EGRESS_PROFILE_LIST"):
        for key, row in s.table(table).items():
            if isinstance(row.get("profile_list"), list):
                yield Hit(f"{table}|{key}|profile_list", "is a JSON list")


def _pause_threshold(s: SwitchConfig, port: str, group: int) -> float | None:
    """Bytes at which one congested priority group pauses its peer: alpha/(1+alpha) of its pool."""
    row = s.groups(port).get(group)
    profile = s.profile(row) if row else None
    if profile is None or "xoff" not in profile:
        return None
    pool = s.table("BUFFER_POOL").get(text(profile.get("pool")), {})
    static, power, size = number(profile.get("static_th")), number(profile.get("dynamic_th")), number(pool.get("size"))
    if static is not None:
        return float(static)
    if power is None or size is None or not -8 <= power <= 7:
        return None
    alpha = 2.0**power
    return alpha / (1 + alpha) * size


@rule(
    "BUF041",
    Severity.ERROR,
    roce=True,
    why="PFC fires before ECN has marked everything it could: congestion is answered by pauses, which spread.",
    remedy="Lower green_max_threshold below the pause threshold, or raise dynamic_th of the lossless profile.",
    source="DCQCN (Zhu et al., SIGCOMM 2015, section 4); dynamic threshold alpha/(1+alpha) of the pool",
)
def ecn_after_pfc(s: SwitchConfig) -> Iterator[Hit]:
    """Kmax is not below the point where PFC fires."""
    told = set()
    for port, priorities in s.lossless.items():
        for queue, row in s.queues(port).items():
            name = text(row.get("wred_profile"))
            kmax = number(s.table("WRED_PROFILE").get(name, {}).get("green_max_threshold"))
            if str(queue) not in priorities or kmax is None or name in told:
                continue
            pause = _pause_threshold(s, port, queue)
            if pause is not None and kmax >= pause:
                told.add(name)
                yield Hit(
                    f"WRED_PROFILE|{name}|green_max_threshold", f"is {kmax}; {port} pauses at {round(pause)} bytes"
                )


@rule(
    "BUF049",
    Severity.ERROR,
    roce=True,
    why="Headroom is promised that is not there: with all ports congested lossless packets are dropped.",
    remedy="Enlarge the pool, use fewer lossless priorities, or a shared headroom pool (xoff of the pool).",
    source="SONiC buffer model: reserved size of every priority group comes out of the pool",
)
def headroom_exceeds_pool(s: SwitchConfig) -> Iterator[Hit]:
    """Reserved sizes of all priority groups do not fit into the pool."""
    used: dict[str, int] = {}
    for port in s.table("PORT"):
        for row in s.groups(port).values():
            profile = s.profile(row)
            if profile is not None:
                pool = text(profile.get("pool"))
                used[pool] = used.get(pool, 0) + (number(profile.get("size")) or 0)
    for pool, total in used.items():
        size = number(s.table("BUFFER_POOL").get(pool, {}).get("size"))
        if size is not None and total > size:
            yield Hit(f"BUFFER_POOL|{pool}|size", f"is {size}; its priority groups reserve {total}")


@rule(
    "BUF050",
    Severity.WARNING,
    roce=True,
    why="More arrives after PAUSE than the headroom holds: a lossless class drops.",
    remedy="Raise xoff (SONiC's own formula gives the value named), or correct CABLE_LENGTH.",
    source="sonic-swss cfgmgr/buffer_headroom_mellanox.lua",
)
def headroom_short(s: SwitchConfig) -> Iterator[Hit]:
    """xoff of a lossless profile is less than half of what speed, cable and MTU need."""
    told = set()
    for port, priorities in s.lossless.items():
        speed, metres = s.speed(port), _metres(s.cable_lengths.get(port, ""))
        mtu = number(s.table("PORT").get(port, {}).get("mtu")) or 9100
        for group, row in s.groups(port).items():
            profile, name = s.profile(row), text(row.get("profile"))
            if str(group) not in priorities or profile is None or speed is None or not metres or name in told:
                continue
            xoff = number(profile.get("xoff"))
            need = headroom(speed * 10**6, metres, mtu).xoff
            # Vendors' own figures differ from the formula by their pipelines; half of it is wrong for any.
            if xoff is not None and xoff < need / 2:
                told.add(name)
                yield Hit(
                    f"BUFFER_PROFILE|{name}|xoff",
                    f"is {xoff}; {speed // 1000}G, {metres} m and MTU {mtu} need about {need}",
                )
