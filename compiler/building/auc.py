"""Area under the ROC curve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]


def auc(labels: NDArray[np.float32], scores: NDArray[np.float32], weights: NDArray[Any] | None = None) -> float:
    """Probability that a positive outranks a negative, ties counting half; NaN when a class is missing.

    weights: a pair counts as much as the product of its rows' weights; None: every pair once.
    """
    if not len(labels):
        return float("nan")
    positive = labels > 0.5
    counted = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    distinct, place = np.unique(scores, return_inverse=True)
    ones: Any = np.bincount(place, np.where(positive, counted, 0.0), len(distinct))
    zeros: Any = np.bincount(place, np.where(positive, 0.0, counted), len(distinct))
    return float(aucs(ones, zeros, np.zeros(1, np.int64))[0])


def aucs(positive: Float64s, negative: Float64s, firsts: NDArray[np.int64]) -> Float64s:
    """The AUC of each run of entries: run i is [firsts[i], firsts[i + 1]); NaN where it lacks a class.

    positive, negative [m]: the weight of each at a distinct score, ascending within a run. firsts: ascending, from 0.
    """
    # What lies below each entry within its own run.
    below = np.cumsum(negative) - negative
    lengths = np.diff(firsts, append=len(negative))
    below -= np.repeat(below[firsts], lengths)
    won = np.add.reduceat(positive * (below + negative / 2), firsts)
    pairs = np.add.reduceat(positive, firsts) * np.add.reduceat(negative, firsts)
    found: Float64s = np.full(len(firsts), np.nan)
    np.divide(won, pairs, out=found, where=pairs > 0)
    return found
