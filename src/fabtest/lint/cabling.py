"""``cabling.csv``: what is plugged where, as the people who plug it write it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from fabtest.errors import FileProblem
from fabtest.lint.read import read_bytes


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


@dataclass(frozen=True, slots=True)
class CablingRow:
    """A row of ``cabling.csv``; ``length_m`` 0 is not said."""

    a: str
    a_port: str
    b: str
    b_port: str
    length_m: int


def read_cabling(folder: Path) -> list[CablingRow]:
    """``cabling.csv`` of a folder, if it has one: columns a, a_port, b, b_port and, if wanted, length_m.

    Raises FileProblem.
    """
    path = folder / "cabling.csv"
    if not path.is_file():
        return []
    try:
        rows = list(csv.DictReader(io.StringIO(read_bytes(path).decode(errors="replace"))))
    except csv.Error as error:
        raise FileProblem(f"{path}: {error}") from None
    needed = ("a", "a_port", "b", "b_port")
    if rows and not set(needed) <= set(rows[0]):
        raise FileProblem(f"{path}: the first line must name the columns {', '.join(needed)}")
    found = []
    for row in rows:
        length = str(row.get("length_m") or "0").strip().removesuffix("m")
        values = [str(row.get(n) or "").strip() for n in needed]
        a, a_port, b, b_port = values
        found.append(CablingRow(a, a_port, b, b_port, int(length) if _is_number(length) else 0))
    return found
