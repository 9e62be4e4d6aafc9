"""The counts of workers: what each has counted, and how the counts of many processes, living and dead, add up.

A report is {"counters": ..., "gauges": ...}: nested objects and lists of numbers. Counters of a dead process are kept
as it last reported them, so that no sum ever goes back; gauges go with it. A worker reports once a second without being
asked, so what a killed one takes with it is less than a second's worth.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

Numbers = Any
Report = dict[str, Any]


def add(a: Numbers, b: Numbers) -> Numbers:
    """Number by number; what only one side has stays as it is."""
    if isinstance(a, dict):
        return {key: add(a[key], b[key]) if key in a and key in b else a.get(key, b.get(key)) for key in a | b}
    if isinstance(a, list):
        longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
        return [add(x, y) for x, y in zip(longer, shorter)] + longer[len(shorter) :]
    return a + b


def trial_key(canary: object, baseline: object) -> str:
    """What a trial's evidence is reported under, by the keys of its versions."""
    return f"{canary}/{baseline}"


class Totals:
    """The newest report of every living worker and the sum of the last ones of the dead. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, Report] = {}
        self._dead: Numbers = {}

    def reported(self, slot: int, report: Report) -> None:
        with self._lock:
            self._living[slot] = report

    def on_exit(self, slot: int) -> None:
        """The process of this seat is dead; another one will count from 0."""
        with self._lock:
            last = self._living.pop(slot, None)
            if last is not None:
                self._dead = add(self._dead, last["counters"])

    def counters(self) -> Numbers:
        """The sum over all processes there have been."""
        with self._lock:
            total = self._dead
            for report in self._living.values():
                total = add(total, report["counters"])
            return total

    def counted(self, what: str, key: str) -> Numbers:
        """The same of one key of one counter; None where nobody has counted it."""
        with self._lock:
            parts = [self._dead.get(what, {}).get(key)]
            parts += [report["counters"].get(what, {}).get(key) for report in self._living.values()]
        found = [part for part in parts if part is not None]
        return functools.reduce(add, found) if found else None

    def gauges(self) -> dict[int, Numbers]:
        """Each living worker's, by seat."""
        with self._lock:
            return {slot: report["gauges"] for slot, report in sorted(self._living.items())}
