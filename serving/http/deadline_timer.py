"""How long a connection is waited for: one timer, however often that changes.

A timer that is set and cancelled with every request costs as much as parsing the request. This one stays where it is
while the deadline moves away from it; when it goes off before the deadline it is set to that. Only a deadline that is
nearer than the timer sets it anew: the first piece of a head, or of a body, that does not come whole.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class DeadlineTimer:
    """A deadline on an event loop."""

    __slots__ = ("_deadline_s", "_expired", "_goes_off_s", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        """expired: called once the deadline has passed, and not again until there is another."""
        self._loop, self._expired = loop, expired
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = self._goes_off_s = math.inf

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return self._deadline_s - self._loop.time()

    def wait(self, seconds: float) -> None:
        """The deadline is so far from now."""
        self._deadline_s = deadline_s = self._loop.time() + seconds
        if deadline_s < self._goes_off_s:
            self._set(seconds)

    def end(self) -> None:
        """There is no deadline any more."""
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
