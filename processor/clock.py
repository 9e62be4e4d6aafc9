"""Injectable clocks: pure code reads the time from a clock, which tests advance by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Return monotonic seconds, for deadlines and durations."""
        ...

    def core_s(self) -> float:
        """Return the seconds of a core that the calling thread has used, without the time spent waiting for one."""
        ...

    def unix_s(self) -> float:
        """Return seconds since 1970, for ages of things that other processes stamped."""
        ...


class SystemClock:
    """The machine's clocks."""

    # The functions themselves, called several times per batch: a wrapping method would cost more than they do.
    now_s = staticmethod(time.monotonic)
    core_s = staticmethod(time.thread_time)
    unix_s = staticmethod(time.time)


def process_start_s(stat: Path = Path("/proc/self/stat")) -> float:
    """Return the monotonic second in which this process was started, before its imports; else now."""
    try:
        # After the name, which may contain anything: field 22 is the start, in ticks since the machine was started.
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age_s = 0.0
    return time.monotonic() - max(0.0, age_s)


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
