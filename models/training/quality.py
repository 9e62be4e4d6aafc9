"""AUC and log-loss of predicted probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.building.auc import auc

CLIP = 1e-7
HARDLY_CHANCE = 0.52
FEW_STEPS = 100


def log_loss(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Mean negative log-likelihood, natural log; NaN without rows."""
    if not len(labels):
        return float("nan")
    p = np.clip(scores.astype(np.float64), CLIP, 1 - CLIP)
    return float(-np.mean(np.where(labels > 0.5, np.log(p), np.log(1 - p))))


@dataclass(slots=True)
class Scored:
    """Labels and scores collected row by row, [n] or [n, labels], for metrics over all of them or over the newest."""

    labels: list[NDArray[np.float32]] = field(default_factory=list)
    scores: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, labels: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        for kept, added in ((self.labels, labels), (self.scores, scores)):
            kept.append(added.astype(np.float32).reshape(len(added), *added.shape[1:] or (1,)))

    def __len__(self) -> int:
        return sum(len(part) for part in self.labels)

    def auc(self, newest: int = 0, label: int = 0) -> float:
        """AUC over all rows, or over the newest so many; of the first label, or of another."""
        if not self.labels:
            return float("nan")
        return auc(*(np.concatenate(parts)[-newest:, label] for parts in (self.labels, self.scores)))

    def log_loss(self, label: int = 0) -> float:
        if not self.labels:
            return float("nan")
        return log_loss(*(np.concatenate(parts)[:, label] for parts in (self.labels, self.scores)))


def next_step(scored: Scored, steps: int, named: Sequence[str]) -> str:
    """One line that says what to do about a held-out AUC that is nan or hardly chance; "" for any other.

    steps: that the training took. named: what the training file says itself of what can be chosen for it.
    """
    auc = scored.auc()
    if math.isnan(auc):
        return (
            f"the {len(scored):,} held-out rows have one label all, so there is no AUC: hold out more rows"
            " (train.holdout), or see what data.label holds"
        )
    if auc >= HARDLY_CHANCE:
        return ""
    guess, again = f"an AUC under {HARDLY_CHANCE} is a guess", "train again with --new-version --from-scratch"
    if named:
        return f"{guess}: leave out {', '.join(named)}, which are then chosen by the data, and {again}"
    if steps < FEW_STEPS:
        return f"{guess}, after {steps} steps: {again} --set train.epochs=5, or more rows"
    return (
        f"{guess}: see whether data.label is the column you mean, and whether the features can tell it"
        " (docs/choosing.md)"
    )
