"""A folder of switch configurations, as engineers keep them: ``<switch>/config_db.json`` with what lies beside it, or
one ``<switch>.json`` per switch."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fabtest.errors import ConfigError, FileProblem
from fabtest.lint.read import parse_config, read_bytes, read_config
from fabtest.lint.run import config_files, natural, switch_name
from fabtest.sonic.db import ConfigDb
from fabtest.sonic.routing_config import RoutingConfig, routing_config
from fabtest.topology.units import NAME

CONFIG, FRR, SWITCH_JSON, APPL_DB, LLDP = "config_db.json", "frr.conf", "switch.json", "appl_db.json", "lldp.txt"
#: Files of a switch's folder that a lab uses.
USED = (CONFIG, FRR, SWITCH_JSON)
#: A port as SONiC and Linux name it, in a port description.
PORT = re.compile(r"Ethernet\d{1,4}|eth\d{1,3}")


@dataclass(frozen=True)
class GivenSwitch:
    """One switch as it was given. ``name`` is its hostname made a node name; ``folder`` is where it was, below the
    folder that was read; ``files`` are the original bytes by name; ``lldp`` maps ports to (neighbour, port)."""

    name: str
    hostname: str
    folder: str
    config: ConfigDb
    files: dict[str, bytes]
    lldp: dict[str, tuple[str, str]]

    @cached_property
    def routing(self) -> RoutingConfig:
        """What FRR runs: made from CONFIG_DB, or given."""
        given = self.files.get(FRR)
        return routing_config(self.config, None if given is None else given.decode(errors="replace"))

    @cached_property
    def port_of(self) -> dict[str, str]:
        """Port by name and by alias."""
        found = {port: port for port in self.config.get("PORT", {})}
        for port, row in self.config.get("PORT", {}).items():
            alias = row.get("alias")
            if isinstance(alias, str) and alias:
                found.setdefault(alias, port)
        return found


def node_name(hostname: str) -> str:
    """A hostname as the name of a node: lower case, hyphens for what a node name cannot have."""
    name = re.sub(r"[^a-z0-9-]+", "-", hostname.lower()).strip("-")
    if len(name) > 32:  # names of one beginning stay apart
        name = f"{name[:25].strip('-')}-{zlib.crc32(hostname.encode(errors='replace')):08x}"[:32]
    return name


def read_given(folder: Path) -> list[GivenSwitch]:
    """Every switch of a folder, in natural order of names. Raises FileProblem, ConfigError."""
    if not folder.is_dir():
        raise FileProblem(f"no such folder: {folder}", hint="a folder with <switch>/config_db.json files")
    found = [read_switch(folder, str(path.relative_to(folder))) for path in config_files(folder)]
    found.sort(key=lambda s: natural(s.name))
    by_name: dict[str, GivenSwitch] = {}
    for switch in found:
        if switch.name in by_name:
            raise ConfigError(
                f"{folder}/{switch.folder} and {folder}/{by_name[switch.name].folder} have the same hostname, "
                f"{switch.hostname!r}",
                hint="DEVICE_METADATA|localhost|hostname tells switches apart",
            )
        by_name[switch.name] = switch
    return found


def read_switch(root: Path, where: str, name: str = "") -> GivenSwitch:
    """One switch: ``where`` is its folder or its file, below ``root``. Raises FileProblem, ConfigError."""
    path = root / where
    file = path / CONFIG if path.is_dir() else path
    read = read_config(file)
    lost = [f for f in read.faults if f.lost]
    if lost:
        first = lost[0]
        raise ConfigError(
            f"{file}:{first.line}: {first.where}: {first.what}",
            hint="`config-lint` tells all that is wrong with a configuration",
        )
    hostname = switch_name(read)
    own = name or node_name(hostname)
    if not NAME.match(own):
        raise ConfigError(
            f"{file}: the hostname {hostname!r} cannot be made a node name",
            hint="set DEVICE_METADATA|localhost|hostname",
        )
    files = {CONFIG: read_bytes(file)}
    beside = {n: file.parent / n for n in (FRR, SWITCH_JSON)} if file.name == CONFIG else {
        FRR: file.with_name(f"{file.stem}.frr.conf")
    }  # fmt: skip
    files |= {n: read_bytes(p) for n, p in beside.items() if p.is_file()}
    inside = file.parent if file.name == CONFIG else None
    folder = str(file.relative_to(root) if inside is None else inside.relative_to(root))
    return GivenSwitch(own, hostname, folder, read.config, files, _lldp(inside) if inside else {})


def from_files(name: str, files: dict[str, bytes]) -> GivenSwitch:
    """A switch whose files are already in hand. Raises FileProblem."""
    read = parse_config(Path(name) / CONFIG, files[CONFIG])
    return GivenSwitch(name, switch_name(read), name, read.config, dict(files), {})


# ------------------------------------------------------------------------------------------------ where cables are


def _lldp(folder: Path) -> dict[str, tuple[str, str]]:
    """Neighbours by LLDP: of a dump of APPL_DB (``appl_db.json``), or of ``show lldp table`` (``lldp.txt``)."""
    if (folder / APPL_DB).is_file():
        return _lldp_entries(read_bytes(folder / APPL_DB), folder / APPL_DB)
    if (folder / LLDP).is_file():
        return lldp_table(read_bytes(folder / LLDP).decode(errors="replace"))
    return {}


def _lldp_entries(raw: bytes, path: Path) -> dict[str, tuple[str, str]]:
    """LLDP_ENTRY_TABLE of a dump: ``key: {field: value}``, or with the fields below ``value`` as redis-dump has it."""
    try:
        dump: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FileProblem(f"{path}: not JSON: {error}") from None
    found = {}
    for key, row in dump.items() if isinstance(dump, dict) else ():
        table, _, port = str(key).partition(":")
        fields = row.get("value", row) if isinstance(row, dict) else {}
        if table == "LLDP_ENTRY_TABLE" and isinstance(fields, dict):
            far = str(fields.get("lldp_rem_sys_name", ""))
            if far:
                described, identity = (str(fields.get(f"lldp_rem_port_{x}") or "") for x in ("desc", "id"))
                found[port] = (far, described if PORT.fullmatch(described) or not identity else identity)
    return found


def lldp_table(text: str) -> dict[str, tuple[str, str]]:
    """``show lldp table``: LocalPort, RemoteDevice, RemotePortID, Capability, RemotePortDescr."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and re.fullmatch(r"Ethernet\d+", words[0]):
            # Not a description of several words, which may name a port of this switch.
            described = words[4] if len(words) == 5 and PORT.fullmatch(words[4]) else words[2]
            found[words[0]] = (words[1], described)
    return found
