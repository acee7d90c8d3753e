"""What a rule is: an id that stays, what it looks for and why, and a function from a configuration to its faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from fabtest.lint.switch import SwitchConfig


class Severity(IntEnum):
    """How bad: an error breaks RoCE (or the switch), a warning costs performance or waits for an accident."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Hit:
    """One fault: ``TABLE|key|field``, and the sentence about the value seen there."""

    where: str
    what: str


Check = Callable[[SwitchConfig], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of one switch. ``source`` is public: an issue, SONiC's code, a YANG model; ``roce``: only where there is
    a lossless class."""

    id: str
    severity: Severity
    title: str
    why: str
    remedy: str
    source: str
    roce: bool
    check: Check


#: Every rule by id.
RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: Severity, *, why: str, remedy: str, source: str, roce: bool = False
) -> Callable[[Check], Check]:
    """Put a function into the table; its docstring is the rule's title."""

    def decorate(check: Check) -> Check:
        title = (check.__doc__ or id).strip().rstrip(".")
        assert id not in RULES, id
        RULES[id] = Rule(id, severity, title, why, remedy, source, roce, check)
        return check

    return decorate
