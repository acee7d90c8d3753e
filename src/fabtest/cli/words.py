"""Optional positional arguments for invoke tasks: ``lab-up [TOPOLOGY]``, ``show NODE WORDS...``.

invoke (3.0) knows positional arguments only as required ones. Its parser gets two additions here, asked
for with the ``task`` decorator: arguments that may be left out (they become ``""``), and one that takes all the words
that are left (a list). Plain ``invoke`` in a checkout has them as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import invoke.tasks
from invoke.exceptions import Exit, ParseError
from invoke.parser.parser import ParseMachine

#: Task name -> (arguments that may be left out, the argument that takes the remaining words).
_SPECS: dict[str, tuple[frozenset[str], str | None]] = {}


def task(
    *, positional: Iterable[str] = (), optional: Iterable[str] = (), rest: str | None = None,
    help: dict[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Any]:  # fmt: skip
    """``invoke.task`` with optional words. Parameters named in ``optional`` and ``rest`` default to None."""
    optional = tuple(optional)

    def decorate(function: Callable[..., Any]) -> Any:
        name = function.__name__.replace("_", "-")
        _SPECS[name] = (frozenset(optional), rest)
        names = [*positional, *optional, *([rest] if rest else [])]
        return invoke.tasks.task(positional=names, help=help or {}, name=name, auto_shortflags=False)(function)

    return decorate


def remainder() -> list[str]:
    """What stands after ``--`` on the command line, word by word (invoke's own joins it and loses the quotes)."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def _spec(machine: ParseMachine) -> tuple[frozenset[str], str | None]:
    return _SPECS.get(machine.context.name or "", (frozenset(), None)) if machine.context else (frozenset(), None)


def _handle(self: ParseMachine, token: str) -> None:
    """Words that are left go to the ``rest`` argument; a task's name is a task even where a word may stand; what
    begins with a dash is an option and never a word. What cannot be parsed is wrong usage: exit code 2."""
    optional, rest = _spec(self)
    try:
        if self.context and self.context.name and not self.waiting_for_flag_value:
            missing = [arg.name for arg in self.context.missing_positional_args]
            if token.startswith("-") and len(token) > 1:
                if token not in self.context.flags and token not in self.context.inverse_flags:
                    _core_flag(self, token)
                    return
            elif rest and (not missing or missing == [rest]):
                argument = self.context.args[rest]
                argument.set_value([*(argument.value or ()), token], cast=False)
                return
            elif missing and missing[0] in optional and token in self.contexts:
                self.see_context(token)
                return
        _invoke_handle(self, token)
    except ValueError:
        raise Exit(f"{token!r} is not a number", code=2) from None
    except ParseError as error:
        raise Exit(str(error), code=2) from None


def _core_flag(self: ParseMachine, token: str) -> None:
    """``TASK --help`` and invoke's other options after a task's name."""
    flags = self.initial.flags if self.initial else {}
    if token not in flags:
        raise Exit(f"{self.context.name} has no option {token}; see {self.context.name} --help", code=2)
    if flags[token].name == "help":
        flags[token].value = self.context.name
    else:
        self.switch_to_flag(token)


def _complete_context(self: ParseMachine) -> None:
    """What was left out is empty, not missing."""
    optional, rest = _spec(self)
    for name in (*optional, *([rest] if rest else [])):
        argument = self.context.args[name]
        if argument.value is None:
            argument.set_value([] if name == rest else "", cast=False)
    help_asked = bool(self.initial and "--help" in self.initial.flags and self.initial.flags["--help"].value)
    if help_asked and self.context:
        for argument in self.context.missing_positional_args:
            argument.set_value("", cast=False)
    try:
        _invoke_complete_context(self)
    except ParseError as error:
        raise Exit(str(error), code=2) from None


# The machine's states live in its class and are not inherited, so the two steps are replaced in place.
_invoke_handle, _invoke_complete_context = ParseMachine.handle, ParseMachine.complete_context
setattr(ParseMachine, "handle", _handle)  # noqa: B010
setattr(ParseMachine, "complete_context", _complete_context)  # noqa: B010
