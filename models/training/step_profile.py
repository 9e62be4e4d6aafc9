"""Where the time of a step goes: for each stage its seconds on the clock and on processors, as a table and a picture.

Stages that run ahead in threads of their own overlap with the others, so the clock's seconds of all of them are more
than the run's. XLA computes in threads that tell nobody their time: what the process spent and no other stage did is
the step's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

STAGES = ("read", "transform", "look up", "step", "update")


@dataclass(slots=True)
class Spent:
    """Of one stage: seconds on the clock, seconds of processors, how often it ran."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    times: int = 0


class StepProfile:
    """Seconds by stage since it was made; any thread adds to it. helped_s: what a crew's other threads have spent."""

    def __init__(self, helped_s: Callable[[], float]) -> None:
        self.spent = {name: Spent() for name in STAGES}
        self._lock, self._helped_s = threading.Lock(), helped_s
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    @contextmanager
    def timed(self, stage: str, crew: bool = False) -> Iterator[None]:
        """Adds the block's seconds, on the clock and of this thread; crew: and of the crew's."""
        wall_s, cpu_s, helped_s = time.perf_counter(), time.thread_time(), self._helped_s()
        try:
            yield
        finally:
            cpu_s = time.thread_time() - cpu_s + (self._helped_s() - helped_s if crew else 0.0)
            with self._lock:
                spent = self.spent[stage]
                spent.wall_s += time.perf_counter() - wall_s
                spent.cpu_s += cpu_s
                spent.times += 1

    def measured(self) -> tuple[dict[str, Spent], Spent]:
        """Each stage's, and the whole's, which has what the process spent besides added to the step's."""
        whole = Spent(time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s, self.spent["update"].times)
        with self._lock:
            stages = {name: replace(spent) for name, spent in self.spent.items()}
        stages["step"].cpu_s = whole.cpu_s - sum(s.cpu_s for name, s in stages.items() if name != "step")
        return stages, whole
