"""Poll the repository in one thread, many times a second, and report what is new.

Invariant: an error of poll() never ends the thread. The error is logged and polling continues, less and less often.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from freshet_serving.processor.versions.changes import report

log = logging.getLogger("freshet.watcher")

MAX_BACKOFF_S = 5.0
STOP_WAIT_S = 10.0


class Watcher:
    """Thread that calls poll() every interval_s, and `changed` with the lines of each poll that found something."""

    def __init__(
        self,
        poll: Callable[[], list[str]],
        interval_s: float,
        changed: Callable[[list[str]], None] = lambda lines: None,
        stop: threading.Event | None = None,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the thread.

        Args:
            poll: Polls once and returns lines about what changed.
            changed: Called with the lines of a poll that found something.
            begin: Called first, on the watcher's thread.
        """
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
        """Stop the thread; return once it has ended, or after timeout_s if a poll is still running."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def run(self) -> None:
        """Poll until stopped; the thread's body."""
        self._begin()
        while True:
            # When memory is short, logging may fail for lack of it, and so may waiting.
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
        """Poll the repository once, and return the seconds to wait before the next poll."""
        try:
            lines = self._poll()
            report(log, lines)
            if lines:
                self._changed(lines)
        except Exception as error:
            self._failures += 1
            delay_s = min(self._interval_s * 2.0 ** min(self._failures, 32), max(MAX_BACKOFF_S, self._interval_s))
            message = " ".join(str(error).split()) or "no message"
            log.error("%s: %s; next attempt in %.2f s", type(error).__name__, message, delay_s)
            return delay_s
        self._failures = 0
        return self._interval_s
