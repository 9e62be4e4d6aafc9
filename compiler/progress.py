"""Report the progress of a long task: the reporter interface, and progress bars on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

WIDE = 10_000
"""Console width without a terminal: a program that reads a table expects one line per row."""


def output(*, highlight: bool = True) -> Console:
    """Return a console as wide as its terminal. Without one, and unless COLUMNS sets a width, lines are not wrapped."""
    console = Console(highlight=highlight)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


class Reporter(Protocol):
    """Receives the progress of a compilation or a training run."""

    def begin(self, what: str, total: int | None) -> None:
        """Begin a part of `total` rows or steps; None if it has no end."""

    def advance(self, done: int) -> None: ...

    def note(self, text: str) -> None:
        """Record one line worth keeping."""


class SilentReporter:
    """A Reporter that ignores everything."""

    def begin(self, what: str, total: int | None) -> None: ...
    def advance(self, done: int) -> None: ...
    def note(self, text: str) -> None: ...


class ProgressBarReporter:
    """A Reporter on a terminal: one bar per part, with notes above the bars."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress, self._console = progress, console
        self._task: TaskID | None = None

    def begin(self, what: str, total: int | None) -> None:
        if self._task is not None:
            self._progress.stop_task(self._task)
        self._task = self._progress.add_task(what, total=total)

    def advance(self, done: int) -> None:
        if self._task is not None:
            self._progress.advance(self._task, done)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def progress_bars(console: Console) -> Iterator[ProgressBarReporter]:
    """Show progress bars while the block runs; without a terminal, print notes only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield ProgressBarReporter(progress, console)
