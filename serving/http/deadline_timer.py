"""Enforce connection timeouts with one lazily re-armed timer.

A timer that is set and cancelled with every request costs as much as parsing the request. This one stays set while the
deadline moves away from it; if it fires before the deadline, it is set again for the rest. Only a deadline earlier than
the timer resets it at once: the first piece of a head or a body that does not arrive whole.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class DeadlineTimer:
    """A deadline on an event loop."""

    __slots__ = ("_deadline_s", "_expired", "_goes_off_s", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        """Create a timer without a deadline.

        Args:
            loop: The event loop.
            expired: Called once when the deadline has passed, and not again until there is another.
        """
        self._loop, self._expired = loop, expired
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = self._goes_off_s = math.inf

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._deadline_s - self._loop.time()

    def wait(self, seconds: float) -> None:
        """Set the deadline this many seconds from now."""
        self._deadline_s = deadline_s = self._loop.time() + seconds
        if deadline_s < self._goes_off_s:
            self._set(seconds)

    def end(self) -> None:
        """Remove the deadline."""
        self._deadline_s = self._goes_off_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._goes_off_s = self._deadline_s
        self._timer = self._loop.call_later(seconds, self._went_off)

    def _went_off(self) -> None:
        self._timer, self._goes_off_s = None, math.inf
        left_s = self.left_s
        if left_s > 0:
            self._set(left_s)
        else:
            self._deadline_s = math.inf
            self._expired()
