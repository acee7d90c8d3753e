"""config_db.json as the YANG data SONiC's own validator makes of it (sonic_yang_ext.py of sonic-yang-mgmt).

The text has one value a line, and every line remembers the ``TABLE|key|field`` it came from: libyang names the line of
what it cannot read, and the path of what does not fit the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address, ip_interface

from fabtest.lint.rule import Hit
from fabtest.lint.yang_models import Models, Node
from fabtest.sonic.db import ConfigDb, Row, Table

#: Leaf-lists that CONFIG_DB holds as one text, and what parts them.
_IN_ONE_TEXT = {
    ("MIRROR_SESSION", "src_ip"): ",", ("NTP", "src_intf"): ";", ("BGP_ALLOWED_PREFIXES", "prefixes_v4"): ",",
    ("BGP_ALLOWED_PREFIXES", "prefixes_v6"): ",", ("BUFFER_PORT_INGRESS_PROFILE_LIST", "profile_list"): ",",
    ("BUFFER_PORT_EGRESS_PROFILE_LIST", "profile_list"): ",", ("PORT", "adv_speeds"): ",",
    ("PORT", "adv_interface_types"): ",",
}  # fmt: skip


#: Characters that are none in YANG (RFC 7950, 14: yang-char); libyang would read no further.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010fffd]")
NO_YANG = "holds a character that YANG does not allow"


@dataclass(frozen=True, slots=True)
class Block:
    """A container, or an entry of a list (which has ``keys``), and where it comes from."""

    where: str
    members: dict[str, Member] = field(default_factory=dict)
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """What stands under a name of a block, and where that comes from."""

    where: str
    value: str | list[str] | Block | list[Block]


@dataclass
class Translation:
    """YANG data as text, where its lines and paths come from, and what did not get that far."""

    #: The text; no line ends before a closing brace, so that libyang's line is that of the value before it.
    lines: list[str] = field(default_factory=lambda: [""])
    #: ``TABLE|key|field`` by line, and by path as libyang writes it.
    where: list[str] = field(default_factory=lambda: [""])
    paths: dict[str, str] = field(default_factory=dict)
    #: The value of a leaf by its path.
    values: dict[str, str] = field(default_factory=dict)
    #: ``TABLE|key`` of every row in the data -> table and parts of the key.
    rows: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    #: Faults of translation, and what was left out for them: rows and fields.
    hits: list[Hit] = field(default_factory=list)
    #: (table, value) of what was left out: a reference to it is no second fault.
    lost: set[tuple[str, str]] = field(default_factory=set)
    without_model: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """For libyang."""
        return "\n".join(self.lines)

    def fault(self, where: str, what: str, table: str, values: Iterable[str] = ()) -> None:
        """Something that cannot be translated."""
        self.hits.append(Hit(where, what))
        self.lost |= {(table, canonical(value.strip())) for value in values}

    def of_line(self, line: int) -> str:
        """Where a line (1-based) comes from."""
        return self.where[line - 1] if 0 < line <= len(self.where) else ""

    def value_of(self, line: int) -> str:
        """The value in a line (1-based), if it holds one."""
        found = _VALUE.search(self.lines[line - 1]) if 0 < line <= len(self.lines) else None
        return str(json.loads(found[1])) if found else ""

    def of_path(self, path: str) -> str:
        """Where a data path comes from; the nearest enclosing thing that is known, else nothing."""
        steps = _STEP.findall(path)
        for end in range(len(steps), 0, -1):
            found = self.exactly("".join(steps[:end]))
            if found:
                return found
        return ""

    def exactly(self, path: str) -> str:
        """Where a data path comes from, if it is known itself."""
        return self.paths.get(path) or self._loosely.get(_loose(path), "")

    @cached_property
    def _loosely(self) -> dict[str, str]:
        # libyang writes addresses and numbers in their one canonical form.
        return {_loose(path): where for path, where in self.paths.items()}


_VALUE = re.compile(r'("(?:[^"\\]|\\.)*")[\]},]*$')
#: A step of a path with its predicates, whose values may hold anything but their quote.
_STEP = re.compile(r"""/[^/\[]+(?:\[[^=\]]+=(?:'[^']*'|"[^"]*")\])*""")
_PREDICATE = re.compile(r"""=(?:'([^']*)'|"([^"]*)")""")


def _loose(path: str) -> str:
    return _PREDICATE.sub(lambda m: f"={canonical(m[1] if m[1] is not None else m[2])}", path)


def canonical(value: str) -> str:
    """A number, address or network in one form, other text without regard to case: for comparing."""
    for form in (int, ip_address, ip_interface):
        try:
            found = form(value)
        except ValueError:
            continue
        return str(found.network) if form is ip_interface and "/" in value else str(found)  # type: ignore[union-attr]
    return value.casefold()


def translate(config: ConfigDb, models: Models) -> Translation:
    """A configuration by the models; every fault of translation is a hit, and the rest goes on without it."""
    made = Translation()
    tops: dict[str, dict[str, Member]] = {}
    for name, rows in config.items():
        model = models.tables.get(name)
        if model is None:
            made.without_model.append(name)
            continue
        tops.setdefault(model.module, {})[name] = Member(name, _table(name, rows, model.node, made))
    root = Block("", {f"{module}:{module}": Member("", Block("", tables)) for module, tables in tops.items()})
    _Writer(made).block(root, "")
    return made


def _table(name: str, rows: Table, node: Node, made: Translation) -> Block:
    block = Block(name)
    entries: dict[str, list[Block]] = {}
    for key, row in rows.items():
        where = f"{name}|{key}"
        if _FORBIDDEN.search(key):
            made.fault(where, NO_YANG, name, key.split("|"))
            continue
        if key in node.containers:
            inner = Block(where)
            _fields(name, where, row, node.containers[key], inner, made)
            if inner.members:
                block.members[key] = Member(where, inner)
            continue
        found = _list_of(key, row, node)
        if found is None:
            made.fault(where, _no_place(key, node), name, key.split("|"))
            continue
        entry = Block(where, keys=found.keys)
        made.rows[where] = (name, tuple(key.split("|")))
        for part, value in zip(found.keys, key.split("|"), strict=True):
            entry.members[part] = Member(where, value.strip())
        if found.lists:
            _pairs(name, where, row, found.lists[0], entry, made)
        else:
            _fields(name, where, row, found, entry, made)
        entries.setdefault(found.name, []).append(entry)
    for list_name, blocks in entries.items():
        block.members[list_name] = Member(name, blocks)
    return block


def _list_of(key: str, row: Row, node: Node) -> Node | None:
    """The list with as many keys as the key has parts; of several, the one that knows most of the fields."""
    parts = len(key.split("|"))
    fitting = [n for n in node.lists if len(n.keys) == parts]
    return max(fitting, key=lambda n: sum(f in n.leaves | n.leaf_lists for f in row), default=None)


def _no_place(key: str, node: Node) -> str:
    forms = [" and ".join(n.keys) for n in node.lists]
    parts = len(key.split("|"))
    if forms:
        return f"the key has {parts} part{'s' if parts != 1 else ''}; the model wants {', or '.join(forms)}"
    return f"{key} is none of the table's rows; the model has {', '.join(sorted(node.containers)) or 'none'}"


def _pairs(table: str, where: str, row: Row, inner: Node, entry: Block, made: Translation) -> None:
    """A map (DSCP_TO_TC_MAP, CABLE_LENGTH, ...): each field is an entry of an inner list, of a key and a value."""
    source = inner.keys[0]
    target = next(iter(sorted(inner.leaves - {source})), source)
    blocks = []
    for name, value in row.items():
        at = f"{where}|{name}"
        text = ",".join(value) if isinstance(value, list) else value
        if _FORBIDDEN.search(name + text):
            made.fault(at, NO_YANG, table, [name])
        elif name != "NULL":
            blocks.append(Block(at, {source: Member(at, name), target: Member(at, text)}, inner.keys))
    if blocks:
        entry.members[inner.name] = Member(where, blocks)


def _fields(table: str, where: str, row: Row, node: Node, block: Block, made: Translation) -> None:
    for name, value in row.items():
        at = f"{where}|{name}"
        if name == "NULL":  # what Redis needs for a row without fields
            continue
        if _FORBIDDEN.search("".join([name, *value])):
            made.fault(at, NO_YANG, table)
        elif name in node.leaf_lists:
            block.members[name] = Member(at, _values(table, name, value))
        elif name in node.leaves and name not in node.keys:
            if isinstance(value, list):
                made.fault(at, "is a list; the model has one value", table)
            else:
                block.members[name] = Member(at, value)
        else:
            made.fault(at, f"the model has no field {name}", table)


def _values(table: str, name: str, value: str | list[str]) -> list[str]:
    if isinstance(value, str):
        mark = _IN_ONE_TEXT.get((table, name))
        value = [part.strip() for part in value.split(mark)] if mark else [value]
    return [part for part in value if part]


class _Writer:
    """Blocks as JSON."""

    def __init__(self, made: Translation) -> None:
        self.made = made

    def put(self, text: str, where: str = "") -> None:
        """Go on in this line, and begin the next after an opening brace or a comma."""
        made = self.made
        made.lines[-1] += text
        made.where[-1] = where or made.where[-1]
        if text[-1] in "{[,":
            made.lines.append("")
            made.where.append("")

    def block(self, block: Block, path: str, end: str = "") -> None:
        """An object, its members one by one."""
        self.made.paths.setdefault(path, block.where)
        self.put("{", block.where)
        left = len(block.members)
        for name, member in block.members.items():
            left -= 1
            comma = "," if left else ""
            step = f"{path}/{name}"
            if isinstance(member.value, str):
                self.made.paths[step] = member.where
                self.made.values[step] = member.value
                self.put(f"{json.dumps(name)}:{json.dumps(member.value)}{comma}", member.where)
                continue
            self.made.lines[-1] += f"{json.dumps(name)}:"
            if isinstance(member.value, Block):
                self.block(member.value, step, comma)
            else:
                self.items(member, step, comma)
        self.put("}" + end)

    def items(self, member: Member, path: str, end: str) -> None:
        """A leaf-list's values, or a list's entries."""
        self.put("[", member.where)
        values = member.value if isinstance(member.value, list) else []
        left = len(values)
        for value in values:
            left -= 1
            comma = "," if left else ""
            if isinstance(value, str):
                self.made.paths[path] = self.made.paths[f"{path}[.={_quoted(value)}]"] = member.where
                self.put(json.dumps(value) + comma, member.where)
            else:
                keys = "".join(f"[{k}={_quoted(str(value.members[k].value))}]" for k in value.keys)
                self.block(value, path + keys, comma)
        self.put("]" + end)


def _quoted(value: str) -> str:
    return f'"{value}"' if "'" in value else f"'{value}'"
