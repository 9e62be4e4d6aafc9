"""Says whether a delta may be served, by its figures and those of the deltas before it. Pure.

What is usual decides. Of each figure the two largest that were served are remembered, and fade: half of them is left
after HALF_LIFE deltas. The second of them is what is usual: one odd delta makes nothing usual. To hold no more than
one good delta in a thousand it has to remember about a thousand. Of figures whose tail falls by the square it holds 1.4
in a thousand with this half-life, and of those whose tail falls by the cube 0.6; with one of 100 deltas 6.4 and 3.6.

A delta is held for a figure of its scores that is above the floor of its kind and above `factor` times what is usual.
Below the floor nothing is ever held, so that a stream of still deltas does not make a lively one suspect. Until `learn`
deltas have shown a figure nothing is usual, and only what no delta is ever like is held: the ceiling of its kind. Then
twice the factor counts, and less with every delta. Scores that are no numbers any more are held whatever is usual.

The ceiling of a kind is absolute: nothing that was learned, and nothing that a delta says of itself, lifts a bound
above it. A delta that carries more training events than usual, after a pause, may move things as many times as far as
is usual, MOST_GROWTH times at most: as far as sixteen deltas come in which chance is all that moves. How many events it
carries is its maker's word, so its rows have to bear it out, by their root: a table that was zeroed or permuted brings
many rows too. What it says is worth ROWS_GROWTH times its rows, at most.

The floors of figures of scores hold for LEAST_ROWS different rows. Fewer say less: a mean or a width of n rows is off
by chance by 1 / sqrt(n) of what one row is, and disorder, which is a mean of squares, by the square of that: of four
rows two neighbours that change places are a fifth of all the order there is. So these floors widen. What is usual does
not: it was learned from such samples. Nor do few rows say that a delta leaves scores alone, so rows and weights are
judged as where there are none.

Rows and weights are means, scores the end: one that has moved further than usual is held where nobody can tell what it
does to scores, or where they have moved beyond a floor. So a model that was retrained whole, and scores as before, is
served. But the rows that are scored are those that were asked for lately: beyond LOUD rows and weights are held
although these scores stay. Rows far longer than any before, and floods of new ids, are held whatever scores do.

With caution (a hold is to be released by a server that does not know what is usual) the floors are the bounds.

A delta that was held is not learned from; one that a person has released is: then it is usual.

What it costs: a dozen comparisons a delta, three numbers a figure. Small steps that add up are for
processor.watching.drift.

Refused: a mean and deviation of each figure (figures of good streams have long tails: of 2,000 deltas some lie beyond
any number of deviations; docs/decisions/0065); bounds in absolute terms alone (a delta every ten seconds and one a day
differ by more than a good delta and a bad one); a bound on the number of rows (a delta after a pause is a large one).

DeltaLog: what became of a version's newest deltas on this server: how long each took, how old it was, what the guard
found.

Values. One thread writes (the version's writer), any reads: the entries are replaced whole. The chain has what was
published; this is what happened here since the start, and is forgotten with the process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.watching.canary_judge import CanaryBounds, Verdict
from freshet_serving.processor.watching.delta_figures import EVIDENCE, LEAST_ROWS, PLACES, SIGNED, Figure

MODES = OFF, ON, STRICT = "off", "on", "strict"
HALF_LIFE = 700
MOST_NONFINITE = 0.01
"""Of served scores: a request may ask for one, so a few are nobody's fault."""
FADE = 0.5 ** (1 / HALF_LIFE)
SIZE_FADE = 0.5 ** (1 / 100)
"""Of the mean number of events and rows: a trainer may be set anew."""
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
"""Young rows and weights move by any share of their length, so that of these two nothing is out of line at first."""
LOUD = {"moved": 5.0, "size": 4.6, "removed": 0.95, "dense": 5.0}
"""What may happen to rows and weights while the scores of the rows that were asked for stay."""
MOST_GROWTH, ROWS_GROWTH = 4.0, 2.0
SAID = {
    "nonfinite": "{value} of the scores{what} would be no numbers",
    "bias": "the mean score{what} would move by {value}",
    "spread": "scores{what} would lie {value} wider or narrower",
    "disorder": "the order of the scores{what} would be another one, by {value}",
    "moved": "rows{what} have moved by {value} their length",
    "size": "rows{what} have become {value} shorter",
    "longest": "a row{what} is {value} as long as the longest before",
    "new": "{value} the rows{what} would come for the first time",
    "removed": "{value} of the rows{what} would go",
    "dense": "dense weights have moved by {value} their length",
}
PERCENT = ("nonfinite", "bias", "removed")
LOGARITHMIC = ("spread", "size")
MOST_LOG = 700.0
NOT_JUDGED = (*SIGNED, *PLACES, EVIDENCE)
OF_SCORES = ("nonfinite", "bias", "spread", "disorder")
WIDENS = {"bias": 0.5, "spread": 0.5, "disorder": 1.0}
"""By which power of what rows are missing the floor of a figure is wider."""
ALWAYS = ("longest", "new")
"""Judged whatever scores do."""


