"""Measure the wall-clock and CPU time of each stage of a training step.

Look up, exchange (with other processes, models.parallel), step and update run one after another; read, transform and
fetch (of rows on disk, models.training.prefetch_windows) run ahead in threads of their own, so the wall clock shows
only the wait for them. XLA computes in threads whose time cannot be read: the step's CPU time is that of the process
meanwhile, minus what the stages ahead measured for themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")

AHEAD = ("read", "transform", "fetch")
IN_TURN = ("wait", "look up", "exchange", "step", "update")
SELDOM = ("fetch", "exchange")


@dataclass(slots=True)
class StageTime:
    wall_s: float = 0.0
    cpu_s: float = 0.0
    times: int = 0


class StepProfile:
    """Seconds by stage since creation. Thread-safe."""

    def __init__(self, helper_cpu_s: Callable[[], float]) -> None:
        """Start measuring; helper_cpu_s returns the CPU seconds that the worker pool's threads have spent so far."""
        self._stage_times = {name: StageTime() for name in (*AHEAD, *IN_TURN)}
        self._lock, self._helped_s = threading.Lock(), helper_cpu_s

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time the block: wall clock, and CPU time of this thread and the worker pool's."""
        helper_s = 0.0 if stage in AHEAD else self._helped_s()
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            cpu_s = time.thread_time() - cpu_s + (0.0 if stage in AHEAD else self._helped_s() - helper_s)
            self._add(stage, time.perf_counter() - wall_s, cpu_s)

    @contextmanager
    def timed_process(self, stage: str) -> Iterator[None]:
        """Time the block: wall clock, and CPU time of the whole process except the stages that run ahead."""
        wall_s, cpu_s, ahead_s = time.perf_counter(), time.process_time(), self._ahead_s()
        try:
            yield
        finally:
            cpu_s = time.process_time() - cpu_s - (self._ahead_s() - ahead_s)
            self._add(stage, time.perf_counter() - wall_s, cpu_s)

    def waited(self, items: Iterator[T]) -> Iterator[T]:
        while True:
            wall_s = time.perf_counter()
            item: Any = next(items, self)
            self._add("wait", time.perf_counter() - wall_s, 0.0)
            if item is self:
                return
            yield item

    def measured(self) -> dict[str, StageTime]:
        """Return copies of the times by stage; fetch only if rows were on disk, exchange only with other processes."""
        with self._lock:
            return {
                name: replace(stage_times)
                for name, stage_times in self._stage_times.items()
                if stage_times.times or name not in SELDOM
            }

    def _ahead_s(self) -> float:
        return sum(self._stage_times[name].cpu_s for name in AHEAD)

    def _add(self, stage: str, wall_s: float, cpu_s: float) -> None:
        with self._lock:
            stage_times = self._stage_times[stage]
            stage_times.wall_s += wall_s
            stage_times.cpu_s += cpu_s
            stage_times.times += 1


def overlap(stage_times: Mapping[str, StageTime], cores: int) -> float:
    """Return how many times as long the steps took as with every core always busy, the optimum of 1.

    That is wall-clock seconds over CPU seconds per core; NaN without a step.
    """
    wall_s = sum(stage_times[name].wall_s for name in IN_TURN if name in stage_times)
    cpu_s = sum(stage.cpu_s for stage in stage_times.values())
    return wall_s / (cpu_s / cores) if cpu_s else float("nan")
