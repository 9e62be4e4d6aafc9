"""Judges windows of a stream: whether what was learned of them may be served. Pure: figures in, a verdict out.

Test, then train: each row of a window is scored by the weights as they are before it is learned. So its AUC says
whether its labels have to do with its rows, and its mean score over its mean label how far the model is off. And before
a delta is published, rows of the window before are scored again: weights that a step has thrown about know less of
them than they did.

A figure is out of line where it is off from its running mean by more than so many times its spread, which is what it
has been from window to window or, of a small window, what chance does to one of its size, and by more than a share
below which nothing is ever held ([guard]). Windows that are out of line teach nothing, so that what is usual does not
follow them; what has been released does. A window of too few rows to tell waits for the next one's.

Refused: fixed bounds alone (an AUC that moves by 0.05 is a catastrophe in one stream and an hour of the day in
another); a test of each window alone (of 2,000 good ones, none may be held).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from models.config.guard_section import GuardConfig
from models.evaluation.quality import Scored

MOST_AUC_ERROR = 0.02
"""What chance may move the AUC of a window by whose scores say nothing; one of fewer rows waits for the next one's."""
MEMORY_WINDOWS = 50
FIRST_SPREAD = {"auc": 0.05, "calibration": 0.2, "loss": 0.1}
"""What a figure's spread is taken for before there are windows, with the weight of one."""

Floats = NDArray[np.float32]


@dataclass(slots=True)
class RunningSpread:
    """What a figure usually is: a running mean and spread over about MEMORY_WINDOWS windows."""

    spread: float
    windows: int = 0
    mean: float = 0.0
    _square: float = field(init=False)

    def __post_init__(self) -> None:
        self._square = self.spread**2

    def note(self, value: float) -> None:
        self.windows += 1
        share = 1 / min(self.windows, MEMORY_WINDOWS)
        off = value - self.mean if self.windows > 1 else 0.0
        self.mean += share * (value - self.mean)
        self._square += (off**2 - self._square) / min(self.windows + 1, MEMORY_WINDOWS)
        self.spread = math.sqrt(self._square)

    def bound(self, config: GuardConfig, error: float, least: float) -> float:
        """How far off a value may be that chance alone moves by `error`: the spread has what chance did to others."""
        return max(least, config.sigmas * max(self.spread, error))


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """A window's figures. auc, calibration: of its rows before they were learned, calibration the logarithm of the mean
    score over the mean label; with what chance alone moves each by. rise: of the log-loss of earlier rows by the new
    weights, as a share, None where there were none."""

    rows: int
    auc: float
    auc_error: float
    calibration: float
    calibration_error: float
    rise: float | None
    rise_error: float
    lost: int = 0