@dataclass(frozen=True, slots=True)
class DeltaBounds:
    """What a delta may do to a model. mode: see MODES; strict scores every recorded row. bias to dense: floors, by
    figure (processor.watching.delta_figures). hour, day: how many times as high or low the mean score may be as within
    the last hour and day (processor.watching.drift). factor: times what is usual. learn: deltas until something is
    usual. preview_ms: what scoring rows may cost a delta; preview_rows: how many at most. watch_s: how long a delta is
    watched once it is served; max_drift: Scores.shift() of what it scores then; max_miscalibration: see
    processor.watching.post_deploy_monitor."""

    mode: str = ON
    bias: float = 0.05
    spread: float = 0.25
    disorder: float = 0.05
    moved: float = 0.5
    size: float = 0.7
    longest: float = 5.0
    new: float = 1.0
    removed: float = 0.5
    dense: float = 0.1
    hour: float = 3.0
    day: float = 6.0
    factor: float = 3.0
    learn: int = 8
    preview_ms: float = 2.0
    preview_rows: int = 256
    watch_s: float = 60.0
    max_drift: float = 1.0
    max_miscalibration: float = 0.2

    @property
    def served(self) -> CanaryBounds:
        """The bounds within which a delta may stay once it is served."""
        return CanaryBounds(window_s=self.watch_s, max_nonfinite_share=MOST_NONFINITE, max_score_shift=self.max_drift)

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
            least, most = (1, 100_000) if whole or key in ("factor", "hour", "day") else (0, 1e9)
            if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= most:
                raise BadInput(f"{where}.{key}: {least} to {most:g} wanted, got {str(value)[:40]!r}")
            read[key] = value if whole else float(value)
        return cls(**read)


@dataclass(frozen=True, slots=True)
class DecayedMaxima:
    """What is usual of one figure. largest, second: of those that were served, faded. seen: how many."""

    largest: float = 0.0
    second: float = 0.0
    seen: int = 0

    def after(self, value: float) -> DecayedMaxima:
        """Once another one is served."""
        largest, second = self.largest * FADE, self.second * FADE
        return DecayedMaxima(max(largest, value), max(second, min(largest, value)), self.seen + 1)


UNKNOWN = DecayedMaxima()


class DeltaGuard:
    """What the deltas of one version usually do, and a verdict on each new one."""

    def __init__(self) -> None:
        # By kind and what.
        self._usual: dict[tuple[str, str], DecayedMaxima] = {}
        # Means, faded; 0 before the first delta.
        self._events = self._rows = 0.0

    def judge(
        self, bounds: DeltaBounds, figures: Sequence[Figure], events: int = 0, rows: int = 0, caution: bool = False
    ) -> Verdict | None:
        """Why a delta with these figures is to be held; None where it may be served.

        Args:
            bounds: what is configured.
            figures: of the delta.
            events: that it says to carry.
            rows: that it carries.
            caution: the floors are the bounds of what too few deltas have shown.
        """
        growth, evidence = self._growth(events, rows), _evidence(figures)
        quiet = is_quiet(bounds, figures) and evidence >= LEAST_ROWS
        scores = [figure for figure in figures if figure.kind in OF_SCORES]
        others = [f for f in figures if f.kind not in OF_SCORES and f.kind not in NOT_JUDGED]
        for figure in [*scores, *others]:
            floor = _floor(bounds, figure, evidence)
            # No bound is below the floor, and nearly all figures are.
            if figure.value <= floor:
                continue
            limit, why = self._limit(bounds, figure, floor, growth, caution)
            if quiet and figure.kind in LOUD:
                limit = max(limit, LOUD[figure.kind])
            if figure.value > limit:
                return Verdict(figure.kind, f"{_said(figure)}, limit {_amount(figure.kind, limit)} ({why})")
        return None

    def knows(self, bounds: DeltaBounds) -> bool:
        """Whether enough deltas have shown what they do to scores."""
        return any(kind in OF_SCORES and usual.seen >= bounds.learn for (kind, _), usual in self._usual.items())

    def learn(self, figures: Sequence[Figure], events: int = 0, rows: int = 0) -> None:
        """Such a delta is served."""
        self._events = self._events * SIZE_FADE + events * (1 - SIZE_FADE) if self._events else float(events)
        self._rows = self._rows * SIZE_FADE + rows * (1 - SIZE_FADE) if self._rows else float(rows)
        for kind, what, value in figures:
            if kind in NOT_JUDGED:
                continue
            self._usual[kind, what] = self._usual.get((kind, what), UNKNOWN).after(value)

    def _growth(self, events: int, rows: int) -> float:
        """How many times as far as usual a delta may move things, for what it carries."""
        more = math.sqrt(max(1.0, rows / self._rows if self._rows else 1.0))
        if self._events:
            more = max(1.0, min(events / self._events, ROWS_GROWTH * more))
        return min(more, MOST_GROWTH)

    def _limit(
        self, bounds: DeltaBounds, figure: Figure, floor: float, growth: float, caution: bool
    ) -> tuple[float, str]:
        """What a figure may be, and why."""
        if figure.kind == "nonfinite":
            return 0.0, "no delta may"
        usual = self._usual.get((figure.kind, figure.what), UNKNOWN)
        ceiling = max(floor, CEILINGS[figure.kind])
        if usual.seen < bounds.learn:
            return (floor, "too little is known") if caution else (ceiling, "no delta may")
        # What few deltas have shown may be the still part of a lively stream.
        limit = max(floor, bounds.factor * (1 + bounds.learn / usual.seen) * usual.second * growth)
        if limit >= ceiling:
            return ceiling, "no delta may"
        return limit, f"{_amount(figure.kind, usual.second)} is usual"


