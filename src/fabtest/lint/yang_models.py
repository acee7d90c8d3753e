"""Which CONFIG_DB tables a folder of SONiC's YANG models describes, and how each is built.

libyang validates data but does not show its schema to Python, so the little that a translation needs (containers, lists
with their keys, leaves) is read from the models' text: statements of YANG 1.1 (RFC 7950, section 6), groupings resolved.
A module ``sonic-x`` has one container of its own name, and every container inside is one table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fabtest.errors import FileProblem, UsageError

#: Blanks and comments; quoted text; a brace or semicolon; a word. A word may hold "/" but not begin a comment.
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|("(?:[^"\\]|\\.)*"|'[^']*')|([{};])|((?:[^\s"'{};/]|/(?![/*]))[^\s{};]*)""", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of YANG: ``keyword argument { inner }``."""

    keyword: str
    argument: str
    inner: tuple[Statement, ...] = ()

    def all(self, keyword: str) -> Iterator[Statement]:
        """Inner statements of a keyword."""
        return (s for s in self.inner if s.keyword == keyword)

    def first(self, keyword: str) -> str:
        """The argument of the first inner statement of a keyword; empty if there is none."""
        return next((s.argument for s in self.all(keyword)), "")


@dataclass(frozen=True, slots=True)
class Node:
    """A container or list, and what is in it by name."""

    name: str
    #: The keys of a list in order; none: a container.
    keys: tuple[str, ...] = ()
    leaves: frozenset[str] = frozenset()
    leaf_lists: frozenset[str] = frozenset()
    lists: tuple[Node, ...] = ()
    containers: Mapping[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableModel:
    """A table of CONFIG_DB: the module that describes it, and its container."""

    module: str
    node: Node


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a folder: names of the modules, and the tables they describe."""

    folder: Path
    modules: tuple[str, ...]
    tables: Mapping[str, TableModel]


def statements(text: str) -> tuple[Statement, ...]:
    """A module's text as statements. Raises ValueError where it is no YANG."""
    tokens: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1}: not YANG")
        at = match.end()
        quoted, mark, word = match.groups()
        if quoted:
            tokens.append((_unquoted(quoted), False))
        elif mark or word:
            tokens.append((mark or word, bool(mark)))
    tokens.reverse()
    found = _block(tokens)
    if tokens:
        raise ValueError("a closing brace too many")
    return found


def _unquoted(quoted: str) -> str:
    return re.sub(r'\\(["\\])', r"\1", quoted[1:-1]) if quoted[0] == '"' else quoted[1:-1]


def _block(tokens: list[tuple[str, bool]]) -> tuple[Statement, ...]:
    """Statements up to the closing brace; ``tokens`` is a stack, the next one last."""
    found: list[Statement] = []
    while tokens and tokens[-1] != ("}", True):
        keyword, argument = tokens.pop()[0], ""
        while tokens and not tokens[-1][1]:
            part = tokens.pop()[0]
            argument += "" if part == "+" else part  # "a" + "b" is one text
        if not tokens:
            raise ValueError(f"{keyword} has no end")
        inner: tuple[Statement, ...] = ()
        if tokens.pop()[0] == "{":
            inner = _block(tokens)
            if not tokens:
                raise ValueError(f"{keyword} has no closing brace")
            tokens.pop()
        found.append(Statement(keyword, argument, inner))
    return tuple(found)


def read_models(folder: Path, release: str = "") -> Models:
    """The models in ``DIR/*.yang``, or of a release in ``DIR/<release>/*.yang`` (the newest if none is named).

    Raises UsageError, FileProblem.
    """
    folder = _folder(folder, release)
    modules: dict[str, Statement] = {}
    for path in sorted(folder.glob("*.yang")):
        try:
            top = statements(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise FileProblem(f"cannot read {path} as YANG: {error}") from None
        modules |= {s.argument: s for s in top if s.keyword == "module"}
    tables: dict[str, TableModel] = {}
    for name, module in modules.items():
        build = _Builder(modules)
        for top_container in module.all("container"):
            if top_container.argument == name:
                for table in top_container.all("container"):
                    tables[table.argument] = TableModel(name, build.node(table, module))
    return Models(folder, tuple(sorted(modules)), tables)


def _folder(folder: Path, release: str) -> Path:
    if not folder.is_dir():
        raise FileProblem(
            f"no such folder of YANG models: {folder}", hint="a switch has them in /usr/local/yang-models"
        )
    releases = {p.name: p for p in folder.iterdir() if p.is_dir() and any(p.glob("*.yang"))}
    flat = any(folder.glob("*.yang"))
    if not flat and not releases:
        raise FileProblem(f"{folder} holds no *.yang", hint="a switch has its models in /usr/local/yang-models")
    if release and release not in releases:
        have = f"releases there: {', '.join(sorted(releases))}" if releases else "leave --release out"
        raise UsageError(f"{folder} has no folder {release} of YANG models", hint=have)
    if release or not flat:
        # Releases are named by year and month, so the last by number is the newest.
        return releases[release or max(releases, key=lambda name: (name.isdecimal(), name))]
    return folder


class _Builder:
    """Nodes of statements, with groupings found in this module or by an import's prefix."""

    def __init__(self, modules: Mapping[str, Statement]) -> None:
        self.modules = modules

    def node(self, statement: Statement, module: Statement) -> Node:
        """A container or list."""
        leaves: set[str] = set()
        leaf_lists: set[str] = set()
        lists: list[Node] = []
        containers: dict[str, Node] = {}
        for s, home in self._content(statement, module, ()):
            if s.keyword == "leaf":
                leaves.add(s.argument)
            elif s.keyword == "leaf-list":
                leaf_lists.add(s.argument)
            elif s.keyword == "list":
                lists.append(self.node(s, home))
            elif s.keyword == "container":
                containers[s.argument] = self.node(s, home)
        keys = tuple(statement.first("key").split()) if statement.keyword == "list" else ()
        return Node(statement.argument, keys, frozenset(leaves), frozenset(leaf_lists), tuple(lists), containers)

    def _content(
        self, statement: Statement, module: Statement, seen: tuple[str, ...]
    ) -> Iterator[tuple[Statement, Statement]]:
        """Data nodes directly inside, with the module they are written in: through choices and groupings."""
        for s in statement.inner:
            if s.keyword in ("choice", "case"):
                yield from self._content(s, module, seen)
            elif s.keyword == "uses":
                grouping, home = self._grouping(s.argument, module)
                # A grouping that uses itself is no YANG; libyang says so.
                if grouping is not None and s.argument not in seen:
                    yield from self._content(grouping, home, (*seen, s.argument))
            else:
                yield s, module

    def _grouping(self, name: str, module: Statement) -> tuple[Statement | None, Statement]:
        prefix, _, plain = name.rpartition(":")
        home = module
        if prefix and prefix != module.first("prefix"):
            imported = next((i.argument for i in module.all("import") if i.first("prefix") == prefix), "")
            home = self.modules.get(imported, module)
        return next((g for g in _groupings(home) if g.argument == plain), None), home


def _groupings(statement: Statement) -> Iterator[Statement]:
    for s in statement.inner:
        if s.keyword == "grouping":
            yield s
        if s.keyword in ("container", "list", "grouping"):
            yield from _groupings(s)
