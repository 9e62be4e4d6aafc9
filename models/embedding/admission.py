"""Admission filters: an id gets a row only after training has met it a number of times.

Until then it reads the default row, which is not trained. Occurrences count, not batches; lookups and evaluation do
not. A removed id starts from zero, except in a filter that cannot forget.

    AdmitAll       admits at once
    ExactCounts    a counter for each waiting id
    CountingBloom  counters of fixed size for all ids (Fan et al. 2000, with conservative update: Cormode and
                   Muthukrishnan 2005): may admit `error` of the ids it was sized for early, none late

Processes that share a table have filters of their own ids. Ids of two shards never share a counter
(models.embedding.id_shards), so any number of processes admits the same ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
"""Extra capacity of a shard in standard deviations of its number of ids, which varies by chance."""


class Admission:
    """Decides which ids get a row. The methods here admit all, and keep nothing."""

    def met(self, ids: Int64s, times: Int64s | None = None) -> NDArray[np.bool_]:
        """Count the occurrences (`times` [n]; None for one each) of ids [n] without a row in a batch.

        Return bool [n]: those that get a row now.
        """
        return np.ones(len(ids), np.bool_)

    def forget(self, ids: Int64s) -> None:
        """Stop counting ids that got rows otherwise."""

    def export(self) -> Arrays:
        return {}

    def changes(self) -> Arrays:
        """Return the changes since clear_changed()."""
        return {}

    def clear_changed(self) -> None: ...

    def clear(self) -> None: ...

    def restore(self, arrays: Arrays) -> None:
        """Restore export(), or apply changes() to the current state."""


class AdmitAll(Admission):
    """Admits every id at once."""


class ExactCounts(Admission):
    """Admits ids that have come `after` times. Memory: about 40 bytes a waiting id."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._ids = IdRows({"counts": ((), np.int64)})

    def __len__(self) -> int:
        return len(self._ids)

    def met(self, ids: Int64s, times: Int64s | None = None) -> NDArray[np.bool_]:
        ids, places, counts = _counted(ids, times)
        refs = self._ids.find(ids)
        waiting_before = refs >= 0
        total = counts.copy()
        total[waiting_before] += self._ids.columns["counts"][refs[waiting_before]]
        admitted = total >= self._after
        self._ids.remove(ids[admitted & waiting_before])
        new = ~admitted & ~waiting_before
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


class CountingBloom(Admission):
    """Admits ids that have come `after` times, by 16-bit counters shared by the ids of a shard."""

    def __init__(self, after: int, ids: int, error: float, shards: range = ALL) -> None:
        """Allocate counters for this number of distinct `ids`, over all shards.

        Memory: -ids * ln(error) / ln(2)^2 counters of 2 bytes if HASHES is the optimal number of hashes; a tenth more
        for a million ids. Once all ids have come, a new one is mistaken for a known one with probability `error`.
        """
        self._after, self._shards = after, shards
        share = ids / SHARDS
        # The size at which an id's HASHES counters are all taken with that probability.
        counters = -HASHES * (share + DEVIATIONS * math.sqrt(share)) / math.log1p(-(error ** (1 / HASHES)))
        shard_counters = max(LEAST_COUNTERS, math.ceil(counters))
        self._blocks = -(-shard_counters // BLOCK_COUNTERS)
        self._block = -(-shard_counters // self._blocks)
        self.clear()

    @property
    def counters(self) -> int:
        """Number of counters, over all shards."""
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
        """Restore the counters of the filter's shards; raise Corrupt for another size."""
        counters = np.ascontiguousarray(arrays["counters"]).view(np.uint16)
        first, blocks = self._shards.start * self._blocks, self._counters.reshape(-1, self._block)
        shape = (self.counters,) if "blocks" not in arrays else (len(arrays["blocks"]), self._block)
        if counters.shape != shape:
            raise Corrupt(
                f"admission: expected counters {list(shape)}, got {list(counters.shape)}: the checkpoint is older than"
                " filters split by shard; --new-version --from-scratch trains anew"
            )
        if "blocks" not in arrays:
            blocks[:] = counters.reshape(-1, self._block)[first : first + len(blocks)]
        else:
            places = arrays["blocks"] - first
            local = (places >= 0) & (places < len(blocks))
            blocks[places[local]] = counters[local]
        self.clear_changed()


def _counted(ids: Int64s, times: Int64s | None) -> tuple[Int64s, Int64s, Int64s]:
    """Return the distinct ids, ascending, the position of each of `ids` among them, and their occurrences."""
    distinct, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
    if times is not None:
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, places, times)
    return distinct, places, counts
