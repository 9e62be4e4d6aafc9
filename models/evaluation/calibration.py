"""How far predicted probabilities are from what happened, by decile of the score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from freshet_serving.models.evaluation.tally import Entries

DECILES = 10


@dataclass(frozen=True, slots=True)
class Decile:
    """Neighbouring scores of about a tenth of the weight. low, high: the least and the greatest of them. predicted,
    observed: the mean score, and the share of labels that are 1."""

    rows: int
    weight: float
    low: float
    high: float
    predicted: float
    observed: float


def deciles(counts: Entries) -> list[Decile]:
    """By ascending score; rows of one score are never divided, so there may be fewer than ten. Keys do not matter.

    The deciles have equal mass and not equal width: CTRs crowd at one end (Nguyen and O'Connor 2015).
    """
    total = float(counts.weight.sum())
    if total <= 0:
        return []
    order = np.argsort(counts.ranks, kind="stable")
    weight, positive = counts.weight[order], counts.positive[order]
    predicted, rows, scores = counts.predicted[order], counts.rows[order], counts.scores[order]
    # An entry belongs where its middle falls.
    middle = (np.cumsum(weight) - weight / 2) / total
    at = np.minimum((middle * DECILES).astype(np.int64), DECILES - 1)
    made = []
    for part in np.unique(at[weight > 0]):
        inside = (at == part) & (weight > 0)
        mass = float(weight[inside].sum())
        made.append(
            Decile(
                int(rows[inside].sum()),
                mass,
                float(scores[inside][0]),
                float(scores[inside][-1]),
                float(predicted[inside].sum() / mass),
                float(positive[inside].sum() / mass),
            )
        )
    return made


def expected_calibration_error(parts: list[Decile]) -> float:
    """The mean distance between predicted and observed over the deciles, by weight (Naeini et al. 2015); NaN without
    one."""
    total = sum(part.weight for part in parts)
    return sum(part.weight * abs(part.predicted - part.observed) for part in parts) / total if total else float("nan")
