"""Says whether a delta may be served, by its figures and those of the deltas before it. Pure.

What is usual decides. Of each figure the two largest that were served are remembered, and fade: half of them is left
after HALF_LIFE deltas. The second of them is what is usual: one odd delta makes nothing usual. A delta is held for a
figure of its scores that is above the floor of its kind and above `factor` times what is usual. Below the floor nothing
is ever held, so that a stream of still deltas does not make a lively one suspect. Until `learn` deltas have shown a
figure nothing is usual, and only what no delta is ever like is held: the ceiling of its kind. Then twice the factor
counts, and less with every delta. Scores that are no numbers any more are held whatever is usual.

A delta that carries ten times as many training events as usual, after a pause, may move things ten times as far, but no
further than the ceiling. Where no delta tells how many it carries its rows do, by their root: a table that was zeroed
brings many rows too.

Rows and weights are means, scores the end: one that has moved further than usual is held where nobody can tell what it
does to scores, or where they have moved beyond a floor. So a model that was retrained whole, and scores as before, is
served.

A delta that was held is not learned from; one that a person has released is: then it is usual.

What it costs: a dozen comparisons a delta, three numbers a figure.

Refused: a mean and deviation of each figure (figures of good streams have long tails: of 2,000 deltas some lie beyond
any number of deviations; docs/decisions/0065); bounds in absolute terms alone (a delta every ten seconds and one a day
differ by more than a good delta and a bad one); a bound on the number of rows (a delta after a pause is a large one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from processor.errors import BadInput, json_kind
from processor.watching.delta_figures import Figure
from processor.watching.judge import Bounds, Verdict

MODES = OFF, ON, STRICT = "off", "on", "strict"
HALF_LIFE = 100
MOST_NONFINITE = 0.01
"""Of served scores: a request may ask for one, so a few are nobody's fault."""
FADE = 0.5 ** (1 / HALF_LIFE)
CEILINGS = {
    "bias": 1.0,
    "spread": 2.3,
    "disorder": 0.9,
    "moved": math.inf,
    "size": 2.3,
    "removed": 0.95,
    "dense": math.inf,
}
"""Young rows and weights move by any share of their length, so that of these two nothing is out of line at first."""
SAID = {
    "nonfinite": "{value:.1%} of the scores{what} would be no numbers",
    "bias": "the mean score{what} would move by {value:.1%}",
    "spread": "scores{what} would lie {times:.2f} times wider or narrower",
    "disorder": "the order of the scores{what} would be another one, by {value:.2f}",
    "moved": "rows{what} have moved by {value:.2f} of their length",
    "size": "rows{what} have become {times:.2f} times shorter",
    "removed": "{value:.1%} of the rows{what} would go",
    "dense": "dense weights have moved by {value:.2f} of their length",
}
LOGARITHMIC = ("spread", "size")
OF_SCORES = ("nonfinite", "bias", "spread", "disorder")


