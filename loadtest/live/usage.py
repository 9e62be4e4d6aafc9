"""Processor time and memory that a server takes while it is under load: a sample a second, of all its processes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from loadtest.load.processes import PROC, cpu_s, pss_nbytes, tree

INTERVAL_S = 1.0


class Usage:
    """Samples of a process and all that it starts, from take() to take(), or by a thread from start() to stop().

    Attributes:
        samples: at_s: of the monotonic clock; cores: taken since the last sample; nbytes: proportional set size of all
            processes together; processes: how many there were.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self.samples: list[dict[str, Any]] = []
        self._pid, self._proc = pid, proc
        self._cpu_s: dict[int, float] = {}
        self._at_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def take(self, at_s: float) -> None:
        """One sample, kept from the second one on. A process that came meanwhile counts from its start, one that has
        gone not at all."""
        if not self._proc.is_dir():
            return  # no such figures on this system
        pids = tree(self._pid, self._proc)
        taken = {pid: cpu_s([pid], self._proc) for pid in pids}
        if self._cpu_s and at_s > self._at_s:
            used_s = sum(max(0.0, used - self._cpu_s.get(pid, 0.0)) for pid, used in taken.items())
            alive = [pid for pid in pids if (self._proc / str(pid)).exists()]
            nbytes = pss_nbytes(alive, self._proc)
            cores = round(used_s / (at_s - self._at_s), 3)
            self.samples.append({"at_s": at_s, "cores": cores, "nbytes": nbytes, "processes": len(alive)})
        self._cpu_s, self._at_s = taken, at_s

    def _watch(self) -> None:
        self.take(time.monotonic())
        while not self._stop.wait(INTERVAL_S):
            self.take(time.monotonic())
