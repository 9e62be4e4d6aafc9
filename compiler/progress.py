"""Progress of a long piece of work: who is told of it, and bars on a terminal."""

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
"""Columns of what is no terminal: a program that reads a table wants a row a line."""


def output(*, highlight: bool = True) -> Console:
    """Return a console as wide as its terminal. Where there is none, and COLUMNS does not say, no line is wrapped."""
    made = Console(highlight=highlight)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = WIDE
    return made


class Reporter(Protocol):
    """A reporter, which is told how a compile or a training run goes."""

    def begin(self, what: str, total: int | None) -> None:
        """A long part starts; total: its rows or steps, None when it has no end."""

    def advance(self, done: int) -> None:
        """So much of the part is done."""

    def note(self, text: str) -> None:
        """Notes one line worth keeping."""


class SilentReporter:
    """A Reporter that says nothing."""

    def begin(self, what: str, total: int | None) -> None: ...
    def advance(self, done: int) -> None: ...
    def note(self, text: str) -> None: ...


class ProgressBarReporter:
    """A Reporter on a terminal: one bar a part, notes above the bars."""

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
    """Progress bars while the block runs; plain notes only where there is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield ProgressBarReporter(progress, console)