@dataclass(frozen=True, slots=True)
class DeltaBounds:
    """What a delta may do to a model. mode: see MODES; strict scores every recorded row. bias to dense: floors, by
    figure (processor.watching.delta_figures). factor: times what is usual. learn: deltas until something is usual.
    preview_ms: what scoring rows may cost a delta; preview_rows: how many at most. watch_s: how long a delta is watched
    once it is served; max_drift: Scores.shift() of what it scores then; max_miscalibration: see
    processor.watching.aftermath."""

    mode: str = ON
    bias: float = 0.05
    spread: float = 0.25
    disorder: float = 0.05
    moved: float = 0.5
    size: float = 0.7
    removed: float = 0.5
    dense: float = 0.1
    factor: float = 3.0
    learn: int = 8
    preview_ms: float = 2.0
    preview_rows: int = 256
    watch_s: float = 60.0
    max_drift: float = 1.0
    max_miscalibration: float = 0.2

    @property
    def served(self) -> Bounds:
        """The bounds within which a delta may stay once it is served."""
        return Bounds(window_s=self.watch_s, max_nonfinite_share=MOST_NONFINITE, max_score_shift=self.max_drift)

    @classmethod
    def parse(cls, raw: Any, where: str) -> DeltaBounds:
        """The DeltaBounds of JSON or TOML; raises BadInput."""
        if not isinstance(raw, dict):
            raise BadInput(f"{where}: a section wanted, got {json_kind(raw)}")
        known = {f.name: f.type for f in fields(cls)}
        read: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in known:
                raise BadInput(f"{where}: unknown key {str(key)[:64]!r}; known: {', '.join(known)}")
            if key == "mode":
                if value not in MODES:
                    raise BadInput(f"{where}.mode: {', '.join(MODES)} wanted, got {str(value)[:40]!r}")
                read[key] = value
                continue
            whole = known[key] == "int"
            least, most = (1, 100_000) if whole or key == "factor" else (0, 1e9)
            if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= most:
                raise BadInput(f"{where}.{key}: {least} to {most:g} wanted, got {str(value)[:40]!r}")
            read[key] = value if whole else float(value)
        return cls(**read)


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual of one figure. largest, second: of those that were served, faded. seen: how many."""

    largest: float = 0.0
    second: float = 0.0
    seen: int = 0

    def after(self, value: float) -> Usual:
        """Once another one is served."""
        largest, second = self.largest * FADE, self.second * FADE
        return Usual(max(largest, value), max(second, min(largest, value)), self.seen + 1)


UNKNOWN = Usual()


class DeltaGuard:
    """What the deltas of one version usually do, and a verdict on each new one."""

    def __init__(self) -> None:
        # By kind and what.
        self._usual: dict[tuple[str, str], Usual] = {}
        # Means, faded; 0 before the first delta.
        self._events = self._rows = 0.0

    def judge(self, bounds: DeltaBounds, figures: Sequence[Figure], events: int = 0, rows: int = 0) -> Verdict | None:
        """Why a delta with these figures is to be held; None where it may be served. events, rows: that it carries."""
        growth = self._growth(events, rows)
        scores = [figure for figure in figures if figure.kind in OF_SCORES]
        others = [] if is_quiet(bounds, figures) else [f for f in figures if f.kind not in OF_SCORES]
        for figure in [*scores, *others]:
            limit, why = self._limit(bounds, figure, growth)
            if figure.value > limit:
                return Verdict(figure.kind, f"{_said(figure)}; {why}")
        return None

    def learn(self, figures: Sequence[Figure], events: int = 0, rows: int = 0) -> None:
        """Such a delta is served."""
        self._events = self._events * FADE + events * (1 - FADE) if self._events else float(events)
        self._rows = self._rows * FADE + rows * (1 - FADE) if self._rows else float(rows)
        for kind, what, value in figures:
            self._usual[kind, what] = self._usual.get((kind, what), UNKNOWN).after(value)

    def _growth(self, events: int, rows: int) -> float:
        """How many times as far as usual a delta may move things, for what it carries."""
        if self._events:
            return max(1.0, events / self._events)
        return max(1.0, math.sqrt(rows / self._rows)) if self._rows else 1.0

    def _limit(self, bounds: DeltaBounds, figure: Figure, growth: float) -> tuple[float, str]:
        """What a figure may be, and in words."""
        if figure.kind == "nonfinite":
            return 0.0, "none wanted"
        floor, usual = _floor(bounds, figure), self._usual.get((figure.kind, figure.what), UNKNOWN)
        ceiling = max(floor, CEILINGS[figure.kind])
        if usual.seen < bounds.learn:
            return ceiling, f"at most {ceiling:.2g} wanted of any delta"
        # What few deltas have shown may be the still part of a lively stream.
        limit = max(floor, bounds.factor * (1 + bounds.learn / usual.seen) * usual.second)
        limit = max(limit, min(ceiling, limit * growth))
        return limit, f"at most {limit:.2g} wanted, {usual.second:.2g} is usual"


def is_quiet(bounds: DeltaBounds, figures: Sequence[Figure]) -> bool:
    """Whether a delta is known to leave the scores of the same rows alone."""
    scores = [figure for figure in figures if figure.kind in OF_SCORES]
    return bool(scores) and all(figure.value <= _floor(bounds, figure) for figure in scores)


def _floor(bounds: DeltaBounds, figure: Figure) -> float:
    floor: float = 0.0 if figure.kind == "nonfinite" else getattr(bounds, figure.kind)
    return floor


def _said(figure: Figure) -> str:
    times = math.exp(figure.value) if figure.kind in LOGARITHMIC else figure.value
    what = f" of {figure.what!r}" if figure.what else ""
    return SAID[figure.kind].format(value=figure.value, times=times, what=what)
