"""Progress of long work: a bar on a terminal, a line per stage elsewhere; and the time of each stage."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fabtest.cli.common import err


class Stages:
    """A context; ``begin`` is a ``fabtest.runtime.base.Progress``. ``seconds`` holds the time of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage = ""
        self._since = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=err,
            transient=True, disable=not err.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Stages:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._bar.stop()

    def begin(self, stage: str, done: int, total: int) -> None:
        """A stage begins, or is ``done`` of ``total`` on its way."""
        if stage != self._stage:
            self._close()
            self._stage, self._since = stage, time.monotonic()
            self._task = self._bar.add_task(stage, total=total)
        elif self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _close(self) -> None:
        if self._stage:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + time.monotonic() - self._since
            if self._task is not None:
                self._bar.remove_task(self._task)
        self._stage = ""
