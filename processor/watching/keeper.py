"""A thread that does a slice of work now and then, and more of it at once while there is more."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Keeper(threading.Thread):
    """Calls tend() until it is closed: again after `busy_interval_s` when that returned True, else `interval_s`."""

    def __init__(
        self,
        tend: Callable[[], bool],
        interval_s: float = 0.1,
        busy_interval_s: float = 0.02,
        name: str = "freshet-keeper",
    ) -> None:
        """tend: a slice of work; it takes the locks that it needs, and does not raise."""
        super().__init__(name=name, daemon=True)
        self._tend = tend
        self._interval_s, self._busy_interval_s = interval_s, busy_interval_s
        self._closing = threading.Event()

    def run(self) -> None:
        while not self._closing.wait(self._busy_interval_s if self._tend() else self._interval_s):
            pass

    def close(self) -> None:
        """Returns when the slice that may be running has ended."""
        self._closing.set()
        self.join()
