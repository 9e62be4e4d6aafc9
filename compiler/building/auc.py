"""Compute the area under the ROC curve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]


def auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Return the probability that a positive (label 1) outranks a negative (0), ties counting half, or NaN."""
    if not len(labels):
        return float("nan")
    positive = labels > 0.5
    distinct, place = np.unique(scores, return_inverse=True)
    ones: Any = np.bincount(place, positive, len(distinct))
    zeros: Any = np.bincount(place, ~positive, len(distinct))
    return float(aucs(ones, zeros, np.zeros(1, np.int64))[0])


def aucs(positive: Float64s, negative: Float64s, firsts: NDArray[np.int64]) -> Float64s:
    """Return the AUC of each run of entries; NaN if it lacks a class.

    Args:
        positive: float64 [m], the weight of positives at each distinct score, ascending within a run.
        negative: float64 [m], that of negatives.
        firsts: int64, ascending from 0; run i is [firsts[i], firsts[i + 1]).
    """
    # The weight of negatives below each entry within its own run.
    below = np.cumsum(negative) - negative
    lengths = np.diff(firsts, append=len(negative))
    below -= np.repeat(below[firsts], lengths)
    won = np.add.reduceat(positive * (below + negative / 2), firsts)
    pairs = np.add.reduceat(positive, firsts) * np.add.reduceat(negative, firsts)
    areas: Float64s = np.full(len(firsts), np.nan)
    np.divide(won, pairs, out=areas, where=pairs > 0)
    return areas
