"""Limit how far the scores of the same rows move within an hour and a day, however small the steps. Pure.

A guard that judges each delta by itself can be evaded: fifty deltas that move the mean score by 4.9 % each make it
ten times as high. So each generation has a position: the sum of the signed steps that led to it, in the logarithm of
the mean score and in that of the width of the scores. Of an output that can be negative the step is the change relative
to the larger mean. Each step has an equal and opposite one, so a daily tide adds up to nothing. A step is measured on
rows that were scored under both states, so different traffic is not a drift.

Such sums creep where rows are requested before they are learned from: each delta sets the sampled rows a little
further apart, or higher, and the next sample begins where the last one did (0.2 % per delta on good streams; a tide by
a factor of three became 6.6). So it is a drift only if the scores themselves lie so much higher or wider, or lower or
narrower, than any did within that time.

Invariants
- No judged delta takes a position further from any position of the last hour, or day, than the bound allows, unless
  the scores themselves lie within it. The bound is absolute: nothing that was learned lifts it.
- A step back is never held. One beyond the bound that a person has released begins the record again.
- A position belongs to a generation: after a rollback the next delta starts from the position rolled back to.

Costs: a few comparisons per delta; two numbers for each five minutes of a day and figure, and positions of the newest
GENERATIONS. A window is up to SLOT_S longer than its name.

Rejected: scores of fixed rows kept for a day (their features and traffic would be yesterday's, and scoring them again
would double the cost of a delta); sums of unsigned steps (the noise of a day would add up to a drift).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from freshet_serving.processor.extensions.guard.delta_figures import LEVEL, PLACES, SHIFT, SIGNED, WIDTH
from freshet_serving.processor.watching import Figure, Verdict

HOUR_S, DAY_S, SLOT_S = 3600.0, 86400.0, 300.0
GENERATIONS = 512
MOST_STRETCH = 10.0
"""Largest factor by which scores may lie wider or narrower than within the last day."""

Key = tuple[str, str]
Places = dict[Key, float]


class TimeSlot(NamedTuple):
    """The lowest and highest position within one slot of time; `number` is the slot's time in units of SLOT_S."""

    number: int
    low: float
    high: float


class Drift:
    def __init__(self) -> None:
        self._slots: dict[Key, deque[TimeSlot]] = {}
        self._places: OrderedDict[str, Places] = OrderedDict()

    def judge(
        self, figures: Sequence[Figure], parent: str, now_s: float, times_in_hour: float, times_in_day: float
    ) -> Verdict | None:
        """Return a verdict if a delta, by its figures of SIGNED kinds, would move scores too far, else None.

        Its scores were compared with those of the served generation, whose digest is `parent`. The mean score may rise
        or fall by at most `times_in_hour` and `times_in_day`. The time is monotonic.
        """
        for figure in figures:
            if figure.kind not in SIGNED:
                continue
            windows = ((HOUR_S, "hour", times_in_hour), (DAY_S, "day", times_in_day))
            for window_s, name, times in windows if figure.kind == SHIFT else ((DAY_S, "day", MOST_STRETCH),):
                far = self._distance(figure, parent, now_s, window_s)
                too_far = abs(far) > math.log(times)
                if too_far and self._lie_there(figures, figure, times, now_s, window_s):
                    return Verdict("drift", _described(figure, far, name, times))
        return None

    def serve(self, figures: Sequence[Figure], parent: str, digest: str, now_s: float, anew: bool) -> None:
        """Record that a delta leads from one generation to another, by their digests, and is served.

        With `anew`, earlier positions are discarded: they are no longer comparable.
        """
        before, now = self._place(parent), int(now_s // SLOT_S)
        after = dict(before)
        for figure in figures:
            if figure.kind in SIGNED:
                key = figure.kind, figure.what
                after[key] = before.get(key, 0.0) + figure.value
            elif figure.kind in PLACES:
                after[figure.kind, figure.what] = figure.value
        if anew:
            self._slots.clear()
        for key, place in after.items():
            slots = self._slots.setdefault(key, deque())
            # PLACES are measured values; they are not sums that start at 0.
            passed: tuple[float, ...] = (place,) if anew or key[0] in PLACES else (place, before.get(key, 0.0))
            if slots and slots[-1].number == now:
                last = slots.pop()
                passed += (last.low, last.high)
            slots.append(TimeSlot(now, min(passed), max(passed)))
            while slots[0].number < now - int(DAY_S // SLOT_S) - 1:
                slots.popleft()
        self._places[digest] = after
        if len(self._places) > GENERATIONS:
            self._places.popitem(last=False)

    def _distance(self, figure: Figure, parent: str, now_s: float, window_s: float) -> float:
        """Return how far the figure leads from the furthest position of a window, in its own direction."""
        key = figure.kind, figure.what
        at_parent = self._place(parent).get(key, 0.0)
        slots, at_delta = self._within(key, now_s, window_s), at_parent + figure.value
        if figure.value > 0:
            return at_delta - min([at_parent, *(slot.low for slot in slots)])
        return at_delta - max([at_parent, *(slot.high for slot in slots)]) if figure.value < 0 else 0.0

    def _lie_there(self, figures: Sequence[Figure], step: Figure, times: float, now_s: float, window_s: float) -> bool:
        """Report whether scores would lie `times` further in a step's direction than any within a window, if known."""
        key = LEVEL if step.kind == SHIFT else WIDTH, step.what
        place, slots = next((f.value for f in figures if f[:2] == key), None), self._within(key, now_s, window_s)
        if place is None or not slots:
            return True
        if step.value > 0:
            return place - min(slot.low for slot in slots) > math.log(times)
        return max(slot.high for slot in slots) - place > math.log(times)

    def _within(self, key: Key, now_s: float, window_s: float) -> list[TimeSlot]:
        oldest = int((now_s - window_s) // SLOT_S)
        return [slot for slot in self._slots.get(key, ()) if slot.number >= oldest]

    def _place(self, digest: str) -> Places:
        nearest = digest if digest in self._places else next(reversed(self._places), "")
        return self._places.get(nearest, {})


def _described(figure: Figure, far: float, window: str, times: float) -> str:
    subject = "the mean score" if figure.kind == SHIFT else "the width of the scores"
    limit = times if far > 0 else 1 / times
    return (
        f"{subject} of {figure.what!r} would be {math.exp(far):.3g} times what it was within the last {window}, "
        f"limit {limit:.3g} times (a fixed limit)"
    )
