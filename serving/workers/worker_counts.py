"""Add up the counts of all worker processes, living and dead.

A report is {"counters": ..., "gauges": ..., "counted": ...}: nested objects and lists of numbers, and blocks of
counters (serving.workers.counter_layout), which are among the counters once they are read. A dead process's counters
stay as it last reported them, so that no sum ever decreases; its gauges are dropped. A worker reports once a second
unprompted, so a killed worker loses less than a second of counts.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import Any

from freshet_serving.serving.workers.counter_layout import COUNTED, CounterReader, without_gauges

Numbers = Any
Report = dict[str, Any]
PLANNED = "planned"
"""Key of what cores are planned from, among counters and among gauges; there where they are planned."""


def add(a: Numbers, b: Numbers) -> Numbers:
    """Add two structures number by number; a part that only one of them has stays as it is."""
    if isinstance(a, dict):
        return {key: add(a[key], b[key]) if key in a and key in b else a.get(key, b.get(key)) for key in a | b}
    if isinstance(a, list):
        longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
        return [add(x, y) for x, y in zip(longer, shorter)] + longer[len(shorter) :]
    return a + b


def observed(observer: str) -> str:
    """Return the key of a report for what an observer has counted, by evidence_key()."""
    return f"observed by {observer}"


def evidence_key(versions: Iterable[int | str]) -> str:
    """Return the key of evidence about some versions, from the versions' keys."""
    return "/".join(map(str, versions))


class Totals:
    """The newest report of every living worker, and the sum of the last reports of dead ones. Thread-safe.

    A worker's reports come in their order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, Report] = {}
        self._dead: Numbers = {}
        self._layouts: dict[int, CounterReader] = {}

    def reported(self, slot: int, report: Report) -> None:
        with self._lock:
            layout = self._layouts.setdefault(slot, CounterReader())
            counters = {**report["counters"], COUNTED: layout.read(report[COUNTED])}
            self._living[slot] = {**report, "counters": counters}

    def on_exit(self, slot: int) -> None:
        """Record that the process of this slot is dead; its successor counts from 0."""
        with self._lock:
            last = self._living.pop(slot, None)
            if last is not None:
                self._dead = add(self._dead, last["counters"] | {COUNTED: without_gauges(last["counters"][COUNTED])})

    def counters(self) -> Numbers:
        """Return the sum over all processes, dead ones included."""
        with self._lock:
            total = self._dead
            for report in self._living.values():
                total = add(total, report["counters"])
            return total

    def counted(self, counter: str, key: str) -> Numbers:
        """Return the sum of one key of one counter over all processes; None if no process has counted it."""
        with self._lock:
            parts = [self._dead.get(counter, {}).get(key)]
            parts += [report["counters"].get(counter, {}).get(key) for report in self._living.values()]
        counts = [part for part in parts if part is not None]
        return functools.reduce(add, counts) if counts else None

    def gauges(self) -> dict[int, Numbers]:
        """Return the gauges of each living worker, by slot."""
        with self._lock:
            return {slot: report["gauges"] for slot, report in sorted(self._living.items())}