class WindowGuard:
    """Of one run. reason: why the newest window was out of line, "" where it was not."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._in_line = 0
        self.begin_anew()

    def judge(self, figures: WindowFigures) -> str:
        """Why a window's delta is to be held; "" where it is not."""
        self.reason = reason = self._out_of_line(figures)
        self._in_line = 0 if reason else self._in_line + 1
        if not reason:
            self._usual["auc"].note(figures.auc)
            self._usual["calibration"].note(figures.calibration)
            if figures.rise is not None:
                self._usual["loss"].note(figures.rise)
        return reason

    def resolves(self) -> bool:
        """Whether what is held may be served after all: enough windows since were in line."""
        wanted = self._config.release_windows
        return wanted > 0 and self._in_line >= wanted

    def begin_anew(self) -> None:
        """Somebody has released what was held: what was out of line may be usual from now on."""
        self._usual = {name: RunningSpread(spread) for name, spread in FIRST_SPREAD.items()}
        self.reason, self._in_line = "", 0

    def saved(self) -> dict[str, list[float]]:
        """What is usual, JSON-able."""
        return {name: [usual.windows, usual.mean, usual.spread] for name, usual in self._usual.items()}

    def restore(self, saved: Mapping[str, Sequence[float]]) -> None:
        """Goes on with what saved() gave."""
        for name in self._usual.keys() & saved.keys():
            windows, mean, spread = saved[name]
            self._usual[name] = RunningSpread(spread, int(windows), mean)

    def _out_of_line(self, figures: WindowFigures) -> str:
        config, usual = self._config, self._usual
        if figures.lost:
            return f"{figures.lost:,} of {figures.rows:,} scores are no numbers"
        if usual["auc"].windows >= config.first_windows:
            auc, calibration = usual["auc"], usual["calibration"]
            drop, most = auc.mean - figures.auc, auc.bound(config, figures.auc_error, config.auc_drop)
            if drop > most:
                return (
                    f"AUC {figures.auc:.4f} over {figures.rows:,} rows before they were learned,"
                    f" usually {auc.mean:.4f}: at most {most:.4f} less wanted"
                )
            off = abs(figures.calibration - calibration.mean)
            most = calibration.bound(config, figures.calibration_error, math.log1p(config.calibration))
            if off > most:
                return (
                    f"mean score {math.exp(figures.calibration):.3f} times the mean label over {figures.rows:,} rows"
                    f" before they were learned, usually {math.exp(calibration.mean):.3f} times:"
                    f" at most {math.expm1(most):.0%} off wanted"
                )
        loss = usual["loss"]
        if figures.rise is not None and loss.windows >= config.first_windows:
            most = loss.bound(config, figures.rise_error, config.loss_rise)
            if figures.rise - loss.mean > most:
                return (
                    f"the log-loss of rows learned before rose by {figures.rise:.0%}, usually by {loss.mean:.1%}:"
                    f" at most {most:.0%} more wanted"
                )
        return ""


class WindowScores:
    """What is known of the rows since the last window that was judged."""

    def __init__(self) -> None:
        self._scored = Scored()
        self._rows = self._lost = 0
        self._positive = self._negative = self._score = self._label = self._chance = 0.0
        self._rise: tuple[float, float] | None = None

    def add(self, labels: Floats, scores: Floats, weights: Floats | None) -> None:
        """Rows that were scored before they were learned; of several labels the first counts."""
        label, score = (array[:, 0] if array.ndim == 2 else array for array in (labels, scores))
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
        self._chance += float(weight**2 @ (score * (1 - score)))

    def again(self, before: Floats, now: Floats) -> None:
        """Losses [n] of the same earlier rows, by the weights that are served and by those that are to be."""
        level = max(1e-6, float(before.mean()))
        rises = (now.astype(np.float64) - before) / level
        mean = float(rises.mean())
        self._rise = (mean if math.isfinite(mean) else math.inf, float(rises.std()) / math.sqrt(len(rises)))

    def figures(self) -> WindowFigures | None:
        """None where there are too few rows to judge by."""
        if auc_error(0.5, self._positive, self._negative) > MOST_AUC_ERROR and not self._lost:
            return None
        auc = self._scored.auc()
        rise, rise_error = self._rise or (None, 0.0)
        return WindowFigures(
            self._rows,
            auc,
            auc_error(auc, self._positive, self._negative),
            math.log(max(self._score, 1e-9) / max(self._label, 1e-9)),
            math.sqrt(self._chance) / max(self._label, 1e-9),
            rise,
            rise_error,
            self._lost,
        )


def auc_error(auc: float, positive: float, negative: float) -> float:
    """The standard error of an AUC of so many rows of each label (Hanley and McNeil 1982)."""
    if not (positive >= 1 and negative >= 1 and 0 <= auc <= 1):
        return 1.0
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positive - 1) * (q1 - auc**2) + (negative - 1) * (q2 - auc**2)
    return math.sqrt(max(0.0, variance) / (positive * negative))


def row_losses(labels: Floats, scores: Floats) -> Floats:
    """The negative log-likelihood of each row, [n]; of several labels the first counts."""
    label, score = (array[:, 0] if array.ndim == 2 else array for array in (labels, scores))
    score = np.clip(score.astype(np.float64), 1e-7, 1 - 1e-7)
    losses: Floats = -(label * np.log(score) + (1 - label) * np.log1p(-score)).astype(np.float32)
    return losses
