"""Where tables, keys and fields stand in a file: one pass over its text, made when a position is first asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

#: A text (with its colon, if it is a name), or a bracket. Nothing else matters, as the text is known to be JSON.
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]')
#: Table, key, field: what is nested deeper is no CONFIG_DB.
DEPTH = 3


@dataclass(frozen=True)
class Positions:
    """Positions in a text that is JSON."""

    text: str

    def line(self, where: str) -> int:
        """The line (1-based) of ``TABLE|key|field``, as far as it is there; 1 if nothing of it is."""
        while where:
            offset = self._last.get(where)
            if offset is not None:
                return self._line(offset)
            where = where.rpartition("|")[0]
        return 1

    @cached_property
    def repeated(self) -> tuple[tuple[str, int], ...]:
        """Names that an object has twice, and the line of the second."""
        seen: set[tuple[int, str]] = set()
        found = []
        for within, where, offset in self._names():
            if (within, where) in seen:
                found.append((where, self._line(offset)))
            seen.add((within, where))
        return tuple(found)

    @cached_property
    def _last(self) -> dict[str, int]:
        # Of a name that is there twice the last one counts, as for SONiC's parser.
        return {where: offset for _, where, offset in self._names()}

    def _names(self) -> Iterator[tuple[int, str, int]]:
        """(the object it is in, by where that begins; ``TABLE|key|field``; offset) of every name, in the file's order."""
        path: list[str] = []
        within: list[int] = []
        for match in _TOKEN.finditer(self.text):
            quoted, colon = match.groups()
            if quoted is None:
                if match[0] in "{[":
                    within.append(match.start())
                else:
                    within.pop()
            elif colon is not None and len(within) <= DEPTH:
                name = json.loads(quoted, strict=False) if "\\" in quoted else quoted[1:-1]
                path[len(within) - 1 :] = [name]
                yield within[-1], "|".join(path), match.start()

    def _line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1
