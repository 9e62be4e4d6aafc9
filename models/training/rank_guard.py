"""Judge whether the items' rows that a window of events has moved may be served. Pure: figures in, a verdict out.

As models.training.window_guard, by NDCG: each event is ranked among all items before training on it. If what users do
no longer follows from what they did (a broken feed, items of another catalogue), the window's NDCG falls. Before a
delta, events from before the window are ranked again: weights that a bad step has disturbed rank them worse.

NDCG is compared by its logarithm, because it is usually 0.02 for one catalogue and 0.4 for another. Its sampling error
is that of the usual NDCG for so many events, at most 1 / sqrt(events * NDCG), because a gain is at most 1.

If most of the NDCG comes from popularity, it stays when nothing else is predictable. So the gain over ranking by
popularity alone (the lift) on the same events is judged, too, by differences: it may be near 0, and its error is that
of the difference of two ranks of one event. It is lost if half of it has gone and the NDCG has fallen by as much: on
the day of a launch popularity alone does better, which is no fault. A network without a lift has none to lose.

Events whose item has no row yet do not count: a catalogue grows. But if most of a window's items are new, though few
usually are, they are not of this catalogue.

Rejected: misses for new items (the day of a launch would be held); the loss of a step (its candidates change, and
popularity alone makes it small).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.training.window_guard import WindowVerdicts

LEAST_GAIN = 25.0
"""A window with at least this sum of NDCG is long enough: an error of a fifth."""
LEAST_NDCG = 1e-3
LEAST_EVENTS = 30
"""Minimum of events to find that most items are new."""
NDCG_DROP = 0.3
"""A smaller relative fall of the NDCG is ignored."""
LOST_LIFT = 0.5
"""A smaller relative loss of the lift is ignored."""
OTHER_ITEMS = 0.5
"""Rise in the share of events with a new item that means items of something else."""
FIRST_SPREAD = {"ndcg": 0.1, "new": 0.1, "earlier": 0.1, "lift": 0.02}
"""Initial spread of each figure, with the weight of one window."""

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankFigures:
    """A window's figures.

    Attributes:
        events: Number of events that could be ranked; `unranked` of others.
        ndcg: Their NDCG before training on them; NaN without any.
        new: Share of all events whose item had no row.
        fall: Logarithm of earlier events' NDCG before the window over that after it; None without such events.
        lift: NDCG less that by popularity alone; None for events not ranked by it.
    """

    events: int
    ndcg: float
    new: float
    fall: float | None = None
    fall_error: float = 0.0
    top: int = 10
    unranked: int = 0
    lift: float | None = None
    lift_error: float = 0.0

    @property
    def level(self) -> float:
        """Logarithm of the NDCG."""
        return math.log(max(self.ndcg, LEAST_NDCG))

    def error(self, ndcg: float) -> float:
        """Return the sampling error of the level if the NDCG is usually `ndcg`."""
        return 1 / math.sqrt(max(1.0, self.events) * max(ndcg, LEAST_NDCG))

    @property
    def enough(self) -> bool:
        """True if the window has enough events to update the usual figures."""
        return self.events > 0 and self.events * self.ndcg >= LEAST_GAIN

    @property
    def shown(self) -> dict[str, Any]:
        """The figures as a run's status has them."""
        return {"window_ndcg": self.ndcg}


