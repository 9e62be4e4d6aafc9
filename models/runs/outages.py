"""Wait for what an endless run cannot reach: its repository, an online store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from freshet_serving.processor.errors import NotReady

FIRST_S, NOTED_S = 1.0, 60.0


class Outages:
    """The outages of one thing that a run needs; `waited_s` is the time of the newest wait on the clock, or -inf."""

    def __init__(
        self,
        waits: bool,
        stopped: threading.Event,
        note: Callable[[str], None],
        most_s: float = FIRST_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for nothing yet.

        Args:
            waits: Whether the run waits, because it has no end.
            stopped: Set when the run is to end.
            note: Receives a line when an outage begins, and every NOTED_S.
            most_s: Longest wait; each is twice as long as the one before in the same outage.
        """
        self._waits, self._stopped, self._note, self._most_s, self._now_s = waits, stopped, note, most_s, now_s
        self._pause_s, self._noted_s, self.waited_s = FIRST_S, -NOTED_S, -float("inf")

    def wait(self, error: NotReady) -> None:
        """Wait before a retry; raise the error if the run does not wait, or is stopped."""
        now_s = self._now_s()
        if now_s - self.waited_s > 2 * self._most_s:
            self._pause_s, self._noted_s = FIRST_S, -NOTED_S
        if not self._waits or self._stopped.wait(self._pause_s):
            raise error
        if now_s - self._noted_s >= NOTED_S:
            self._noted_s = now_s
            self._note(f"{error}; waiting for it")
        self._pause_s, self.waited_s = min(self._most_s, 2 * self._pause_s), self._now_s()
