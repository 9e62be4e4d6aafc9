"""Compute AUC, log-loss and calibration of predicted probabilities incrementally."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.calibration import Decile, deciles
from freshet_serving.models.evaluation.tally import Entries, ScoreTally

HARDLY_CHANCE = 0.52
FEW_STEPS = 100


@dataclass(slots=True)
class ScoredRows:
    """Labels and scores collected row by row, for metrics over all rows or the newest ones.

    Exact for up to a million distinct scores. Beyond that, scores lose low bits, and auc_error() bounds the error.
    Memory is bounded (models.evaluation.tally). With several labels, only the first counts.
    """

    tally: ScoreTally = field(default_factory=ScoreTally)

    def add(
        self, labels: NDArray[np.float32], scores: NDArray[np.float32], weights: NDArray[np.float32] | None = None
    ) -> None:
        """Add n rows, labels and scores [n] or [n, labels]."""
        first_label, first_scores = (array[:, 0] if array.ndim == 2 else array for array in (labels, scores))
        self.tally.add(first_label, first_scores, weights)

    def __len__(self) -> int:
        return self.tally.rows + self.tally.lost

    def auc(self, newest: int = 0) -> float:
        """Return the AUC over all rows, or over the `newest` rows (at most about 250,000)."""
        aucs = self._counts(newest).aucs()
        return float(aucs[0]) if len(aucs) else float("nan")

    def auc_error(self) -> float:
        """Return the largest error of auc() over all rows caused by merged scores; 0 while it is exact."""
        if not self.tally.bits:
            return 0.0
        counts = self._counts()
        negative = counts.weight - counts.positive
        pairs = float(counts.positive.sum() * negative.sum())
        return float((counts.positive * negative).sum() / 2 / pairs) if pairs else 0.0

    def log_loss(self) -> float:
        """Return the weighted mean negative log-likelihood (natural log); NaN without rows or outside [0, 1]."""
        counts = self._counts()
        weight = float(counts.weight.sum())
        return float(counts.losses().sum() / weight) if weight else float("nan")

    def deciles(self) -> list[Decile]:
        return deciles(self._counts())

    def _counts(self, newest: int = 0) -> Entries:
        return self.tally.newest(newest) if newest else self.tally.counts()


def next_step(scored: ScoredRows, steps: int, named: Sequence[str]) -> str:
    """Return one line of advice about a held-out AUC that is NaN or hardly better than chance, or "".

    `named` are settings that the training file sets although they could be chosen automatically.
    """
    auc = scored.auc()
    if scored.tally.lost:
        return (
            f"{scored.tally.lost:,} of the {len(scored):,} held-out rows have a score that is not a number: train again"
            " with --new-version --from-scratch and lower rates, or with train.clip_norm and train.dense_clip_norm"
        )
    if math.isnan(auc):
        return (
            f"the {len(scored):,} held-out rows all have the same label, so there is no AUC: hold out more"
            " rows (train.holdout), or check data.label"
        )
    if auc >= HARDLY_CHANCE:
        return ""
    guess, again = (
        f"an AUC under {HARDLY_CHANCE} is hardly better than chance",
        "train again with --new-version --from-scratch",
    )
    if named:
        return f"{guess}: remove {', '.join(named)}, so that the data determine the values, and {again}"
    if steps < FEW_STEPS:
        return f"{guess}, after {steps} steps: {again} --set train.epochs=5, or more rows"
    return (
        f"{guess}: check that data.label is the right column and that the features can predict it"
        " (docs/how-to/train.md#defaults)"
    )