class RankGuard(WindowVerdicts[RankFigures]):
    """The verdicts of one run by the ranks of events."""

    first_spread = FIRST_SPREAD

    def begin_with(self, held_out: RankFigures) -> None:
        """Compare the first windows with the full version's held-out events, unless these are too few."""
        if held_out.enough:
            self._usual["ndcg"].begin_with(held_out.level, held_out.error(held_out.ndcg))
            self._usual["new"].begin_with(held_out.new, 0.0)
            self._usual["earlier"].begin_with(0.0, 0.0)
            if held_out.lift is not None:
                self._usual["lift"].begin_with(held_out.lift, held_out.lift_error)

    def _note(self, figures: RankFigures) -> None:
        self._usual["ndcg"].note(figures.level, figures.error(figures.ndcg))
        self._usual["new"].note(figures.new, 0.0)
        if figures.fall is not None:
            self._usual["earlier"].note(figures.fall, figures.fall_error)
        if figures.lift is not None:
            self._usual["lift"].note(figures.lift, figures.lift_error)

    def _out_of_line(self, figures: RankFigures) -> str:
        least = -math.log1p(-NDCG_DROP)
        ndcg, new, earlier = (self._usual[name] for name in ("ndcg", "new", "earlier"))
        every = figures.events + figures.unranked
        if new.is_known and every >= LEAST_EVENTS and figures.new - new.mean > OTHER_ITEMS:
            return (
                f"{figures.new:.0%} of {every:,} events have an item without a row, usually {new.mean:.0%}:"
                f" expected at most {new.mean + OTHER_ITEMS:.0%}"
            )
        if ndcg.is_known and figures.events:
            usual = math.exp(ndcg.mean)
            # The spread is that of windows with enough events.
            short = max(1.0, math.sqrt(LEAST_GAIN / (figures.events * usual)))
            most = ndcg.bound(figures.error(usual), least, short)
            if ndcg.mean - figures.level > most:
                return (
                    f"NDCG@{figures.top} {figures.ndcg:.4f} over {figures.events:,} events ranked before they were"
                    f" learned, usually {usual:.4f}: expected a fall of at most {-math.expm1(-most):.0%}"
                )
            if reason := self._lost_lift(figures, usual - figures.ndcg, short):
                return reason
        if figures.fall is not None and earlier.is_known:
            most = earlier.bound(figures.fall_error, least)
            if figures.fall - earlier.mean > most:
                return (
                    f"the NDCG@{figures.top} of earlier events fell by {-math.expm1(-figures.fall):.0%}:"
                    f" expected a fall of at most {-math.expm1(-most):.0%}"
                )
        return ""

    def _lost_lift(self, figures: RankFigures, fall: float, short: float) -> str:
        """Return what is wrong if the lift has gone, or ""; `fall` is that of the NDCG, `short` as for bound()."""
        lift = self._usual["lift"]
        if figures.lift is None or not lift.is_known or lift.mean <= 0:
            return ""
        most = lift.bound(figures.lift_error, LOST_LIFT * lift.mean, short)
        if min(lift.mean - figures.lift, fall) <= most:
            return ""
        return (
            f"NDCG@{figures.top} is {figures.lift:+.4f} from that of popularity alone over {figures.events:,} events"
            f" ranked before they were learned, usually {lift.mean:+.4f}: expected at least {lift.mean - most:+.4f}"
        )


class WindowRanks:
    """Gains of the events since the last window that was judged; `top` places count."""

    def __init__(self, top: int = 10) -> None:
        self.top, self._gain, self._events, self._unranked = top, 0.0, 0, 0
        self._fall: tuple[float, float] | None = None
        # Of the differences to the gains by popularity: sum, sum of squares, number.
        self._lift = np.zeros(3)

    def add(self, gains: Float64s) -> None:
        """Add events by their share of the NDCG before training, float64 [n], NaN for an item without a row.

        Or [n, 2] with the share by popularity alone, NaN for an event not ranked by it.
        """
        if gains.ndim == 2:
            lift = gains[:, 0] - gains[:, 1]
            lift = lift[~np.isnan(lift)]
            self._lift += (lift.sum(), (lift**2).sum(), len(lift))
            gains = gains[:, 0]
        ranked = ~np.isnan(gains)
        self._gain += float(gains[ranked].sum())
        self._events += int(ranked.sum())
        self._unranked += int(len(gains) - ranked.sum())

    def again(self, before: Float64s, now: Float64s) -> None:
        """Record the effect of a delta on the gains [n] of earlier events; NaN for those without a rank."""
        both = ~(np.isnan(before) | np.isnan(now))
        old, new = before[both], now[both]
        if not len(old) or old.mean() < LEAST_NDCG:
            return
        error = float((new - old).std()) / math.sqrt(len(old)) / float(old.mean())
        self._fall = math.log(float(old.mean()) / max(float(new.mean()), LEAST_NDCG)), error

    def figures(self) -> RankFigures:
        """Return the figures of the events so far."""
        every, (fall, fall_error) = self._events + self._unranked, self._fall or (None, 0.0)
        ndcg = self._gain / self._events if self._events else math.nan
        new = self._unranked / every if every else 0.0
        total, squares, count = self._lift.tolist()
        lift = total / count if count else None
        error = math.sqrt(max(0.0, squares / count - (total / count) ** 2) / count) if count else 0.0
        return RankFigures(self._events, ndcg, new, fall, fall_error, self.top, self._unranked, lift, error)