def is_quiet(bounds: DeltaBounds, figures: Sequence[Figure]) -> bool:
    """Whether a delta is known to leave the scores of the same rows alone."""
    scores, evidence = [figure for figure in figures if figure.kind in OF_SCORES], _evidence(figures)
    return bool(scores) and all(figure.value <= _floor(bounds, figure, evidence) for figure in scores)


def _evidence(figures: Sequence[Figure]) -> float:
    """How many different rows the figures of scores are worth; enough where they do not say."""
    return next((figure.value for figure in figures if figure.kind == EVIDENCE), float(LEAST_ROWS))


def _floor(bounds: DeltaBounds, figure: Figure, evidence: float) -> float:
    if figure.kind == "nonfinite":
        return 0.0
    floor: float = getattr(bounds, figure.kind)
    wider: float = max(1.0, LEAST_ROWS / evidence) ** WIDENS.get(figure.kind, 0.0)
    return floor * wider


def _said(figure: Figure) -> str:
    what = f" of {figure.what!r}" if figure.what else ""
    return SAID[figure.kind].format(value=_amount(figure.kind, figure.value), what=what)


def _amount(kind: str, value: float) -> str:
    """A figure, or a bound of it, in the unit of its kind."""
    if kind in PERCENT:
        return f"{100 * value:.3g}%"
    if kind == "disorder":
        return f"{value:.2g}"
    return f"{math.exp(min(value, MOST_LOG)) if kind in LOGARITHMIC else value:.3g} times"


MOST_ENTRIES = 512
VERDICTS = IN_LINE, OUT_OF_LINE, UNJUDGED, REPLAYED = "in line", "out of line", "not judged", "replayed"


@dataclass(frozen=True, slots=True)
class DeltaEntry:
    """One delta. digest: of the generation that it leads to. dense: how many dense tensors it brought. events: rows of
    training that it has learned from, 0 where it does not say. age_s: from its publication until it was served.
    verdict: one of VERDICTS; reason: of one that is out of line. figures: see processor.watching.delta_figures."""

    digest: str
    rows: int
    removed: int
    dense: int
    events: int
    verdict: str
    reason: str = ""
    apply_ms: float = 0.0
    age_s: float = 0.0
    figures: tuple[Figure, ...] = ()


class DeltaLog:
    """The entries of the newest deltas, by digest."""

    def __init__(self) -> None:
        self._entries: tuple[DeltaEntry, ...] = ()

    def add(self, entry: DeltaEntry) -> None:
        """Notes a delta; the oldest entry goes where there are too many."""
        self._entries = (*self._entries[1 - MOST_ENTRIES :], entry)

    def entries(self) -> dict[str, DeltaEntry]:
        """What is known, by digest; of a delta that came twice the newer entry."""
        return {entry.digest: entry for entry in self._entries}

    def __len__(self) -> int:
        return len(self._entries)


def score_shift(figures: Sequence[Figure]) -> float | None:
    """How far the mean score has moved, of the output that has moved furthest; None where nothing was scored."""
    return max((figure.value for figure in figures if figure.kind == "bias"), default=None)
