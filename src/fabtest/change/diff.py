"""What two sets of configurations do differently, sorted by risk. Pure.

QoS is compared by what it makes of each port (maps and profiles followed), so that a renamed map is no difference;
FRR by its statements; everything else by table, key and field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from fabtest.change.configs import Configs
from fabtest.lint.read import ConfigFile
from fabtest.lint.rule import Severity
from fabtest.lint.run import Finding, lint_files, natural
from fabtest.sonic.db import ConfigDb, Row
from fabtest.sonic.effective import QOS_TABLES, port_qos
from fabtest.sonic.frr_config import statements
from fabtest.sonic.routing_config import RoutingForm, routing_form


class Risk(IntEnum):
    """How much a difference can break: 3 paths and links, 2 loss and congestion, 1 neither."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


#: Tables whose change can take routes, sessions or links away. The other tables of QoS can lose packets.
HIGH = (
    "DEVICE_METADATA", "PORT", "BREAKOUT_CFG", "INTERFACE", "LOOPBACK_INTERFACE", "VLAN", "VLAN_MEMBER",
    "VLAN_INTERFACE", "PORTCHANNEL", "PORTCHANNEL_MEMBER", "PORTCHANNEL_INTERFACE", "BGP_", "ROUTE_", "PREFIX",
    "STATIC_ROUTE", "ACL_", "VRF", "FEATURE", "PREFIX_SET", "AS_PATH_SET", "COMMUNITY_SET", "VLAN_SUB_INTERFACE",
    "VXLAN_TUNNEL", "MCLAG_DOMAIN", "BGP_BBR",
)  # fmt: skip
MEDIUM = ("SWITCH_HASH", "DOT1P_TO_TC_MAP", "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", "LOSSLESS_TRAFFIC_PATTERN",
          "DEFAULT_LOSSLESS_BUFFER_PARAMETER", "POLICER", "SWITCH_TRIMMING")  # fmt: skip
