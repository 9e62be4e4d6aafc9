"""Drift of the inputs of requests from those of a reference: a stability index for each input. Pure.

Numbers with a fraction are compared in PARTS parts of about equal mass of both samples together, with a part of their
own for NaN; ids and words by their most frequent values, all others together. Empty lists have no values. The index is
the population stability index, as that of scores (processor.watching.sketch): 0 for equal distributions, above 0.25 a
significant shift. Samples of a few hundred values differ by 0.1 by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings

PARTS = 10
LEAST_VALUES = 64


def input_shifts(before: Sequence[Mapping[str, Column]], after: Sequence[Mapping[str, Column]]) -> dict[str, float]:
    """Return the stability index of each input of which both samples of requests have LEAST_VALUES values."""
    names = {name for request in before for name in request} & {name for request in after for name in request}
    drifts = {}
    for name in sorted(names):
        old, new = (np.concatenate([_values(r[name]) for r in requests if name in r]) for requests in (before, after))
        if min(len(old), len(new)) >= LEAST_VALUES and old.dtype.kind == new.dtype.kind:
            drifts[name] = _index(old, new)
    return drifts


def _values(column: Column) -> NDArray[Any]:
    if isinstance(column, Ragged):
        return _values(column.values)
    return np.array(column.tolist(), object) if isinstance(column, Strings) else column.reshape(-1)


def _index(old: NDArray[Any], new: NDArray[Any]) -> float:
    both = np.concatenate([old, new])
    if both.dtype.kind == "f":
        numbers = both[~np.isnan(both)]
        edges = np.unique(np.quantile(numbers, np.arange(1, PARTS) / PARTS)) if len(numbers) else numbers
        part = np.where(np.isnan(both), len(edges) + 1, np.searchsorted(edges, both))
    else:
        _, kind, counts = np.unique(both, return_inverse=True, return_counts=True)
        rank = np.empty(len(counts), np.int64)
        rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
        part = np.minimum(rank[kind], PARTS - 1)
    p, q = (np.bincount(side, minlength=int(part.max()) + 1) for side in (part[: len(old)], part[len(old) :]))
    numbers = p + q > 0
    p, q = ((d[numbers] + 0.5) / (d.sum() + 0.5 * numbers.sum()) for d in (p, q))
    return float(((p - q) * np.log(p / q)).sum())
