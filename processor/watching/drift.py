"""How far the scores of the same rows have come within an hour and a day, however small the steps. Pure.

A guard that judges each delta by itself can be walked past: fifty deltas that move the mean score by 4.9 % each make it
ten times as high, and none of them is unusual. So each generation has a place: the sum of the signed steps that led to
it, of the logarithm of the mean score and of the width of the scores. Of an output that can be negative the step is the
change relative to the larger mean. Each step has an equal and opposite one, so a tide that comes and goes adds up to
nothing. A step is measured on rows that were scored under both states, so other traffic is no drift.

Such sums creep where rows are asked for before they are learned from: each delta sets the sampled rows a little
further apart, or higher, and the next sample begins where the last one did. Good streams widened by 0.2 % a delta so,
and a tide of three times came to 6.6. So it is a drift only where the scores themselves lie so much higher or wider, or
lower or narrower, than any did within that time.

Invariants
- No delta that is judged takes a place further from any place of the last hour, or day, than the bound allows, unless
  the scores lie within it. The bound is absolute: nothing that was learned lifts it.
- A step back is never held. One that a person has released beyond the bound begins the record anew.
- A place belongs to a generation: after a rollback what follows stands on the place that was gone back to.

Cost: a few comparisons a delta; two numbers for each five minutes of a day and figure, and places of the newest
GENERATIONS. A window is up to SLOT_S longer than it is called.

Refused: scores of fixed rows kept for a day (their features and their traffic are of yesterday, and scoring them again
would double what a delta costs); sums of sizes without signs (the noise of a day would add up to a drift).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from freshet_serving.processor.watching.canary_judge import Verdict
from freshet_serving.processor.watching.delta_figures import LEVEL, PLACES, SHIFT, SIGNED, WIDTH, Figure

HOUR_S, DAY_S, SLOT_S = 3600.0, 86400.0, 300.0
GENERATIONS = 512
MOST_STRETCH = 10.0
"""Times that scores may lie wider or narrower than within the last day."""

Key = tuple[str, str]
Places = dict[Key, float]


class TimeSlot(NamedTuple):
    """The lowest and highest place of a stretch of time. number: of the stretch, in SLOT_S."""

    number: int
    low: float
    high: float


class Drift:
    """The places of one version's generations."""

    def __init__(self) -> None:
        self._slots: dict[Key, deque[TimeSlot]] = {}
        self._places: OrderedDict[str, Places] = OrderedDict()

    def judge(
        self, figures: Sequence[Figure], parent: str, now_s: float, times_in_hour: float, times_in_day: float
    ) -> Verdict | None:
        """Why a delta would go too far, None where it does not.

        Args:
            figures: of the delta; those whose kind is one of SIGNED count here.
            parent: digest of the generation that is served, which the delta's scores were compared with.
            now_s: monotonic seconds.
            times_in_hour: how many times as high, or as low, the mean score may be as within the last hour.
            times_in_day: the same of the last day.
        """
        for figure in figures:
            if figure.kind not in SIGNED:
                continue
            windows = ((HOUR_S, "hour", times_in_hour), (DAY_S, "day", times_in_day))
            for window_s, name, times in windows if figure.kind == SHIFT else ((DAY_S, "day", MOST_STRETCH),):
                far = self._far(figure, parent, now_s, window_s)
                too_far = abs(far) > math.log(times)
                if too_far and self._lie_there(figures, figure, times, now_s, window_s):
                    return Verdict("drift", _said(figure, far, name, times))
        return None

    def serve(self, figures: Sequence[Figure], parent: str, digest: str, now_s: float, anew: bool) -> None:
        """A delta with these figures leads from one generation to another, and is served. anew: what came before is
        nothing to compare with any more."""
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
            # What is measured is no sum that begins at nought.
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

    def _far(self, figure: Figure, parent: str, now_s: float, window_s: float) -> float:
        """How far from the furthest place of a window the figure leads, in its own direction."""
        key = figure.kind, figure.what
        here = self._place(parent).get(key, 0.0)
        slots, there = self._within(key, now_s, window_s), here + figure.value
        if figure.value > 0:
            return there - min([here, *(slot.low for slot in slots)])
        return there - max([here, *(slot.high for slot in slots)]) if figure.value < 0 else 0.0

    def _lie_there(self, figures: Sequence[Figure], step: Figure, times: float, now_s: float, window_s: float) -> bool:
        """Whether scores would lie so many times further in a step's direction than any within a window; also where
        nobody knows."""
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
        """Of a generation; of one that is not known the newest."""
        known = digest if digest in self._places else next(reversed(self._places), "")
        return self._places.get(known, {})


def _said(figure: Figure, far: float, window: str, times: float) -> str:
    subject = "the mean score" if figure.kind == SHIFT else "the width of the scores"
    limit = times if far > 0 else 1 / times
    return (
        f"{subject} of {figure.what!r} would be {math.exp(far):.3g} times what it was within the last {window}, "
        f"limit {limit:.3g} times (whatever is usual)"
    )
