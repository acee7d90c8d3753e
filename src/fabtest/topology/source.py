"""YAML with positions: plain Python values and, for every path in them, its line and column.

Only the safe subset is read. Anchors and aliases are refused: they can blow a small file up without bound, and
a value that stands in two places has no single position to report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from fabtest.errors import Problem, TopologyError

Path = tuple[str | int, ...]

#: A topology of 10,000 servers listed one by one stays below this; more is a mistake or an attack.
MAX_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 32


@dataclass(slots=True)
class Source:
    """The parsed text of one file. ``marks`` maps a path to its (line, column), both from 1."""

    file: str
    data: Any
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def problem(self, path: Path, what: str, remedy: str = "", *, key: bool = False) -> Problem:
        """A fault at ``path`` (``key``: at the key itself); its place is that of the nearest parent in the file."""
        at: Path = ("\0key", *path) if key else path
        parent = path
        while at not in self.marks and parent:
            at = parent = parent[:-1]
        line, column = self.marks.get(at, (1, 1))
        return Problem(line, column, dotted(path), what, remedy)


def dotted(path: Path) -> str:
    """A path as people write it: ``servers[3].name``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def parse(text: str, file: str) -> Source:
    """Parse YAML text.

    Raises TopologyError with the position for anything that is not one plain mapping.
    """
    if len(text) > MAX_BYTES:
        raise TopologyError(file, [Problem(1, 1, "", f"larger than {MAX_BYTES >> 20} MiB")])
    source = Source(file, None)
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise TopologyError(file, [Problem(1, 1, "", "the file is empty", "start with `kind: rail`")])
            problems: list[Problem] = []
            source.data = _value(loader, root, (), source, problems, set())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise TopologyError(file, [Problem(line, column, "", f"not YAML: {error.problem or error}")]) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TopologyError(file, [Problem(1, 1, "", f"not YAML: {first}")]) from None
    if problems:
        raise TopologyError(file, problems)
    if not isinstance(source.data, dict):
        raise TopologyError(file, [Problem(1, 1, "", "the top level must be a mapping", "start with `kind: rail`")])
    return source


def _value(
    loader: yaml.SafeLoader, node: yaml.Node, path: Path, source: Source, problems: list[Problem], seen: set[int]
) -> Any:
    source.marks[path] = here = (node.start_mark.line + 1, node.start_mark.column + 1)
    if id(node) in seen:
        problems.append(Problem(*here, dotted(path), "an alias (*name) is not supported", "write the value out"))
        return None
    if len(path) > MAX_DEPTH:
        problems.append(Problem(*here, "", f"nested deeper than {MAX_DEPTH} levels"))
        return None
    if isinstance(node, yaml.MappingNode):
        seen.add(id(node))
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                problems.append(Problem(*at, dotted(path), "a key must be a plain word"))
                continue
            key = str(key_node.value)
            if key in out:
                problems.append(Problem(*at, dotted((*path, key)), "given twice", "remove one"))
                continue
            source.marks[("\0key", *path, key)] = at
            out[key] = _value(loader, value_node, (*path, key), source, problems, seen)
        return out
    if isinstance(node, yaml.SequenceNode):
        seen.add(id(node))
        return [_value(loader, child, (*path, i), source, problems, seen) for i, child in enumerate(node.value)]
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError) as error:
        problems.append(Problem(*here, dotted(path), f"not a value: {error}"))
        return None
