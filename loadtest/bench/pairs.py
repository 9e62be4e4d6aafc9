"""Running two things in turn and comparing them pair by pair."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.load.sides import Ratio


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair that is compared. a() and b() do `units` of the same work each; the ratio is time of a / time of b."""

    name: str
    a: Callable[[], object]
    b: Callable[[], object]
    units: int
    unit: str


@dataclass(frozen=True, slots=True)
class PairRatio:
    """The outcome: the ratio, and medians of both sides in nanoseconds a unit."""

    ratio: Ratio
    a_ns: float
    b_ns: float


def compare(pair: Pair, rounds: int, clock_ns: Callable[[], int] = time.perf_counter_ns) -> PairRatio:
    """Runs a and b alternately, `rounds` times each after one warm-up, swapping who goes first. clock_ns: what is
    measured; processor time where a percent counts, and neighbours would add more than that."""
    pair.a(), pair.b()
    times: dict[str, list[int]] = {"a": [], "b": []}
    for i in range(rounds):
        order = (("a", pair.a), ("b", pair.b))
        for name, run in order if i % 2 else order[::-1]:
            started = clock_ns()
            run()
            times[name].append(clock_ns() - started)
    ratios = sorted(a / b for a, b in zip(times["a"], times["b"]))
    # One round has no quartiles but its ratio.
    low, _, high = statistics.quantiles(ratios if rounds > 1 else 2 * ratios, n=4)
    a_ns, b_ns = (statistics.median(times[n]) / pair.units for n in "ab")
    return PairRatio(Ratio(statistics.median(ratios), low, high, rounds), a_ns, b_ns)
