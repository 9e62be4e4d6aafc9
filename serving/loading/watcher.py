"""The repository watcher: one thread that asks the processor, many times a second, whether anything is new.

Invariant: the thread never dies of an error of poll(). It says so once and looks again, later and later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from freshet_serving.processor.versions.failed_versions import report

log = logging.getLogger("freshet.watcher")

MAX_BACKOFF_S = 5.0
STOP_WAIT_S = 10.0


class Stop(Protocol):
    """The part of threading.Event that the watcher uses."""

    def wait(self, timeout: float) -> bool: ...

    def set(self) -> None: ...


class Watcher:
    """Calls poll() every interval_s; `changed` is called with the lines of a poll that found something."""

    def __init__(
        self,
        poll: Callable[[], list[str]],
        interval_s: float,
        changed: Callable[[list[str]], None] = lambda lines: None,
        stop: Stop | None = None,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """begin: called first, on the watcher's thread."""
        self._poll = poll
        self._interval_s = interval_s
        self._changed = changed
        self._stop = stop or threading.Event()
        self._begin = begin
        self._failures = 0
        self._thread = threading.Thread(target=self.run, name="freshet-watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = STOP_WAIT_S) -> None:
        """Returns once the thread has ended, or after timeout_s when a poll is still at work."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def run(self) -> None:
        """Polls until stopped; the thread's body."""
        self._begin()
        while True:
            # Where memory is short, saying so may need more than there is, and so may waiting.
            try:
                delay_s = self.poll_once()
            except Exception:
                delay_s = self._interval_s
            try:
                if self._stop.wait(delay_s):
                    return
            except MemoryError:
                time.sleep(delay_s)

    def poll_once(self) -> float:
        """Looks at the repository once; returns how many seconds to wait before the next."""
        try:
            lines = self._poll()
            report(log, lines)
            if lines:
                self._changed(lines)
        except Exception as error:
            self._failures += 1
            delay_s = min(self._interval_s * 2.0 ** min(self._failures, 32), max(MAX_BACKOFF_S, self._interval_s))
            message = " ".join(str(error).split()) or "no message"
            log.error("%s: %s; next look in %.2f s", type(error).__name__, message, delay_s)
            return delay_s
        self._failures = 0
        return self._interval_s
