"""A configuration against SONiC's own YANG models, by libyang: what `config replace` and `config load_yang` refuse.

``yang_models`` reads which tables the models describe, ``yang_translate`` writes a configuration as their data, and here
libyang's errors become faults of ``TABLE|key|field``. libyang goes on after an error without the value that was wrong; what
only follows from that (a reference to it, a mandatory field it was, a comparison with it) is not told as a second fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabtest.errors import FileProblem, MachineError
from fabtest.lint.rule import Hit
from fabtest.lint.yang_models import Models, read_models
from fabtest.lint.yang_translate import Translation, canonical, translate
from fabtest.sonic.db import ConfigDb

_REFERENCE = re.compile(r'leafref value "(.*)" - no target instance "([^"]*)"')
_TARGET = re.compile(r'(no target instance ")([^"]*)')
_MANDATORY = re.compile(r'Mandatory node "([^"]*)"')
_NO_KEY = "List instance is missing its key"


@dataclass(frozen=True, slots=True)
class _Error:
    """An error of libyang: where it is, and whether it is of a value itself or of how values fit together."""

    where: str
    words: str
    of_value: bool


class YangModels:
    """The models of a folder, loaded once. Raises MachineError without libyang, UsageError and FileProblem for the folder."""

    def __init__(self, folder: Path, release: str = "") -> None:
        try:
            import oopt_gnpy_libyang as libyang
        except ImportError:
            raise MachineError(
                "--yang needs libyang for Python, which is not installed", hint="pip install 'fabtest[yang]'"
            ) from None
        self._libyang: Any = libyang
        self.models: Models = read_models(folder, release)
        libyang.set_log_level(libyang.LogLevel.Error)
        libyang.set_log_options(libyang.LogOptions.Store)
        options = libyang.ContextOptions
        self._context: Any = libyang.Context(str(self.models.folder), options.NoYangLibrary | options.DisableSearchCwd)
        for module in self.models.modules:
            try:
                self._context.load_module(module)
            except libyang.Error as error:
                said = [e.message for e in self._context.errors() if e.message] or [str(error)]
                raise FileProblem(
                    f"{self.models.folder}: libyang cannot load the YANG module {module}: {said[0]}",
                    hint="the folder needs every module that another one imports",
                ) from None

    def check(self, config: ConfigDb) -> tuple[list[Hit], list[str]]:
        """Faults of a configuration, and its tables that no model describes."""
        made = translate(config, self.models)
        errors = self._errors(made)
        hits = [*made.hits, *(Hit(e.where, e.words) for e in _first_causes(errors, made))]
        if errors and not hits:  # nothing is lost by mistake: the file is refused, so it has a fault
            hits = [Hit(e.where, e.words) for e in errors]
        return list(dict.fromkeys(hits)), made.without_model

    def _errors(self, made: Translation) -> list[_Error]:
        parse, valid = self._libyang.ParseOptions, self._libyang.ValidationOptions
        self._context.clean_all_errors()
        try:
            self._context.parse_data(
                made.text,
                self._libyang.DataFormat.JSON,
                parse.Strict | parse.NoState | parse.JsonStringDataTypes,
                valid.NoState | valid.MultiError,
            )
        except self._libyang.Error as error:
            return [_placed(e, made) for e in self._context.errors()] or [_Error("", str(error), True)]
        return []


def _placed(error: Any, made: Translation) -> _Error:
    path, line = error.data_path or "", error.line or 0
    exact = made.exactly(path)
    value = made.values.get(path, "") if exact else made.value_of(line)
    said = _words(error.message or "")
    # A model's own sentence (error-message) does not name the value.
    if value and f'"{value}"' not in said and not said.startswith(("Mandatory", _NO_KEY)):
        said = f'"{value}": {said}'
    return _Error(exact or made.of_line(line) or made.of_path(path), said, line > 0)


def _words(message: str) -> str:
    """libyang's sentence in one line, the members of a union after a colon, paths without module and prefixes."""
    parts = [re.sub(r"^ly\d* \w+: ", "", part.strip()).rstrip(".") for part in message.splitlines() if part.strip()]
    said = "; ".join(parts).replace(":; ", ": ")
    return _TARGET.sub(lambda m: m[1] + re.sub(r"^/[^/]+/|[\w-]+:", "", m[2]), said)


def _first_causes(errors: Iterable[_Error], made: Translation) -> Iterator[_Error]:
    """Errors of values, and those of how values fit together that do not follow from the former."""
    errors = [e for e in errors if _NO_KEY not in e.words]
    bad = {e.where for e in errors if e.of_value} | {h.where for h in made.hits}
    lost = set(made.lost)
    for where in bad & made.rows.keys():
        table, parts = made.rows[where]
        lost |= {(table, canonical(part.strip())) for part in parts}
    tables = {where.partition("|")[0] for where in bad}
    for error in errors:
        if error.of_value or not bad or not _follows(error, bad, lost, tables):
            yield error


def _follows(error: _Error, bad: set[str], lost: set[tuple[str, str]], tables: set[str]) -> bool:
    if not error.where or error.where in bad:  # of a row that was left out, or of a field told already
        return True
    own = error.where.partition("|")[0]
    references = _REFERENCE.findall(error.words)
    if references:
        return any(
            (table, canonical(value)) in lost
            for value, path in references
            for table in (own if path.startswith(".") else "", *re.findall(r"[\w-]+", path))
        )
    mandatory = _MANDATORY.search(error.words)
    if mandatory:
        return f"{error.where}|{mandatory[1]}" in bad
    # Conditions (must, when) of a table some of whose values are not there to be compared.
    return own in tables
