"""Admission: an id gets a row once training has met it so often; until then it reads the default row, unlearned.

Occurrences are counted, not batches: an id that comes twice in the batch that it is new in has come twice. Looking up
counts nothing, nor does evaluation. An id that was removed begins anew, unless a filter cannot forget (CountingBloom).

    Always         at once
    ExactCounts    a counter for each id that waits; none once it has its row
    CountingBloom  one array of counters of fixed size for all ids (Fan et al. 2000, with conservative update: Cormode
                   and Muthukrishnan 2005): it may admit an id early, of those that it was made for at most
                   `error` of them, and never late. What it has admitted it does not forget.

A filter is part of a checkpoint: `export` is all of it, `changes` what an increment has to carry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.embedding.id_rows import IdRows

Int64s = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]

HASHES = 4
BLOCK_COUNTERS = 4096


class Admission(Protocol):
    """Who gets a row."""

    def met(self, ids: Int64s) -> NDArray[np.bool_]:
        """Which of `ids`, as they come in a batch and without a row, get one now."""
        ...

    def forget(self, ids: Int64s) -> None:
        """These have their rows from elsewhere: they wait no longer."""
        ...

    def export(self) -> Arrays: ...

    def changes(self) -> Arrays:
        """Since clear_changed()."""
        ...

    def clear_changed(self) -> None: ...

    def clear(self) -> None: ...

    def restore(self, arrays: Arrays) -> None:
        """Puts back what export() gave, or what changes() gave on top of what is there."""
        ...


class Always:
    """Every id, at once."""

    def met(self, ids: Int64s) -> NDArray[np.bool_]:
        return np.ones(len(ids), np.bool_)

    def forget(self, ids: Int64s) -> None: ...

    def export(self) -> Arrays:
        return {}

    def changes(self) -> Arrays:
        return {}

    def clear_changed(self) -> None: ...

    def clear(self) -> None: ...

    def restore(self, arrays: Arrays) -> None: ...


class ExactCounts:
    """Ids that have come `after` times. Memory: about 40 bytes an id that waits."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._ids = IdRows({"counts": ((), np.int64)})

    def __len__(self) -> int:
        return len(self._ids)

    def met(self, ids: Int64s) -> NDArray[np.bool_]:
        ids, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
        refs = self._ids.find(ids)
        known = refs >= 0
        total = counts.copy()
        total[known] += self._ids.columns["counts"][refs[known]]
        admitted = total >= self._after
        self._ids.remove(ids[admitted & known])
        new = ~admitted & ~known
        if new.any():
            self._ids.put(ids[new])
        waiting = ~admitted
        refs = self._ids.find(ids[waiting])
        self._ids.columns["counts"][refs] = total[waiting]
        self._ids.touch(refs)
        return admitted[places]

    def forget(self, ids: Int64s) -> None:
        self._ids.remove(ids)

    def export(self) -> Arrays:
        return self._gather(self._ids.live(), np.empty(0, np.int64))

    def changes(self) -> Arrays:
        return self._gather(self._ids.changed(), self._ids.removed())

    def clear_changed(self) -> None:
        self._ids.clear_changed()

    def clear(self) -> None:
        self._ids.clear()

    def restore(self, arrays: Arrays) -> None:
        self._ids.remove(arrays["removed"])
        refs, _ = self._ids.put(arrays["keys"])
        self._ids.columns["counts"][refs] = arrays["counts"]
        self.clear_changed()

    def _gather(self, refs: Int64s, removed: Int64s) -> Arrays:
        return {"keys": self._ids.keys[refs], "counts": self._ids.columns["counts"][refs], "removed": removed}


class CountingBloom:
    """Ids that have come `after` times, by counters of 16 bits that ids share."""

    def __init__(self, after: int, ids: int, error: float) -> None:
        """ids: how many different ones may wait or be admitted. error: the share of them, all having come, that may be
        taken for one that has come before. Memory: -ids * ln(error) / ln(2)^2 counters of 2 bytes at HASHES hashes
        that are best, a little more otherwise."""
        self._after = after
        # The size at which HASHES counters of one id are all taken with that chance.
        self.counters = max(BLOCK_COUNTERS, math.ceil(-HASHES * ids / math.log1p(-(error ** (1 / HASHES)))))
        self.clear()

    def met(self, ids: Int64s) -> NDArray[np.bool_]:
        from models.embedding import kernels

        ids, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
        least = np.empty(len(ids), np.int64)
        kernels.count_ids(ids, counts, HASHES, self._counters, BLOCK_COUNTERS, self._touched, least)
        admitted: NDArray[np.bool_] = least >= self._after
        return admitted[places]

    def forget(self, ids: Int64s) -> None: ...

    def export(self) -> Arrays:
        return {"counters": self._counters.view(np.uint8).copy()}

    def changes(self) -> Arrays:
        blocks = np.flatnonzero(self._touched)
        padded = np.zeros(len(self._touched) * BLOCK_COUNTERS, np.uint16)
        padded[: self.counters] = self._counters
        return {"blocks": blocks, "counters": padded.reshape(-1, BLOCK_COUNTERS)[blocks].view(np.uint8)}

    def clear_changed(self) -> None:
        self._touched[:] = False

    def clear(self) -> None:
        self._counters = np.zeros(self.counters, np.uint16)
        self._touched = np.zeros(-(-self.counters // BLOCK_COUNTERS), np.bool_)

    def restore(self, arrays: Arrays) -> None:
        counters = np.ascontiguousarray(arrays["counters"]).view(np.uint16)
        if "blocks" not in arrays:
            self._counters[:] = counters
        else:
            for block, raised in zip(arrays["blocks"].tolist(), counters):
                at = self._counters[block * BLOCK_COUNTERS :][:BLOCK_COUNTERS]
                at[:] = raised[: len(at)]
        self.clear_changed()