#: Fields of those that change nothing of the kind.
HARMLESS = frozenset({"description", "alias", "name", "location", "dom_polling", "dhcp_rate_limit"})


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One difference, of one switch. ``where`` is table|key|field, an aspect of QoS with its ports, or a statement of
    FRR; "" before or after means that it is not there."""

    risk: Risk
    switch: str
    where: str
    before: str
    after: str


@dataclass(frozen=True)
class ConfigDiff:
    """All of it, the riskiest first, and what the linter makes of either side."""

    changes: tuple[ConfigChange, ...]
    gained: tuple[Finding, ...]
    lost: tuple[Finding, ...]


def config_diff(before: Configs, after: Configs) -> ConfigDiff:
    """From one set of configurations to another. Raises FileProblem."""
    changes: list[ConfigChange] = []
    for name in sorted({*before.files, *after.files}, key=natural):
        if name not in after.files:
            changes.append(ConfigChange(Risk.HIGH, name, "switch", "there", ""))
        elif name not in before.files:
            changes.append(ConfigChange(Risk.HIGH, name, "switch", "", "there"))
        else:
            changes += switch_changes(name, before, after)
    changes.sort(key=lambda c: (-c.risk, natural(c.switch)))
    old, new = _findings(before), _findings(after)
    return ConfigDiff(
        tuple(changes), tuple(f for key, f in new.items() if key not in old),
        tuple(f for key, f in old.items() if key not in new),
    )  # fmt: skip


def _findings(configs: Configs) -> dict[tuple[str, str, str], Finding]:
    """Findings of the linter, without what is only advice."""
    files = [
        ConfigFile(Path(name) / "config_db.json", p.text, p.config, p.faults)
        for name in configs.files
        for p in (configs.parsed(name),)
    ]
    found, _ = lint_files(files)
    return {(f.switch, f.rule, f.where): f for f in found if f.severity >= Severity.WARNING}


def switch_changes(name: str, before: Configs, after: Configs) -> Iterator[ConfigChange]:
    """Of one switch that both sides have."""
    old, new = before.config(name), after.config(name)
    yield from _rows(name, old, new)
    yield from _qos(name, old, new)
    if RoutingForm.GIVEN in (routing_form(old), routing_form(new)):
        yield from _statements(name, before.frr(name), after.frr(name))


def _rows(name: str, old: ConfigDb, new: ConfigDb) -> Iterator[ConfigChange]:
    for table in sorted({*old, *new}):
        if table in QOS_TABLES:
            continue
        rows, others = old.get(table, {}), new.get(table, {})
        for key in sorted({*rows, *others}, key=natural):
            a, b = rows.get(key), others.get(key)
            if a is None or b is None:
                row = a if a is not None else b
                assert row is not None
                text = ", ".join(f"{k} {_text(v)}" for k, v in row.items()) or "there"
                yield ConfigChange(
                    risk_of(table), name, f"{table}|{key}", "" if a is None else text, "" if b is None else text
                )
                continue
            for field in sorted({*a, *b}):
                if a.get(field) != b.get(field):
                    yield ConfigChange(
                        risk_of(table, field), name, f"{table}|{key}|{field}", _field(a, field), _field(b, field)
                    )


def risk_of(table: str, field: str = "") -> Risk:
    """Of a change of a table, or of a field of it."""
    if field in HARMLESS:
        return Risk.LOW
    if table in HIGH or table.startswith(tuple(t for t in HIGH if t.endswith("_"))):
        return Risk.HIGH
    return Risk.MEDIUM if table in MEDIUM or table in QOS_TABLES else Risk.LOW


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def _field(row: Row, field: str) -> str:
    return _text(row[field]) if field in row else ""


def _qos(name: str, old: ConfigDb, new: ConfigDb) -> Iterator[ConfigChange]:
    """Ports that are treated differently, those alike together."""
    alike: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    ports = dict.fromkeys([*old.get("PORT", {}), *new.get("PORT", {}), *old.get("PORT_QOS_MAP", {}),
                           *new.get("PORT_QOS_MAP", {})])  # fmt: skip
    for port in ports:
        a, b = qos_of(old, port), qos_of(new, port)
        for what in {**a, **b}:
            if a.get(what) != b.get(what):
                alike[what, a.get(what, ""), b.get(what, "")].append(port)
    for (what, a_value, b_value), where in alike.items():
        shown = ",".join(where[:3]) + (f" and {len(where) - 3} more" if len(where) > 3 else "")
        yield ConfigChange(Risk.MEDIUM, name, f"{shown}: {what}", a_value, b_value)
    if not alike:
        for table in QOS_TABLES:
            if old.get(table, {}) != new.get(table, {}):
                yield ConfigChange(Risk.LOW, name, table, "other names", "the same effect on every port")


def qos_of(config: ConfigDb, port: str) -> dict[str, str]:
    """The effective QoS of a port, flat."""
    q = port_qos(config, port)
    shaper = config.get("SCHEDULER", {}).get(
        _text(config.get("PORT_QOS_MAP", {}).get(port, {}).get("scheduler", "")), {}
    )
    return {
        **{f"port {k} (scheduler)": _text(v) for k, v in shaper.items()},
        **{f"{k}": v for k, v in q.maps.items()},
        **{f"PFC {k}": v for k, v in q.pfc.items()},
        **q.watchdog,
        **{f"{k} (ECN)": v for k, v in q.ecn.items()},
        **{f"{k} (scheduler)": v for k, v in q.schedulers.items()},
        **{f"{k} (buffer)": v for k, v in q.buffers.items()},
    }


def _statements(name: str, old: str, new: str) -> Iterator[ConfigChange]:
    """FRR's statements that came or went, with the stanza they stand in."""
    a, b = (dict.fromkeys(" / ".join((*context, line)) for context, line in statements(text)) for text in (old, new))
    for line in a:
        if line not in b:
            yield ConfigChange(_frr_risk(line), name, f"frr.conf: {line}", "there", "")
    for line in b:
        if line not in a:
            yield ConfigChange(_frr_risk(line), name, f"frr.conf: {line}", "", "there")


def _frr_risk(line: str) -> Risk:
    words = line.rpartition(" / ")[2]
    return Risk.LOW if words.startswith(("log ", "hostname", "service ")) or " description " in words else Risk.HIGH
