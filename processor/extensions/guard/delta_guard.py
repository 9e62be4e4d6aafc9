"""Judge whether a delta may be served, by its figures and those of the deltas before it (anomaly detection). Pure.

What is usual: of each figure the guard remembers the two largest values that were served, decayed to half after
HALF_LIFE deltas, and compares with the second, so that one odd delta makes nothing usual. This half-life holds 1.4 good
deltas in a thousand for figures whose tail falls with the square, 0.6 with the cube; one of 100 deltas, 6.4 and 3.6.

A delta is held for a figure of its scores above the floor of its kind and above `factor` times what is usual. The floor
keeps a livelier delta after a stream of small ones from being suspect. Until `learn` deltas have shown a figure, only
values above its ceiling are held; from then on the factor is doubled, and the excess shrinks with every delta. Scores
that become non-finite are held whatever is usual.

The ceiling of a kind is absolute: nothing that was learned or claimed lifts a bound above it. A delta with more
training events than usual, after a pause for example, may move things proportionally further, at most MOST_GROWTH
times: as far as sixteen deltas move by random walk. The event count is the publisher's claim, so it counts for at most
ROWS_GROWTH times the square root of the rows' growth: a table that was zeroed or permuted brings many rows too.

Floors of scores apply to LEAST_ROWS different rows. With fewer they widen: a mean or a width of n rows is off by chance
by 1 / sqrt(n) of one row's, and disorder, a mean of squares, by the square of that. What is usual does not widen: it
was learned from such samples. Nor are few rows evidence that a delta leaves scores alone: its rows and weights are then
judged as if there were no scores.

Rows and weights that move further than usual are held if the effect on scores is unknown, or if scores move beyond a
floor: a model that was retrained completely but scores as before is served. But only rows that were requested lately
are scored: beyond LOUD, rows and weights are held although these scores stay. Rows far longer than any before, and
floods of new ids, are held whatever scores do.

With caution (when a hold is to be released by a server that does not know what is usual) the floors are the bounds.

The guard does not learn from a delta that was held; it does from one that a person has released: then it is usual.

Costs: a dozen comparisons per delta, three numbers per figure. Small steps that add up are detected by drift.

Rejected: a mean and deviation of each figure (of 2,000 deltas of a good stream some lie beyond any number of
deviations); absolute bounds alone (a delta every ten seconds and one a day differ by more than a good and a bad one); a
bound on the number of rows (a delta after a pause is a large one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from freshet_serving.processor.extensions.guard.delta_figures import EVIDENCE, PLACES, SIGNED
from freshet_serving.processor.watching import LEAST_ROWS, DeltaBounds, Figure, Verdict

HALF_LIFE = 700
FADE = 0.5 ** (1 / HALF_LIFE)
SIZE_FADE = 0.5 ** (1 / 100)
"""Decay of the mean numbers of events and rows, since a trainer may be reconfigured."""
CEILINGS = {
    "bias": 1.0,
    "spread": 2.3,
    "disorder": 0.9,
    "moved": math.inf,
    "size": 2.3,
    "longest": 50.0,
    "new": 10.0,
    "removed": 0.95,
    "dense": math.inf,
}
"""Absolute limit of each figure; none for moved and dense: young rows and weights move by any share of their length."""
LOUD = {"moved": 5.0, "size": 4.6, "removed": 0.95, "dense": 5.0}
"""Limits of rows and weights while the scores of the requested rows stay."""
MOST_GROWTH, ROWS_GROWTH = 4.0, 2.0
SAID = {
    "nonfinite": "{value} of the scores{what} would be NaN or infinite",
    "bias": "the mean score{what} would move by {value}",
    "spread": "scores{what} would be spread {value} wider or narrower",
    "disorder": "the order of the scores{what} would change by {value}",
    "moved": "rows{what} would move by {value} their length",
    "size": "rows{what} would become {value} shorter",
    "longest": "a row{what} would be {value} as long as the longest so far",
    "new": "new rows{what} would be {value} the existing rows",
    "removed": "{value} of the rows{what} would be removed",
    "dense": "dense weights would move by {value} their length",
}
PERCENT = ("nonfinite", "bias", "removed")
LOGARITHMIC = ("spread", "size")
MOST_LOG = 700.0
NOT_JUDGED = (*SIGNED, *PLACES, EVIDENCE)
OF_SCORES = ("nonfinite", "bias", "spread", "disorder")
WIDENS = {"bias": 0.5, "spread": 0.5, "disorder": 1.0}
"""Exponent with which a figure's floor widens as rows are missing."""


@dataclass(frozen=True, slots=True)
class DecayedMaxima:
    """The two largest values of one figure that were served, decayed; the second is what is usual."""

    largest: float = 0.0
    second: float = 0.0
    seen: int = 0

    def after(self, value: float) -> DecayedMaxima:
        largest, second = self.largest * FADE, self.second * FADE
        return DecayedMaxima(max(largest, value), max(second, min(largest, value)), self.seen + 1)


