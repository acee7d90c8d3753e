"""Faults that pydantic finds in a file, told with their place and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from fabtest.errors import Problem
from fabtest.topology.source import Path, Source, dotted


def fault_of(source: Source, model: type[BaseModel], error: dict[str, Any]) -> Problem:
    """What pydantic found, in a user's words and at its place in the file."""
    path = _data_path(source.data, error["loc"])
    kind = error["type"]
    if kind == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, 1, 0.5)
        remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return source.problem(path, "unknown key", remedy, key=True)
    if kind == "missing":
        parent = source.problem(path[:-1], "", key=False)
        return Problem(parent.line, parent.column, dotted(path), "missing", "add it")
    text = str(error["msg"]).removeprefix("Value error, ")
    if kind.endswith(("_type", "_parsing")) or kind == "literal_error":
        text += f", not {error['input']!r:.60}"
    return source.problem(path, text[0].lower() + text[1:])


def _data_path(data: Any, loc: Iterable[str | int]) -> Path:
    """pydantic's location without the names of union members, which the file does not have."""
    path: list[str | int] = []
    parts = list(loc)
    for i, part in enumerate(parts):
        inside = (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
        if inside:
            path.append(part)
            data = data[part]
        elif i == len(parts) - 1 and isinstance(data, dict) and isinstance(part, str):
            path.append(part)
    return tuple(path)


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """The keys allowed at a path of a model."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = next(iter(_models_in(field.annotation)), None)
    return list(getattr(current, "model_fields", {}))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in getattr(annotation, "__args__", ()) for m in _models_in(arg)]


def merge(problems: list[Problem]) -> list[Problem]:
    """One line per place: members of a union each complain about the same value."""
    by_place: dict[tuple[int, int, str], Problem] = {}
    for p in problems:
        key = (p.line, p.column, p.path)
        seen = by_place.get(key)
        by_place[key] = replace(seen, what=f"{seen.what}; or {p.what}") if seen and seen.what != p.what else p
    return list(by_place.values())
