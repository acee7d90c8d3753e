"""Tasks of a checkout: ``invoke --list``. The same as the ``fabtest`` command's; see ``src/fabtest/cli``."""

from fabtest.cli import namespace

__all__ = ["namespace"]
