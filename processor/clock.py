"""Time as a collaborator: pure cores take a clock, tests move it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic seconds, for deadlines and durations."""
        ...

    def core_s(self) -> float:
        """Seconds of a core that the calling thread has had: what waits for one is not in it."""
        ...

    def unix_s(self) -> float:
        """Seconds since 1970, for ages of things that other processes stamped."""
        ...


class SystemClock:
    """The machine's clocks."""

    # The functions themselves: a method around them costs more than they do, several times a batch.
    now_s = staticmethod(time.monotonic)
    core_s = staticmethod(time.thread_time)
    unix_s = staticmethod(time.time)


class FakeClock:
    """A clock that stands still until advance() moves it."""

    def __init__(self, now_s: float = 0.0, unix_s: float = 1_700_000_000.0) -> None:
        self._now_s, self._unix_s = now_s, unix_s

    def now_s(self) -> float:
        return self._now_s

    def core_s(self) -> float:
        return self._now_s

    def unix_s(self) -> float:
        return self._unix_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
        self._unix_s += seconds
