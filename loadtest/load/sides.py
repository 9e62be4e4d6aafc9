"""Things measured in turn on one machine, and the ratios between them.

A machine that is shared changes its speed by the minute. So every side is up during the whole comparison, each takes
its turn in every round, and what is reported is the median over rounds of the ratio within a round, with its quartiles:
a slow minute meets both sides of a ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Turn = Callable[[], Mapping[str, float]]
"""One turn of a side; returns its figures by name."""
Turns = dict[str, list[dict[str, float]]]
"""By side, the figures of each of its turns."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of a ratio over rounds and its quartiles, or another interval, and how many rounds there were."""

    median: float
    low: float
    high: float
    rounds: int


def compare(sides: Mapping[str, Turn], rounds: int, say: Callable[[str], Any] = lambda line: None) -> Turns:
    """Each side's turns, one a round; every round begins with another side and every other round runs backwards."""
    turns: Turns = {side: [] for side in sides}
    for number in range(rounds):
        for side in order(list(sides), number):
            figures = dict(sides[side]())
            turns[side].append(figures)
            shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            say(f"round {number + 1} of {rounds}: {side}: {shown}")
    return turns


def order(sides: Sequence[str], number: int) -> list[str]:
    at = number // 2 % len(sides)
    turned = [*sides[at:], *sides[:at]]
    return turned[::-1] if number % 2 else turned


def values(turns: Turns, side: str, name: str) -> list[float]:
    """One figure of a side, round by round."""
    return [figures[name] for figures in turns[side]]


def medians(turns: Turns, side: str, *names: str) -> list[float]:
    return [statistics.median(values(turns, side, name)) for name in names]


def over(turns: Turns, above: str, below: str, name: str) -> Ratio:
    return ratio(values(turns, above, name), values(turns, below, name))


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Ratio of two series of equal rounds, with quartiles; raises ValueError for a round that measured nothing
    below."""
    found = _ratios(above, below)
    low, high = found[0], found[0]
    if len(found) > 1:
        low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return Ratio(statistics.median(found), low, high, len(found))


def interval(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The ratio of two series, as ratio() gives it, but low and high are the 95 % confidence interval of the median, by
    order statistics: of any distribution, `cut` ratios or fewer lie below its median as rarely as of so many coins so
    few fall heads. Fewer than six rounds give their extremes, which cover less."""
    found = sorted(_ratios(above, below))
    count, cut, outside = len(found), 0, 0.0
    for few in range((count + 1) // 2):
        outside += 2 * math.comb(count, few) / 2**count
        if outside > 0.05:
            break
        cut = few
    return Ratio(statistics.median(found), found[cut], found[count - 1 - cut], count)


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    if len(above) != len(below) or not above:
        raise ValueError(f"as many rounds on both sides wanted, got {len(above)} and {len(below)}")
    if any(not b > 0 for b in below):
        raise ValueError("a side that was measured as 0 cannot be compared with")
    return [a / b for a, b in zip(above, below)]
