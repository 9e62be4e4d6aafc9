"""Compare predicted probabilities with observed labels, by decile of the score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from freshet_serving.models.evaluation.tally import Entries

DECILES = 10


@dataclass(frozen=True, slots=True)
class Decile:
    """Neighbouring scores, from `low` to `high`, that hold about a tenth of the total weight.

    `predicted` is the weighted mean score, `observed` the weighted share of labels that are 1.
    """

    rows: int
    weight: float
    low: float
    high: float
    predicted: float
    observed: float


def deciles(counts: Entries) -> list[Decile]:
    """Return the deciles by ascending score; keys are ignored.

    Rows of one score stay together, so there may be fewer than ten. They have equal mass rather than equal width,
    because CTRs crowd at one end (Nguyen and O'Connor 2015).
    """
    total = float(counts.weight.sum())
    if total <= 0:
        return []
    order = np.argsort(counts.ranks, kind="stable")
    weight, positive = counts.weight[order], counts.positive[order]
    predicted, rows, scores = counts.predicted[order], counts.rows[order], counts.scores[order]
    # Assign an entry to the decile that contains its middle.
    middle = (np.cumsum(weight) - weight / 2) / total
    at = np.minimum((middle * DECILES).astype(np.int64), DECILES - 1)
    parts = []
    for part in np.unique(at[weight > 0]):
        inside = (at == part) & (weight > 0)
        mass = float(weight[inside].sum())
        parts.append(
            Decile(
                int(rows[inside].sum()),
                mass,
                float(scores[inside][0]),
                float(scores[inside][-1]),
                float(predicted[inside].sum() / mass),
                float(positive[inside].sum() / mass),
            )
        )
    return parts


def expected_calibration_error(parts: list[Decile]) -> float:
    """Return the weighted mean distance of predicted and observed over the deciles (Naeini et al. 2015), or NaN."""
    total = sum(part.weight for part in parts)
    return sum(part.weight * abs(part.predicted - part.observed) for part in parts) / total if total else float("nan")