UNKNOWN = DecayedMaxima()


class DeltaGuard:
    def __init__(self) -> None:
        # By kind, and table or output.
        self._usual: dict[tuple[str, str], DecayedMaxima] = {}
        # Decayed means; 0 before the first delta.
        self._events = self._rows = 0.0

    def judge(
        self, bounds: DeltaBounds, figures: Sequence[Figure], events: int = 0, rows: int = 0, caution: bool = False
    ) -> Verdict | None:
        """Return a verdict if a delta with these figures must be held, None if it may be served.

        It claims so many training events, and carries so many rows. With `caution`, figures that too few deltas have
        shown are judged by their floors.
        """
        growth, evidence = self._growth(events, rows), _evidence(figures)
        quiet = is_quiet(bounds, figures) and evidence >= LEAST_ROWS
        scores = [figure for figure in figures if figure.kind in OF_SCORES]
        unscored = [f for f in figures if f.kind not in OF_SCORES and f.kind not in NOT_JUDGED]
        for figure in [*scores, *unscored]:
            floor = _floor(bounds, figure, evidence)
            # No limit is below the floor, and nearly all figures are.
            if figure.value <= floor:
                continue
            limit, why = self._limit(bounds, figure, floor, growth, caution)
            if quiet and figure.kind in LOUD:
                limit = max(limit, LOUD[figure.kind])
            if figure.value > limit:
                return Verdict(figure.kind, f"{_described(figure)}, limit {_amount(figure.kind, limit)} ({why})")
        return None

    def knows(self, bounds: DeltaBounds) -> bool:
        """Report whether enough deltas have shown what they do to scores."""
        return any(kind in OF_SCORES and usual.seen >= bounds.learn for (kind, _), usual in self._usual.items())

    def learn(self, figures: Sequence[Figure], events: int = 0, rows: int = 0) -> None:
        """Learn from a delta that is served; events and rows as of judge()."""
        self._events = self._events * SIZE_FADE + events * (1 - SIZE_FADE) if self._events else float(events)
        self._rows = self._rows * SIZE_FADE + rows * (1 - SIZE_FADE) if self._rows else float(rows)
        for kind, name, value in figures:
            if kind in NOT_JUDGED:
                continue
            self._usual[kind, name] = self._usual.get((kind, name), UNKNOWN).after(value)

    def _growth(self, events: int, rows: int) -> float:
        """Return how many times further than usual a delta may move things, given its events and rows."""
        more = math.sqrt(max(1.0, rows / self._rows if self._rows else 1.0))
        if self._events:
            more = max(1.0, min(events / self._events, ROWS_GROWTH * more))
        return min(more, MOST_GROWTH)

    def _limit(
        self, bounds: DeltaBounds, figure: Figure, floor: float, growth: float, caution: bool
    ) -> tuple[float, str]:
        """Return the limit of a figure and the reason for it."""
        if figure.kind == "nonfinite":
            return 0.0, "for any delta"
        usual = self._usual.get((figure.kind, figure.what), UNKNOWN)
        ceiling = max(floor, CEILINGS[figure.kind])
        if usual.seen < bounds.learn:
            return (floor, "until more deltas are seen") if caution else (ceiling, "for any delta")
        # The few deltas seen so far may be the quiet part of a lively stream.
        limit = max(floor, bounds.factor * (1 + bounds.learn / usual.seen) * usual.second * growth)
        if limit >= ceiling:
            return ceiling, "for any delta"
        return limit, f"{_amount(figure.kind, usual.second)} is usual"


def is_quiet(bounds: DeltaBounds, figures: Sequence[Figure]) -> bool:
    """Report whether a delta is known to leave the scores of the same rows alone."""
    scores, evidence = [figure for figure in figures if figure.kind in OF_SCORES], _evidence(figures)
    return bool(scores) and all(figure.value <= _floor(bounds, figure, evidence) for figure in scores)


def _evidence(figures: Sequence[Figure]) -> float:
    """Return the number of different rows that the figures of scores are worth; LEAST_ROWS if they do not state it."""
    return next((figure.value for figure in figures if figure.kind == EVIDENCE), float(LEAST_ROWS))


def _floor(bounds: DeltaBounds, figure: Figure, evidence: float) -> float:
    if figure.kind == "nonfinite":
        return 0.0
    floor: float = getattr(bounds, figure.kind)
    wider: float = max(1.0, LEAST_ROWS / evidence) ** WIDENS.get(figure.kind, 0.0)
    return floor * wider


def _described(figure: Figure) -> str:
    subject = f" of {figure.what!r}" if figure.what else ""
    return SAID[figure.kind].format(value=_amount(figure.kind, figure.value), what=subject)


def _amount(kind: str, value: float) -> str:
    if kind in PERCENT:
        return f"{100 * value:.3g}%"
    if kind == "disorder":
        return f"{value:.2g}"
    return f"{math.exp(min(value, MOST_LOG)) if kind in LOGARITHMIC else value:.3g} times"
