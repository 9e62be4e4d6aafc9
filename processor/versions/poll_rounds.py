"""Poll many models in rounds without waiting for slow ones.

A poll takes microseconds if nothing has arrived, and minutes while a version of a hundred gigabytes loads. So a round
runs on its own thread, one model after another. A model that takes longer than the caller's patience keeps that thread,
another thread goes on with the rest, and rounds skip the model until it is done.

Invariants
- One thread at a time polls a model, and the events of one model are in order.
- The lines of a poll are returned once, by the round in which it ended or the next one.
- At most MOST_SLOW threads are left behind; beyond that the other models wait for one of them.
- The caller of a round never waits for a thread that does not start: where memory is short, a new thread may die before
  it has begun.

Costs: two thread switches per round. Rejected: one thread per model (a thousand idle threads for a thousand models) and
a pool that runs every poll (two thread switches per poll).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.standby_thread import COME_S, spawn

MOST_SLOW = 8


class PollRounds:
    """Poll rounds for one caller."""

    def __init__(self, look: Callable[[str], list[str]]) -> None:
        """Create the rounds; `look` polls a model by name, returns its events and must not raise."""
        self._look = look
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        # Names that a thread is working on: the runner's, and those of threads that were left behind.
        self._busy: set[str] = set()
        self._current, self._began_s = "", 0.0
        # Identifies the thread that takes waiting names; when it was created, and whether it has started.
        self._runner: object | None = None
        self._made_s, self._come = 0.0, False
        self._lines: list[str] = []
        self._closed = False

    def go(self, names: Sequence[str], patience_s: float) -> list[str]:
        """Run one round, in which a slow model holds up the others for patience_s; return the events since the last."""
        with self._changed:
            self._waiting = deque(name for name in names if name not in self._busy)
            self._changed.notify_all()
            while (self._waiting or self._current) and not self._closed:
                if self._runner is None:
                    self._made_s, self._come, runner = time.monotonic(), False, object()
                    spawn(partial(self._run, runner))
                    self._runner = runner
                left_s = self._began_s + patience_s - time.monotonic() if self._current else patience_s
                if left_s > 0:
                    self._changed.wait(left_s)
                    if not self._come and time.monotonic() - self._made_s > COME_S:
                        self._runner = None
                        self._waiting.clear()
                        raise NotReady("the server is short of threads")
                elif len(self._busy) < MOST_SLOW:
                    self._runner, self._current = None, ""
                else:
                    break
            self._waiting.clear()
            lines, self._lines = self._lines, []
            return lines

    def at_work(self, name: str) -> bool:
        with self._changed:
            return name in self._busy

    def close(self) -> None:
        """Prevent further polls; those in progress end by themselves."""
        with self._changed:
            self._closed, self._runner = True, None
            self._changed.notify_all()

    def _run(self, runner: object) -> None:
        try:
            while name := self._next(runner):
                lines: list[str] = []
                try:
                    lines = self._look(name)
                finally:
                    with self._changed:
                        self._busy.discard(name)
                        self._lines += lines
                        if self._runner is runner:
                            self._current = ""
                            if not self._waiting:
                                self._changed.notify_all()
        except Exception:
            # It was logged where it happened, unless memory was short; the next round has another runner.
            with self._changed:
                if self._runner is runner:
                    self._runner = None
                    self._changed.notify_all()

    def _next(self, runner: object) -> str:
        with self._changed:
            self._come = self._come or self._runner is runner
            while self._runner is runner:
                if self._waiting:
                    self._current, self._began_s = self._waiting.popleft(), time.monotonic()
                    self._busy.add(self._current)
                    return self._current
                self._changed.wait()
            return ""
