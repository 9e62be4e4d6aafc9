"""Find the rows of a batch that have the same histories, so that a step computes these once.

Events are compared, not users: a user's history may grow from row to row, and two users without events are equal. Lists
are compared by a hash and then in full.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.kernel import kernel
from freshet_serving.processor.kernels.pool import SOURCE
from freshet_serving.processor.package import Manifest

Int64s = NDArray[np.int64]

_LISTS = nb.types.Array(nb.int64, 1, "C", readonly=True)
MIX = 0x9E3779B97F4A7C15


class SameHistories:
    """Compares the histories of a model's rows."""

    def __init__(self, manifest: Manifest, plan: SparsePlan) -> None:
        """Find the lists that histories are made of; the plan's last lookups are those of sequences."""
        lookups = plan.lookups[len(manifest.features) :, SOURCE].tolist()
        times = [plan.source(s.time) for s in manifest.sequences if s.time]
        self._sources = list(dict.fromkeys([*lookups, *times]))

    def first_rows(self, bound: BoundRequest) -> Int64s:
        """Return for each row of a batch the first row with the same histories."""
        hashes = np.zeros(bound.rows, np.uint64)
        lists = [(_as_int64(column.values), column.splits) for column in (bound.keep[n] for n in self._sources)]
        for values, splits in lists:
            _add_hashes(values, splits, hashes)
        _, firsts, numbers = np.unique(hashes, return_index=True, return_inverse=True)
        first = firsts[numbers].astype(np.int64)
        for values, splits in lists:
            _keep_equal(values, splits, first)
        return first


def _as_int64(values: NDArray[Any]) -> Int64s:
    return values.view(np.int32).astype(np.int64) if values.dtype == np.float32 else values


@kernel(nb.void(_LISTS, _LISTS, nb.uint64[::1]))
def _add_hashes(values, splits, hashes):  # type: ignore[no-untyped-def]
    for row in range(len(hashes)):
        h = hashes[row] ^ np.uint64(splits[row + 1] - splits[row])
        for v in range(splits[row], splits[row + 1]):
            h = (h ^ np.uint64(values[v])) * np.uint64(MIX)
            h ^= h >> np.uint64(29)
        hashes[row] = h * np.uint64(MIX)


@kernel(nb.void(_LISTS, _LISTS, nb.int64[::1]))
def _keep_equal(values, splits, firsts):  # type: ignore[no-untyped-def]
    for row in range(len(firsts)):
        start, other = splits[row], splits[firsts[row]]
        count = splits[row + 1] - start
        same = count == splits[firsts[row] + 1] - other
        v = 0
        while same and v < count:
            same = values[start + v] == values[other + v]
            v += 1
        if not same:
            firsts[row] = row
