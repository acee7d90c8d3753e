"""Reading ``config_db.json`` as engineers have it: every fault of form with its line, and values as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fabtest.errors import FileProblem
from fabtest.lint.position import Positions
from fabtest.sonic.db import ConfigDb

#: A chassis' file is a few megabytes; what is larger is something else.
LARGEST = 64 << 20


class Unreadable(FileProblem):
    """A file that is no configuration: what is wrong, and in which line (1 where a line means nothing)."""

    def __init__(self, path: Path, what: str, *, line: int = 0, column: int = 0, hint: str | None = None) -> None:
        self.line = line or 1
        self.what = what
        place = f":{line}:{column}" if column else f":{line}" if line else ""
        super().__init__(f"{path}{place}: {what}", hint=hint)


@dataclass(frozen=True, slots=True)
class FormFault:
    """Something about the file itself: what, and in which line (1-based)."""

    line: int
    where: str
    what: str
    #: Whether the configuration that was read has lost something by it.
    lost: bool = True


@dataclass(frozen=True)
class ConfigFile:
    """A file that was read. ``faults`` are of its form; the configuration is what could be made of it."""

    path: Path
    text: str
    config: ConfigDb
    faults: tuple[FormFault, ...]

    @cached_property
    def positions(self) -> Positions:
        """Where things stand in the text."""
        return Positions(self.text)

    def line_of(self, where: str) -> int:
        """The line where ``TABLE|key|field`` stands, as far as it is there; 1 if nothing of it is."""
        return self.positions.line(where)


def read_config(path: Path) -> ConfigFile:
    """Raises Unreadable, with line and column, where a file cannot be read as a configuration at all."""
    return parse_config(path, read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """A file of a switch. Raises Unreadable, also where it is far too large to be one."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise Unreadable(path, f"is {size >> 20} MB; a config_db.json is a few", hint="is it the right file?")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(path, f"cannot be read: {error.strerror}") from None


def parse_config(path: Path, raw: bytes) -> ConfigFile:
    """The same of bytes."""
    faults: list[FormFault] = []
    if raw.startswith(b"\xef\xbb\xbf"):
        raw = raw[3:]
        faults.append(FormFault(1, "", "the file begins with a byte order mark, which SONiC's parser refuses", False))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Unreadable(path, f"not UTF-8 text (byte {raw[error.start]:#04x})", line=line) from None
    repeated = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        found = dict(items)
        repeated = repeated or len(found) != len(items)
        return found

    try:
        data = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise Unreadable(path, f"not JSON: {error.msg}", line=error.lineno, column=error.colno) from None
    except RecursionError:
        raise Unreadable(path, "nested too deep; CONFIG_DB has three levels") from None
    except ValueError as error:  # a number of thousands of digits
        raise Unreadable(path, f"not usable JSON: {str(error)[:120]}") from None
    if not isinstance(data, dict):
        what = f"the top level is {_kind(data)}; CONFIG_DB is an object of tables"
        raise Unreadable(path, what, line=1, column=1, hint="is it the right file?")
    if data and all("|" in key for key in data):
        raise Unreadable(
            path,
            'a flattened dump ("TABLE|key": ...), not config_db.json',
            line=1,
            column=1,
            hint="write it as objects of tables: {TABLE: {key: {field: value}}}",
        )
    positions = Positions(text)
    if repeated:
        faults += [
            FormFault(line, where, f"{where.rpartition('|')[2]!r} is there twice: the last one counts")
            for where, line in positions.repeated
        ]
    config = _config(data, positions, faults)
    return ConfigFile(path, text, config, tuple(faults))


def _kind(value: object) -> str:
    names = {
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value), "an object")


def _config(data: dict[str, Any], positions: Positions, faults: list[FormFault]) -> ConfigDb:
    config: ConfigDb = {}

    def fault(where: str, what: str, lost: bool = True) -> None:
        faults.append(FormFault(positions.line(where), where, what, lost))

    for table, rows in data.items():
        if not isinstance(rows, dict):
            fault(table, f"the table is {_kind(rows)}, not an object of rows")
            continue
        config[table] = {}
        for key, row in rows.items():
            if not isinstance(row, dict):
                fault(f"{table}|{key}", f"the row is {_kind(row)}, not an object of fields")
                continue
            fields: dict[str, str | list[str]] = {}
            for field, value in row.items():
                where = f"{table}|{key}|{field}"
                if isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value)):
                    fields[field] = value
                elif isinstance(value, bool | int | float):
                    fault(
                        where, f"{_kind(value)} ({json.dumps(value)}); CONFIG_DB holds text: write it in quotes", False
                    )
                    fields[field] = json.dumps(value)
                else:
                    fault(where, f"{_kind(value)}; CONFIG_DB holds text and lists of texts")
            config[table][key] = fields
    return config
