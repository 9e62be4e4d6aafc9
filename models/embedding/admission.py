"""Admission: an id gets a row once training has met it so often; until then it reads the default row, unlearned.

Occurrences are counted, not batches: an id that comes twice in the batch that it is new in has come twice. Looking up
counts nothing, nor does evaluation. An id that was removed begins anew, unless a filter cannot forget (CountingBloom).

    Always         at once
    ExactCounts    a counter for each id that waits; none once it has its row
    CountingBloom  one array of counters of fixed size for all ids (Fan et al. 2000, with conservative update: Cormode
                   and Muthukrishnan 2005): it may admit an id early, of those that it was made for at most
                   `error` of them, and never late. What it has admitted it does not forget.

A filter is part of a checkpoint: `export` is all of it, `changes` what an increment has to carry. Where several
processes share a table each has the filter of its ids alone; no counter is shared by ids of two shards
(models.embedding.id_shards), so that any number of processes admits what one admits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.id_rows import IdRows
from freshet_serving.models.embedding.id_shards import ALL, SHARDS
from freshet_serving.processor.errors import Corrupt

Int64s = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]

HASHES = 4
BLOCK_COUNTERS = 4096
LEAST_COUNTERS = 16
DEVIATIONS = 3
"""A shard has counters for so many standard deviations more ids than its share: chance spreads them unevenly."""


class Admission(Protocol):
    """Who gets a row."""

    def met(self, ids: Int64s, times: Int64s | None = None) -> NDArray[np.bool_]:
        """Which of `ids`, as they come in a batch and without a row, get one now. times [n]: how often each has come;
        None: once."""
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


class AdmitAll:
    """Every id, at once."""

    def met(self, ids: Int64s, times: Int64s | None = None) -> NDArray[np.bool_]:
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

    def met(self, ids: Int64s, times: Int64s | None = None) -> NDArray[np.bool_]:
        ids, places, counts = _counted(ids, times)
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
    """Ids that have come `after` times, by counters of 16 bits that ids of a shard share."""

    def __init__(self, after: int, ids: int, error: float, shards: range = ALL) -> None:
        """ids: how many different ones may wait or be admitted, over all shards. error: the share of them, all having
        come, that may be taken for one that has come before. Memory: -ids * ln(error) / ln(2)^2 counters of 2 bytes at
        HASHES hashes that are best, a tenth more for a million ids. shards: those whose ids come here."""
        self._after, self._shards = after, shards
        share = ids / SHARDS
        # The size at which HASHES counters of one id are all taken with that chance.
        wanted = -HASHES * (share + DEVIATIONS * math.sqrt(share)) / math.log1p(-(error ** (1 / HASHES)))
        each = max(LEAST_COUNTERS, math.ceil(wanted))
        self._blocks = -(-each // BLOCK_COUNTERS)
        self._block = -(-each // self._blocks)
        self.clear()

    @property
    def counters(self) -> int:
        """Of all shards."""
        return SHARDS * self._blocks * self._block

    def met(self, ids: Int64s, times: Int64s | None = None) -> NDArray[np.bool_]:
        from freshet_serving.models.embedding import kernels

        ids, places, counts = _counted(ids, times)
        least = np.empty(len(ids), np.int64)
        each = self._blocks * self._block
        shards = SHARDS, self._shards.start
        kernels.count_ids(ids, counts, HASHES, *shards, each, self._counters, self._block, self._touched, least)
        admitted: NDArray[np.bool_] = least >= self._after
        return admitted[places]

    def forget(self, ids: Int64s) -> None: ...

    def export(self) -> Arrays:
        return {"counters": self._counters.view(np.uint8).copy()}

    def changes(self) -> Arrays:
        blocks = np.flatnonzero(self._touched)
        counters = self._counters.reshape(-1, self._block)[blocks]
        return {"blocks": blocks + self._shards.start * self._blocks, "counters": counters.view(np.uint8)}

    def clear_changed(self) -> None:
        self._touched[:] = False

    def clear(self) -> None:
        blocks = len(self._shards) * self._blocks
        self._counters = np.zeros(blocks * self._block, np.uint16)
        self._touched = np.zeros(blocks, np.bool_)

    def restore(self, arrays: Arrays) -> None:
        """Takes what is of its own shards. Raises Corrupt for a filter of another size."""
        counters = np.ascontiguousarray(arrays["counters"]).view(np.uint16)
        first, own = self._shards.start * self._blocks, self._counters.reshape(-1, self._block)
        wanted = (self.counters,) if "blocks" not in arrays else (len(arrays["blocks"]), self._block)
        if counters.shape != wanted:
            raise Corrupt(
                f"admission: counters {list(wanted)} wanted, got {list(counters.shape)}: the checkpoint is older than"
                " filters by shard; --new-version --from-scratch trains anew"
            )
        if "blocks" not in arrays:
            own[:] = counters.reshape(-1, self._block)[first : first + len(own)]
        else:
            places = arrays["blocks"] - first
            here = (places >= 0) & (places < len(own))
            own[places[here]] = counters[here]
        self.clear_changed()


def _counted(ids: Int64s, times: Int64s | None) -> tuple[Int64s, Int64s, Int64s]:
    """Distinct ids, ascending, where each of `ids` is among them, and how often each has come."""
    distinct, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
    if times is not None:
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, places, times)
    return distinct, places, counts
