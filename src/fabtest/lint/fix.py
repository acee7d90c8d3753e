"""Corrections where one right answer exists: a copy of the configuration, never the file itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fabtest.errors import FileProblem
from fabtest.lint.read import ConfigFile
from fabtest.lint.rules_port import BLANK_TABLES
from fabtest.lint.rules_qos import ecn_colours
from fabtest.lint.run import Finding, lint_files
from fabtest.lint.switch import SwitchConfig, listed, number, text
from fabtest.sonic.db import ConfigDb

if TYPE_CHECKING:
    from fabtest.lint.yang import YangModels

REFERENCES = (
    "QUEUE", "BUFFER_PG", "BUFFER_QUEUE", "BUFFER_PROFILE", "PORT_QOS_MAP", "BUFFER_PORT_INGRESS_PROFILE_LIST",
    "BUFFER_PORT_EGRESS_PROFILE_LIST",
)  # fmt: skip


def _wred(config: ConfigDb) -> None:
    for row in config.get("WRED_PROFILE", {}).values():
        row |= {f"wred_{c}_enable": "true" for c in ecn_colours(row) if f"{c}_max_threshold" in row}


def _ecn(config: ConfigDb) -> None:
    s = SwitchConfig("", config)
    for port, priorities in s.lossless.items():
        for queue, row in s.queues(port).items():
            profile = config.get("WRED_PROFILE", {}).get(text(row.get("wred_profile")))
            if profile is not None and str(queue) in priorities and text(profile.get("ecn")) in ("", "ecn_none"):
                profile["ecn"] = "ecn_all"


def _pfc_of_port(config: ConfigDb) -> None:
    bound = SwitchConfig("", config).bindings
    for port, row in config.get("PORT", {}).items():
        own = config.get("PORT_QOS_MAP", {}).get(port)
        # A row that several ports share is not changed for one of them.
        if "pfc_enable" in row and (own is not None or "pfc_enable" in bound.get(port, {})):
            value = row.pop("pfc_enable")
            if own is not None:
                own.setdefault("pfc_enable", value)


def _watchdog_priorities(config: ConfigDb) -> None:
    for key, row in config.get("PORT_QOS_MAP", {}).items():
        if "pfc_enable" in row and any(port in config.get("PFC_WD", {}) for port in key.split(",")):
            row["pfcwd_sw_enable"] = row["pfc_enable"]


def _watchdog_times(config: ConfigDb) -> None:
    poll = number(config.get("PFC_WD", {}).get("GLOBAL", {}).get("POLL_INTERVAL"))
    for row in config.get("PFC_WD", {}).values():
        for field in ("detection_time", "restoration_time"):
            value = number(row.get(field))
            if poll is not None and value is not None and value < poll:
                row[field] = str(poll)


def _brackets(config: ConfigDb) -> None:
    for table in REFERENCES:
        for row in config.get(table, {}).values():
            for field, value in row.items():
                if isinstance(value, str) and value.startswith("["):
                    names = [part.strip("[] ").rpartition("|")[2] for part in value.split(",")]
                    row[field] = ",".join(names)


def _lists(config: ConfigDb) -> None:
    for table in ("BUFFER_PORT_INGRESS_PROFILE_LIST", "BUFFER_PORT_EGRESS_PROFILE_LIST"):
        for row in config.get(table, {}).values():
            if isinstance(row.get("profile_list"), list):
                row["profile_list"] = ",".join(row["profile_list"])


def _blanks(config: ConfigDb) -> None:
    for table in BLANK_TABLES:
        for row in config.get(table, {}).values():
            for field, value in row.items():
                if isinstance(value, str) and field != "description":
                    row[field] = value.strip()


def _hash(config: ConfigDb) -> None:
    row = config["SWITCH_HASH"]["GLOBAL"]
    have = listed(row.get("ecmp_hash"))
    row["ecmp_hash"] = [*have, *(f for f in ("L4_SRC_PORT", "L4_DST_PORT") if f not in have)]


def _admin(config: ConfigDb) -> None:
    for port in SwitchConfig("", config).fabric_ports:
        config["PORT"][port].setdefault("admin_status", "up")


#: Rule -> what mends it everywhere in a configuration. ``FORM``: written again as text, it is mended already.
FIXES: dict[str, Callable[[ConfigDb], None]] = {
    "QOS001": _wred, "QOS067": _wred, "QOS002": _ecn, "QOS012": _pfc_of_port, "QOS014": _watchdog_priorities,
    "QOS016": _watchdog_times, "QOS017": _brackets, "BUF029": _lists, "GEN030": _blanks,
    "ECMP023": _hash, "PORT008": _admin, "FORM": lambda config: None,
}  # fmt: skip


def fixed(file: ConfigFile, findings: Iterable[Finding]) -> ConfigDb | None:
    """A corrected copy, or None if none of the findings has one right answer."""
    rules = [f.rule for f in findings if f.rule in FIXES]
    # What could not be read whole is not written again: a copy would lack what was lost.
    if not rules or any(fault.lost for fault in file.faults):
        return None
    config = copy.deepcopy(file.config)
    for rule in dict.fromkeys(rules):
        FIXES[rule](config)
    return config


def write_fixed(file: ConfigFile, config: ConfigDb) -> Path:
    """Beside the original, as ``<name>.fixed.json``; what is there already is not replaced. Raises FileProblem."""
    path = file.path.with_name(f"{file.path.stem}.fixed.json")
    try:
        with open(path, "x") as out:
            json.dump(config, out, indent=4)
            out.write("\n")
    except FileExistsError:
        raise FileProblem(f"{path} is there already", hint="move it away, then --fix again") from None
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}") from None
    return path


def left(file: ConfigFile, config: ConfigDb, profile: str, yang: YangModels | None = None) -> list[Finding]:
    """What a corrected copy of one file still has."""
    return lint_files([ConfigFile(file.path, json.dumps(config), config, ())], profile, yang)[0]
