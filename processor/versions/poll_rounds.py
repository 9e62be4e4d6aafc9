"""Rounds over many models, in which nobody waits for the slow: one look at each, again and again.

A look takes microseconds where nothing has come, and minutes where a version of a hundred gigabytes loads. So a round
runs on a thread of its own, one model after another; a model that takes longer than the caller's patience keeps that
thread, and another one goes on with the rest. Rounds leave a model out while a thread is still at work on it.

Invariants
- One thread at a time looks at a model, and what happens to one model happens in its order.
- What a look returns is returned once, by the round in which it ended or the next one.
- At most MOST_SLOW threads are left behind; beyond that the others wait for one of them.
- Whoever asks for a round never waits for a thread that does not come: where memory is short a new one may die before
  it has begun.

Costs: two switches between threads a round, however many models there are. Refused: a thread a model (a thousand models
are a thousand threads for nothing) and a pool that every look goes through (two switches a look).
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
    """Rounds for one caller. look: at what has a name; it does not raise."""

    def __init__(self, look: Callable[[str], list[str]]) -> None:
        self._look = look
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        # Names that a thread is at work on: the runner's, and those of threads that were left behind.
        self._busy: set[str] = set()
        self._current, self._began_s = "", 0.0
        # Stands for the thread that takes what waits; when it was made, and whether it has come.
        self._runner: object | None = None
        self._made_s, self._come = 0.0, False
        self._lines: list[str] = []
        self._closed = False

    def go(self, names: Sequence[str], patience_s: float) -> list[str]:
        """One round; returns what has happened since the last. patience_s: how long the others wait for each."""
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
        """Whether a thread is looking at it."""
        with self._changed:
            return name in self._busy

    def close(self) -> None:
        """No look begins any more; those at work end by themselves."""
        with self._changed:
            self._closed, self._runner = True, None
            self._changed.notify_all()

    def _run(self, runner: object) -> None:
        """The body of a runner, until it has been left behind."""
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
            # It was told where it happened, or there was no memory for that: the next round has another runner.
            with self._changed:
                if self._runner is runner:
                    self._runner = None
                    self._changed.notify_all()

    def _next(self, runner: object) -> str:
        """What the runner is to look at; "" where it is the runner no more."""
        with self._changed:
            self._come = self._come or self._runner is runner
            while self._runner is runner:
                if self._waiting:
                    self._current, self._began_s = self._waiting.popleft(), time.monotonic()
                    self._busy.add(self._current)
                    return self._current
                self._changed.wait()
            return ""
