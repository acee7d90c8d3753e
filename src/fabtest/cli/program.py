"""The ``fabtest`` command."""

from __future__ import annotations

from invoke.program import Program

from fabtest import __version__
from fabtest.cli import namespace


def main() -> None:
    """Run a task; ``fabtest --list`` names them."""
    Program(name="fabtest", binary="fabtest", version=__version__, namespace=namespace).run()
