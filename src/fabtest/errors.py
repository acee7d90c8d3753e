"""Every error a user can meet, in one family.

Each carries an exit code, says what is wrong and where, and what to do about it. The command line
prints ``str(error)`` and exits with ``error.exit_code``; a traceback shown to a user is a bug.

Exit codes: 1 a check failed, 2 wrong usage or input, 3 inconclusive, 4 the machine lacks something,
5 the lab is not as asked (missing, locked, half built), 6 the lab did not converge in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class FabtestError(Exception):
    """Base of the family. ``hint`` says what to do next; it is printed on a line of its own."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(FabtestError):
    """The command was called with arguments that mean nothing (unknown node, port, suite)."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault in a user's file: where it stands (1-based line and column) and what would be right."""

    line: int
    column: int
    path: str
    what: str
    remedy: str = ""

    def text(self, file: str) -> str:
        where = f"{file}:{self.line}:{self.column}: "
        what = f"{self.path}: {self.what}" if self.path else self.what
        return where + what + (f" ({self.remedy})" if self.remedy else "")


class TopologyError(FabtestError):
    """A topology file with faults: all of them, each with file:line:column."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(set(problems)))
        count = len(self.problems)
        head = f"{file}: {count} fault{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *("  " + p.text(file) for p in self.problems)]))


class WorkloadError(TopologyError):
    """A workload file with faults: all of them, each with file:line:column."""


class FileProblem(FabtestError):
    """A file that cannot be read or written, or would be overwritten."""


class ConfigError(FabtestError):
    """A CONFIG_DB or FRR file that cannot be used; names table|key|field."""


class MachineError(FabtestError):
    """This machine lacks what the command needs: root, a program, a kernel feature."""

    exit_code = 4


class LabError(FabtestError):
    """The lab is not there, is there already, is busy, or its nodes are not as asked."""

    exit_code = 5


class NotConverged(FabtestError):
    """The lab did not reach its intended state in time; says which node or session is missing."""

    exit_code = 6


class ExecError(FabtestError):
    """A command inside a node failed or did not end in time."""

    exit_code = 5


class TrafficError(FabtestError):
    """Traffic could not be sent or received (no route, no neighbour, no such address)."""

    exit_code = 5
