"""End runs that take longer than their requests can wait.

The values of a request may decide how many trips a loop of an imported graph makes, so one request could occupy a
session for minutes. Runs of such graphs and of a stage can be ended (EndableRun); all others are never touched.

Invariants. One thread ends the runs of all threads that share a RunEnds.
1. An end never reaches a later run. It is given under the lock, to a run in progress, which takes it back under the
   lock when it returns, before its call can run again.
2. A run still in progress at its limit is ended then: the thread wakes no later than that. A run wakes the thread only
   if its limit is earlier than the time at which it wakes anyway.
3. The thread ends after IDLE_S without a run, and the next run starts another.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from freshet_serving.processor.backends import Executable
from freshet_serving.processor.clock import Clock

if TYPE_CHECKING:
    from freshet_serving.processor.features.stage import EndableCall

IDLE_S = 5.0
"""Seconds without a run after which the thread ends."""


def endable(executables: Mapping[str, Mapping[int, Executable]]) -> bool:
    """Return whether runs of some of these executables, by subgraph and bucket, can be ended."""
    return any(getattr(each, "endable", False) for part in executables.values() for each in part.values())


class RunEnds:
    """Runs calls, and ends those that last too long, by one clock. Shared by all threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._running: dict[int, tuple[float, EndableCall]] = {}
        self._count = 0
        self._wakes_s = math.inf
        self._alive = False

    def run(self, call: EndableCall, until_s: float) -> None:
        """Run a call, which no other thread runs; it raises EndedRun if it is still in progress at until_s."""
        if until_s == math.inf:
            call()
            return
        with self._lock:
            number = self._count = self._count + 1
            self._running[number] = until_s, call
            if until_s < self._wakes_s:
                self._wake()
        try:
            call()
        finally:
            with self._lock:
                if self._running.pop(number, None) is None:
                    call.end(False)

    def _wake(self) -> None:
        """Have the thread look at the runs' times; the lock is held."""
        if self._alive:
            self._changed.notify()
        else:
            self._alive = True
            threading.Thread(target=self._wait, name="freshet-run-limit", daemon=True).start()

    def _wait(self) -> None:
        with self._lock:
            while True:
                now_s = self.clock.now_s()
                for number in [n for n, (until_s, _) in self._running.items() if until_s <= now_s]:
                    self._running.pop(number)[1].end(True)
                idle = not self._running
                wait_s = IDLE_S if idle else min(until_s for until_s, _ in self._running.values()) - now_s
                self._wakes_s = now_s + wait_s
                if not self._changed.wait(min(wait_s, threading.TIMEOUT_MAX)) and idle and not self._running:
                    self._alive, self._wakes_s = False, math.inf
                    return


class TimeLimit(NamedTuple):
    """The limit of one request: its runs are ended at `until_s`."""

    ends: RunEnds
    until_s: float

    @property
    def left_s(self) -> float:
        return self.until_s - self.ends.clock.now_s()

    def run(self, call: EndableCall) -> None:
        """Run a call, which raises EndedRun if it is still in progress at the limit."""
        self.ends.run(call, self.until_s)


class RunLimit:
    """The limit of one session: its next runs are ended at `until_s`, which only the session's thread writes."""

    def __init__(self, ends: RunEnds) -> None:
        self.until_s = math.inf
        self._ends = ends

    def run(self, call: EndableCall) -> None:
        self._ends.run(call, self.until_s)
