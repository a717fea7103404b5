"""Progress bars on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from lily.model.engine_options import COMPILING

__all__ = ["ProgressBars"]


class _Amount(ProgressColumn):
    """Bytes, or how many of a few."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._count = DownloadColumn(), MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        return (self._count if task.description == COMPILING else self._bytes).render(task)


class ProgressBars:
    """A context whose bars vanish at its end; silent if standard error is not a terminal."""

    def __init__(self, *, unit: Literal["bytes", "tokens"]) -> None:
        self.visible = sys.stderr.isatty()
        self._unit = unit
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBars:
        if self.visible:
            count: ProgressColumn = _Amount() if self._unit == "bytes" else MofNCompleteColumn()
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                count,
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def report(self, what: str, done: int, total: int) -> None:
        """Show how much of `what` is done; a total of 0 is not known yet. May be called from any thread."""
        progress = self._progress
        if progress is None:
            return
        if what not in self._tasks:
            self._tasks[what] = progress.add_task(what, total=None)
        progress.update(self._tasks[what], completed=done, total=total or None)
