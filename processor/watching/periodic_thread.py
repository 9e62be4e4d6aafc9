"""A thread that does a slice of work now and then, and more of it at once while there is more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class PeriodicThread(threading.Thread):
    """Calls maintain() until it is closed: again after `busy_interval_s` when that returned True, else `interval_s`."""

    def __init__(
        self,
        maintain: Callable[[], bool],
        interval_s: float = 0.1,
        busy_interval_s: float = 0.02,
        name: str = "freshet-keeper",
    ) -> None:
        """tend: a slice of work; it takes the locks that it needs. What it raises ends no keeper: the next slice may
        have the memory that this one lacked."""
        super().__init__(name=name, daemon=True)
        self._maintain = maintain
        self._interval_s, self._busy_interval_s = interval_s, busy_interval_s
        self._closing = threading.Event()

    def run(self) -> None:
        while True:
            try:
                if self._closing.wait(self._busy_interval_s if self._maintain() else self._interval_s):
                    return
            except Exception:
                if self._closing.is_set():
                    return
                # Without a pause it would be all that the process does; what waits may lack memory too.
                time.sleep(self._interval_s)

    def close(self, patience_s: float | None = None) -> None:
        """Returns when the slice that may be running has ended, or after patience_s."""
        self._closing.set()
        self.join(patience_s)
