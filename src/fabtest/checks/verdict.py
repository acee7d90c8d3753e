"""The outcome of one check: pass, fail or inconclusive, with numbers and one plain sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SHOWN = 5


class Outcome(StrEnum):
    """What a check found. Inconclusive: it could not be decided here, and the sentence says why."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class NotApplicable(Exception):
    """The fabric has nothing this check could look at; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A check's outcome. ``where`` names the places at fault (``leaf1:Ethernet0``), all of them."""

    check: str
    outcome: Outcome
    sentence: str
    numbers: dict[str, float | int | str] = field(default_factory=dict)
    where: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it is a pass."""
        return self.outcome is Outcome.PASS

    def as_json(self) -> dict[str, Any]:
        """For reports; keys are part of the interface."""
        return {
            "check": self.check, "outcome": str(self.outcome), "sentence": self.sentence, "numbers": self.numbers,
            "where": list(self.where),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: where, and what is wrong there."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def judge(check: str, good: str, findings: Sequence[Finding], **numbers: float | int | str) -> Verdict:
    """A pass with the sentence ``good``, or a failure that lists the findings."""
    if not findings:
        return Verdict(check, Outcome.PASS, good, dict(numbers))
    shown = "; ".join(str(f) for f in findings[:SHOWN])
    more = f"; and {len(findings) - SHOWN} more" if len(findings) > SHOWN else ""
    where = tuple(dict.fromkeys(f.where for f in findings))
    return Verdict(check, Outcome.FAIL, shown + more, {**numbers, "faults": len(findings)}, where)


def inconclusive(check: str, why: str, **numbers: float | int | str) -> Verdict:
    """It could not be decided."""
    return Verdict(check, Outcome.INCONCLUSIVE, why, dict(numbers))
