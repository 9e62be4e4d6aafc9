"""Judge whether weights trained on a window of a stream may be served. Pure: figures in, a verdict out.

Test, then train: each row of a window is scored before training on it. The AUC of these scores shows whether labels
depend on rows, the mean score over the mean label how far the model is off. Before a delta is published, rows from
before the window are scored again: weights that a bad step has disturbed fit them worse.

A figure is abnormal if it differs from its running mean by more than a multiple of its spread and by more than a
minimum ([guard]). The spread is that between windows or, for a small window, the sampling error of its size. Abnormal
windows do not update the usual figures; released ones do.

The first windows are compared with the full version's held-out rows, which begin_with() counts as one window. Their
sampling error is part of each bound and shrinks with every window. So labels inverted from the first row on are held,
and a window slightly worse than 100 held-out rows is not.

A window that all but lacks a label which the scores expect is held whatever its spread: such rows come from a broken
join or a lost stream of clicks, and have no AUC. A window with too few rows is extended to the next delta and does not
update the usual figures; it is held only if it is abnormal beyond its own sampling error.

Rejected: fixed bounds alone (an AUC that moves by 0.05 is a catastrophe in one stream and an hour of the day in
another); a statistical test of each window alone (of 2,000 good ones, none may be held); learning what is usual from
the first windows alone (bad rows that come first would be usual).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.evaluation.quality import ScoredRows

MOST_AUC_ERROR = 0.02
"""Largest sampling error of the AUC of uninformative scores; a window with fewer rows is extended."""
MEMORY_WINDOWS = 50
SIGMAS = 6.0
"""A figure is abnormal if it is off by this many times its usual spread."""
FIRST_WINDOWS = 5
"""Without held-out rows, so many first windows are used only to learn what is normal."""
MISSING_SHARE, LEAST_EXPECTED = 0.05, 36.0
"""A label is missing if at most this share of its expected number is seen, and at least so many are expected: six
times the sampling error of a count."""
FIRST_SPREAD = {"auc": 0.02, "calibration": 0.2, "loss": 0.1}
"""Initial spread of each figure, with the weight of one window."""

LEAST_SCORE = 1e-7
"""Probabilities are clipped to [LEAST_SCORE, 1 - LEAST_SCORE] in a log-loss."""

Floats = NDArray[np.float32]
Float64s = NDArray[np.float64]


@dataclass(slots=True)
class RunningSpread:
    """Running mean and spread of a figure over about MEMORY_WINDOWS windows.

    `compared` says that the mean starts from a figure known before the stream.
    """

    spread: float
    windows: int = 0
    mean: float = 0.0
    mean_error: float = 0.0
    compared: bool = False
    _square: float = field(init=False)

    def __post_init__(self) -> None:
        self._square = self.spread**2

    def note(self, value: float, error: float) -> None:
        """Add the figure of one window, with its sampling error."""
        self.windows += 1
        share = 1 / min(self.windows, MEMORY_WINDOWS)
        off = value - self.mean if self.windows > 1 else 0.0
        self.mean += share * (value - self.mean)
        self.mean_error = math.hypot((1 - share) * self.mean_error, share * max(self.spread, error))
        self._square += (off**2 - self._square) / min(self.windows + 1, MEMORY_WINDOWS)
        self.spread = math.sqrt(self._square)

    def begin_with(self, value: float, error: float) -> None:
        """Start from a figure that is known before the first window, with the weight of one window."""
        self.windows, self.mean, self.mean_error, self.compared = 1, value, error, True

    @property
    def is_known(self) -> bool:
        """True if there are enough windows to judge by."""
        return self.compared or self.windows >= FIRST_WINDOWS

    def bound(self, error: float, least: float, shortness: float = 1.0) -> float:
        """Return how far from the mean a window may be.

        The spread includes the sampling error of other windows, so the larger of the two counts.

        Args:
            error: Sampling error of the window, if its rows were independent.
            least: Minimum bound.
            shortness: As in WindowFigures. Rows come in clusters (a user's session), which the spread of whole windows
                includes and `error` does not; a shorter window has fewer clusters.
        """
        return max(least, SIGMAS * math.hypot(max(self.spread * shortness, error), self.mean_error))


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """A window's figures.

    Attributes:
        auc: AUC of its rows, scored before training on them.
        calibration: Logarithm of the mean score over the mean label, of the same scores.
        rise: Relative rise of the log-loss of earlier rows under the new weights; None without such rows.
        lost: Number of scores that are not finite.
        shortness: Sampling error of its AUC relative to that of a window with enough rows; at least 1.
        label: Sum of the labels, and likewise of scores and weights.
    """

    rows: int
    auc: float
    auc_error: float
    calibration: float
    calibration_error: float
    rise: float | None
    rise_error: float
    lost: int = 0
    shortness: float = 1.0
    label: float = 0.0
    score: float = 0.0
    weight: float = 0.0

    @property
    def enough(self) -> bool:
        """True if the window has enough rows to update the usual figures."""
        return self.shortness <= 1

    @property
    def shown(self) -> dict[str, Any]:
        """The figures as a run's status has them."""
        return {"window_auc": self.auc, "window_calibration": math.exp(self.calibration)}


class Figures(Protocol):
    """Figures of a window, of rows with labels (WindowFigures) or of events (models.training.rank_guard)."""

    @property
    def enough(self) -> bool: ...
    @property
    def shown(self) -> dict[str, Any]: ...


F = TypeVar("F", bound=Figures)


class WindowVerdicts(ABC, Generic[F]):
    """The verdicts of one run by any figures; `reason` says why the newest window was abnormal, or is ""."""

    first_spread: Mapping[str, float]

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._in_line = 0
        self.reset()

    @abstractmethod
    def begin_with(self, held_out: F) -> None:
        """Compare the first windows with the full version's held-out rows."""

    @abstractmethod
    def _out_of_line(self, figures: F) -> str:
        """Return what is abnormal; "" for nothing."""

    @abstractmethod
    def _note(self, figures: F) -> None:
        """Add the figures to the usual ones."""

    def judge(self, figures: F) -> str:
        """Return why a window's delta is to be held; "" if it is not."""
        reason = self._out_of_line(figures)
        if not reason and not figures.enough:
            return ""
        self.reason = reason
        self._in_line = 0 if reason else self._in_line + 1
        if not reason:
            self._note(figures)
        return reason

    def may_release(self) -> bool:
        """Return True if enough windows since the hold were normal."""
        windows = self._config.release_windows
        return windows > 0 and self._in_line >= windows

    def reset(self) -> None:
        """Forget the usual figures after an operator's release: what was abnormal may be usual from now on."""
        self._usual = {name: RunningSpread(spread) for name, spread in self.first_spread.items()}
        self.reason, self._in_line = "", 0

    def saved(self) -> dict[str, list[float]]:
        """Return the usual figures, JSON-able."""
        return {
            name: [usual.windows, usual.mean, usual.spread, usual.mean_error, float(usual.compared)]
            for name, usual in self._usual.items()
        }

    def restore(self, saved: Mapping[str, Sequence[float]]) -> None:
        """Restore the output of saved(); older checkpoints have three numbers for each figure."""
        for name in self._usual.keys() & saved.keys():
            windows, mean, spread, *more = saved[name]
            mean_error, compared = more or (0.0, 0.0)
            self._usual[name] = RunningSpread(spread, int(windows), mean, mean_error, bool(compared))


class WindowGuard(WindowVerdicts[WindowFigures]):
    """The verdicts of one run by the scores of labelled rows."""

    first_spread = FIRST_SPREAD

    def begin_with(self, held_out: WindowFigures) -> None:
        """Compare the first windows with the held-out rows, unless these are none or have one label."""
        if held_out.rows and math.isfinite(held_out.auc) and not held_out.lost:
            self._usual["auc"].begin_with(held_out.auc, held_out.auc_error)
            self._usual["calibration"].begin_with(held_out.calibration, held_out.calibration_error)
            self._usual["loss"].begin_with(0.0, 0.0)

    def _note(self, figures: WindowFigures) -> None:
        self._usual["auc"].note(figures.auc, figures.auc_error)
        self._usual["calibration"].note(figures.calibration, figures.calibration_error)
        if figures.rise is not None:
            self._usual["loss"].note(figures.rise, figures.rise_error)

    def _out_of_line(self, figures: WindowFigures) -> str:
        config, usual, short = self._config, self._usual, figures.shortness
        if figures.lost:
            return f"{figures.lost:,} of {figures.rows:,} scores are not numbers"
        if usual["auc"].is_known:
            auc, calibration = usual["auc"], usual["calibration"]
            drop, most = auc.mean - figures.auc, auc.bound(figures.auc_error, config.auc_drop, short)
            if drop > most:
                return (
                    f"AUC {figures.auc:.4f} over {figures.rows:,} rows scored before training on them,"
                    f" usually {auc.mean:.4f}: expected a drop of at most {most:.4f}"
                )
            if reason := _missing_label(figures, calibration.mean):
                return reason
            off = abs(figures.calibration - calibration.mean)
            most = calibration.bound(figures.calibration_error, math.log1p(config.calibration), short)
            if off > most:
                return (
                    f"mean score {math.exp(figures.calibration):.3f} times the mean label over {figures.rows:,} rows"
                    f" scored before training on them, usually {math.exp(calibration.mean):.3f} times:"
                    f" expected a deviation of at most {math.expm1(most):.0%}"
                )
        loss = usual["loss"]
        if figures.rise is not None and loss.is_known:
            most = loss.bound(figures.rise_error, config.loss_rise)
            if figures.rise - loss.mean > most:
                return (
                    f"the log-loss of earlier rows rose by {figures.rise:.0%}, usually by {loss.mean:.1%}:"
                    f" expected at most {most:.0%} more"
                )
        return ""


def _missing_label(figures: WindowFigures, usual: float) -> str:
    """Return an error if a label is all but missing, or ""; `usual` is the logarithm of the usual calibration."""
    ones = min(figures.score * math.exp(-usual), figures.weight)
    for name, seen, expected in (
        ("above 0", figures.label, ones),
        ("below 1", figures.weight - figures.label, figures.weight - ones),
    ):
        if expected >= LEAST_EXPECTED and seen <= MISSING_SHARE * expected:
            return f"{seen:,.0f} of {figures.rows:,} labels are {name}: expected about {expected:,.0f}"
    return ""


class WindowScores:
    """Scores of the rows since the last window that was judged."""

    def __init__(self) -> None:
        self._scored = ScoredRows()
        self._rows = self._lost = 0
        self._positive = self._negative = self._score = self._label = self._weight = self._chance = 0.0
        self._rise: tuple[float, float] | None = None

    def add(self, labels: Floats, scores: Floats, weights: Floats | None) -> None:
        """Add rows that were scored before training on them; the first of several labels counts."""
        label, score = _first(labels), _first(scores)
        sound = np.isfinite(score)
        self._scored.add(label, score, weights)
        self._rows += len(label)
        self._lost += int(len(score) - np.count_nonzero(sound))
        label, score = label[sound].astype(np.float64), score[sound].astype(np.float64)
        weight = np.ones(len(label)) if weights is None else weights[sound].astype(np.float64)
        self._positive += float(np.minimum(weight, 1) @ label)
        self._negative += float(np.minimum(weight, 1) @ (1 - label))
        self._score += float(weight @ score)
        self._label += float(weight @ label)
        self._weight += float(weight.sum())
        self._chance += float(weight**2 @ (score * (1 - score)))

    def again(self, labels: Floats, before: Floats, now: Floats) -> None:
        """Record a delta's effect on rows from before its window: scores by the served weights, and by the new ones."""
        old, new = row_losses(labels, before), row_losses(labels, now)
        level = max(1e-6, float(old.mean()))
        rise = float((new - old).mean()) / level
        # Sampling error: the effect of redrawing the labels of the same rows on the same change of scores.
        score, moved = _first(before).astype(np.float64), _log_odds(_first(now)) - _log_odds(_first(before))
        error = math.sqrt(float(np.mean(score * (1 - score) * moved**2)) / len(old)) / level
        self._rise = (rise, error) if math.isfinite(rise) else (math.inf, 0.0)

    def figures(self) -> WindowFigures:
        """Return the figures of the rows so far; with few rows the sampling errors are large."""
        auc = self._scored.auc()
        of_chance = auc_error(0.5, self._positive, self._negative)
        shortness = max(1.0, of_chance / MOST_AUC_ERROR)
        rise, rise_error = self._rise or (None, 0.0)
        score, label = max(self._score, 1e-9), max(self._label, 1e-9)
        error = auc_error(auc, self._positive, self._negative)
        return WindowFigures(
            self._rows,
            auc,
            # The formula's error of an AUC of 0 or 1 is 0, however few rows there are.
            error if shortness <= 1 else max(error, of_chance),
            math.log(score / label),
            math.sqrt(self._chance) / min(score, label),
            rise,
            rise_error,
            self._lost,
            shortness,
            self._label,
            self._score,
            self._weight,
        )


def auc_error(auc: float, positive: float, negative: float) -> float:
    """Return the standard error of an AUC of so many positive and negative rows (Hanley and McNeil 1982)."""
    if not (positive >= 1 and negative >= 1 and 0 <= auc <= 1):
        return 1.0
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positive - 1) * (q1 - auc**2) + (negative - 1) * (q2 - auc**2)
    return math.sqrt(max(0.0, variance) / (positive * negative))


def row_losses(labels: Floats, scores: Floats) -> Float64s:
    """Return the negative log-likelihood of each row, [n], by its first label."""
    label, score = _first(labels).astype(np.float64), _probabilities(scores)
    losses: Float64s = -(label * np.log(score) + (1 - label) * np.log1p(-score))
    return losses


def _first(array: Floats) -> Floats:
    return array[:, 0] if array.ndim == 2 else array


def _probabilities(scores: Floats) -> Float64s:
    clipped: Float64s = np.clip(_first(scores).astype(np.float64), LEAST_SCORE, 1 - LEAST_SCORE)
    return clipped


def _log_odds(scores: Floats) -> Float64s:
    score = _probabilities(scores)
    log_odds: Float64s = np.log(score / (1 - score))
    return log_odds
