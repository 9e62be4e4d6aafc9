"""Show a running training on a terminal: its status, redrawn every second, with notes above it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from freshet_serving.models.runs.train_metrics import RunStatus

DRAWN_S = 1.0
RATE_S = 10.0


class LiveView:
    """A Reporter for a run without an end. `status` is set once the run exists."""

    def __init__(self, console: Console, now_s: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now_s = console, now_s
        self.status: Callable[[], RunStatus] | None = None
        self._what, self._total, self._done = "", 0, 0
        # (time, rows learned by then) within the last RATE_S seconds.
        self._learned: deque[tuple[float, int]] = deque()

    def begin(self, what: str, total: int | None) -> None:
        self._what, self._total, self._done = what, total or 0, 0

    def advance(self, done: int) -> None:
        self._done += done

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def __rich__(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", justify="right")
        grid.add_column()
        doing = f"{self._what} {self._done:,} of {self._total:,}" if self._total else self._what
        if self.status is None:
            grid.add_row("doing", doing)
            return grid
        for name, text in lines(self.status(), self._rate(), time.time()):
            grid.add_row(name, text)
        if self._total:
            grid.add_row("doing", doing)
        return grid

    def _rate(self) -> float:
        now_s, rows = self._now_s(), self.status().learned_rows if self.status else 0
        self._learned.append((now_s, rows))
        while len(self._learned) > 2 and self._learned[1][0] <= now_s - RATE_S:
            self._learned.popleft()
        first_s, first_rows = self._learned[0]
        return (rows - first_rows) / max(1e-3, now_s - first_s) if rows > first_rows else 0.0


def lines(status: RunStatus, rows_per_s: float, unix_s: float) -> Iterator[tuple[str, str]]:
    """Format a run's status as (name, value) of each line."""
    waiting = f", {status.waiting_rows:,} waiting" if status.waiting_rows else ", caught up"
    yield "rows", f"{status.position:,}, {rows_per_s:,.0f} a second{waiting}"
    left_out = [f"{n:,} {what}" for n, what in ((status.rejected_rows, "not sound"), (status.lost_rows, "lost")) if n]
    if left_out:
        yield "left out", ", ".join(left_out)
    if status.event_time:
        yield "newest event", f"{_age(unix_s - status.event_time)} ago"
    if status.published_at:
        name = f"{status.version}.{status.step}"
        yield "newest delta", f"{name}, {_age(unix_s - status.published_at)} ago, {status.deltas:,} so far"
    if not math.isnan(status.window_auc):
        calibration = f"{status.window_calibration:.3f} of the labels' mean"
        yield "newest window", f"AUC {status.window_auc:.4f}, mean score {calibration}"
    if status.table_rows:
        yield "tables", ", ".join(f"{name} {rows:,}" for name, rows in status.table_rows.items())
    if status.held:
        yield "HELD", status.held
    if status.trouble:
        yield "stream", status.trouble
    if status.store_trouble:
        yield "store", status.store_trouble


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.1f} s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24:,} days"


@contextmanager
def live_view(console: Console) -> Iterator[LiveView]:
    """Show the view while the block runs; without a terminal, print notes only."""
    view = LiveView(console)
    if not console.is_terminal:
        yield view
        return
    with Live(view, console=console, refresh_per_second=1 / DRAWN_S, transient=True):
        yield view
