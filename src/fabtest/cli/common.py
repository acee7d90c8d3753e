"""What every task shares: errors to exit codes, tables and JSON, which lab is meant."""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis
from invoke.exceptions import Exit
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from fabtest.cli.words import task
from fabtest.errors import FabtestError, LabError
from fabtest.runtime.base import Lab

#: Data goes to stdout, everything else to stderr. A terminal wraps what is too long; nothing is cut.
out = Console(
    soft_wrap=True, highlight=False, markup=False, emoji=False, width=10_000
)  # a terminal wraps what is too long; nothing is cut
err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

LAB = "name of the lab; may be left out while one lab is up"
JSON = "print JSON for machines"


def fabtest_task(**words: Any) -> Callable[[Callable[..., Any]], Any]:
    """A task whose errors are a message and an exit code, never a traceback."""

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            logging.basicConfig(
                level=logging.WARNING,
                format="%(message)s",
                handlers=[RichHandler(console=err, show_path=False, show_time=False)],
            )
            if threading.current_thread() is threading.main_thread():  # asked to end, clean up as on Ctrl-C
                signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                result = function(*args, **kwargs)
                sys.stdout.flush()
                return result
            except FabtestError as error:
                sys.stdout.flush()
                print(f"fabtest: {error}", file=sys.stderr)
                raise Exit(code=error.exit_code) from None
            except BrokenPipeError:  # the reader of our output has gone (`| head`)
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise Exit(code=141) from None
            except (redis.RedisError, OSError) as error:  # a node that is off, a lab that went away meanwhile
                print(f"fabtest: the lab does not answer as it should: {error}", file=sys.stderr)
                print("  hint: see `lab-status` and `lab-list`", file=sys.stderr)
                raise Exit(code=LabError.exit_code) from None
            except KeyboardInterrupt:
                print("fabtest: interrupted", file=sys.stderr)
                raise Exit(code=130) from None

        return task(**words)(guarded)

    return decorate


def the_lab(name: str) -> Lab:
    """The lab named, or the only one that is up. Raises LabError."""
    from fabtest.runtime.labs import all_labs, runtime_of
    from fabtest.runtime.namespaces import require_root

    require_root()
    if name:
        return runtime_of(name).attach(name)
    up = [info.name for info in all_labs()]
    if len(up) == 1:
        return runtime_of(up[0]).attach(up[0])
    if not up:
        raise LabError("no lab is up", hint="bring one up with `lab-up`")
    raise LabError(f"several labs are up: {', '.join(up)}", hint="say which with --lab")


def print_json(value: Any) -> None:
    """Indented JSON on stdout."""
    print(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table on stdout; without colour or borders when that is not a terminal."""
    table = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold"
    )
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table, crop=False)


def columns_text(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns with dashes below their heads: how SONiC's own ``show`` prints (tabulate, simple format)."""
    widths = [max(len(str(r[i])) for r in (heads, *rows)) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "  ".join(padded).rstrip()

    return "\n".join([line(heads), line(["-" * w for w in widths]), *(line(r) for r in rows)])
