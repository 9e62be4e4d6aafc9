"""End runs that take longer than their requests can wait.

The values of a request may decide how many trips a loop of an imported graph makes, so one request could occupy a
session for minutes. Runs of such graphs can be ended (EndableRun); all others are never touched.

Invariants. Each session has one limit, and one run at a time.
1. An end never reaches a later run. It is given under the lock, to the run that is set as running; a run is set under
   the lock, after an end that came too late for the previous run has been taken back.
2. A run that is still in progress at its limit is ended then: the thread that ends runs wakes no later than that. A run
   wakes the thread only if its limit is earlier than the time at which it wakes anyway, so a run costs one lock.
3. The thread ends after IDLE_S without a run, and the next run starts another.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from freshet_serving.processor.backends import EndableRun, Executable
from freshet_serving.processor.clock import Clock

IDLE_S = 5.0
"""Seconds without a run after which the thread ends."""


def endable(executables: Mapping[str, Mapping[int, Executable]]) -> bool:
    """Return whether runs of some of these executables can be ended.

    Args:
        executables: Executables by subgraph and bucket.
    """
    return any(getattr(each, "endable", False) for part in executables.values() for each in part.values())


class RunLimit:
    """Runs calls of one session, and ends those that last too long.

    Attributes:
        until_s: Time on the clock at which the next runs are ended; written by the session's thread alone.
    """

    def __init__(self, clock: Clock) -> None:
        """Create a limit without a thread.

        Args:
            clock: The clock of until_s.
        """
        self.until_s = math.inf
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._running: EndableRun | None = None
        self._told: EndableRun | None = None
        self._ends_s = self._wakes_s = math.inf
        self._alive = False

    def run(self, call: EndableRun) -> None:
        """Run a call, which raises EndedRun if it is still in progress at until_s.

        Args:
            call: A bound run.
        """
        until_s = self.until_s
        with self._lock:
            if self._told is not None:
                self._told.end(False)
                self._told = None
            self._running, self._ends_s = call, until_s
            if until_s < self._wakes_s:
                self._wake()
        try:
            call()
        finally:
            self._running = None

    def _wake(self) -> None:
        """Have the thread look at the run's time; the lock is held."""
        if self._alive:
            self._changed.notify()
        else:
            self._alive = True
            threading.Thread(target=self._wait, name="freshet-run-limit", daemon=True).start()

    def _wait(self) -> None:
        """End runs at their times until none has come for a while."""
        with self._lock:
            while True:
                now_s, running = self._clock.now_s(), self._running
                if running is not None and self._ends_s <= now_s:
                    running.end(True)
                    self._told, running = running, None
                wait_s = IDLE_S if running is None else min(self._ends_s - now_s, threading.TIMEOUT_MAX)
                self._wakes_s = now_s + wait_s
                if not self._changed.wait(wait_s) and running is None and self._running is None:
                    self._alive, self._wakes_s = False, math.inf
                    return
