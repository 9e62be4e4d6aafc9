"""Area under the ROC curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Probability that a positive outranks a negative, ties counting half; NaN when a class is missing."""
    positive = labels > 0.5
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[place][positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))
