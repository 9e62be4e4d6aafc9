"""Present a table whose rows are sharded over processes as one whole table, for rank 0 to save, publish and overwrite.

Each process sends its rows in ascending order of ids, with checksums; they are merged by id. The result is, to the bit,
what one process would have, so files do not depend on the number of processes.

Invariants: no id comes from two processes, or from one that does not own it; else Corrupt. Restored rows reach the
owner of their id, whatever number of processes saved them. Rank 0's memory: what is gathered, briefly twice; for a full
version all rows of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.id_shards import processes_of
from freshet_serving.models.embedding.variable import Changes, EmbeddingVariable
from freshet_serving.models.parallel.commands import RankCommand, as_arrays, by_name, named_arrays
from freshet_serving.models.parallel.ranks import Array
from freshet_serving.processor.errors import Corrupt

Int64s = NDArray[np.int64]


class RankRpc(Protocol):
    """Calls all ranks, including this one."""

    @property
    def processes(self) -> int: ...

    def call_all(
        self, operation: RankCommand, number: int = 0, given: Sequence[Sequence[Array]] | None = None
    ) -> list[list[Array]]:
        """Run an operation on every rank, with `given` arrays by rank, and return each rank's arrays."""
        ...


class GatheredTable:
    """A sharded table, as EmbeddingVariable."""

    def __init__(self, ranks: RankRpc, number: int, own: EmbeddingVariable) -> None:
        """View table `number`, of which `own` is this process's shard."""
        self._ranks, self._number, self._own = ranks, number, own
        self.name, self.dim = own.name, own.dim
        self.admission = GatheredFilter(ranks, number)

    @property
    def slots_nbytes(self) -> int:
        return self._own.slots_nbytes

    def __len__(self) -> int:
        return sum(int(lengths[self._number]) for (lengths,) in self._ranks.call_all(RankCommand.LENGTHS))

    def export(self) -> Changes:
        return self._gathered(RankCommand.EXPORT)

    def changes(self) -> Changes:
        return self._gathered(RankCommand.CHANGES)

    def clear_changed(self) -> None:
        self._ranks.call_all(RankCommand.CLEAR_CHANGED, self._number)

    def pieces(self, rows: int) -> Iterator[Changes]:
        whole, nothing = self.export(), np.empty(0, np.int64)
        for first in range(0, len(whole.keys), rows):
            *parts, _ = as_arrays(whole)
            yield Changes(*[*(part[first : first + rows] for part in parts), nothing])

    def restore(self, changes: Changes) -> None:
        self._ranks.call_all(RankCommand.RESTORE, self._number, self._shared_out(changes))

    def mark(self, changes: Changes) -> None:
        self._ranks.call_all(RankCommand.MARK, self._number, self._shared_out(changes))

    def overwrite(self, keys: Int64s, rows: NDArray[np.float32], removed: Int64s, rate: float, step: int) -> None:
        numbers = [np.array([rate]), np.array([step])]
        owners, gone = (processes_of(ids, self._ranks.processes) for ids in (keys, removed))
        each = range(self._ranks.processes)
        by_rank = [[keys[owners == to], rows[owners == to], removed[gone == to], *numbers] for to in each]
        self._ranks.call_all(RankCommand.OVERWRITE, self._number, by_rank)

    def _gathered(self, operation: RankCommand) -> Changes:
        by_rank = [Changes(*arrays) for arrays in self._ranks.call_all(operation, self._number)]
        for of, changes in enumerate(by_rank):
            for ids in (changes.keys, changes.removed):
                if (processes_of(ids, len(by_rank)) != of).any():
                    raise Corrupt(f"table {self.name!r}: process {of} sent ids of another process")
        *parts, removed = (np.concatenate(arrays) for arrays in zip(*map(as_arrays, by_rank)))
        order = np.argsort(parts[0], kind="stable")
        if (np.diff(parts[0][order]) == 0).any():
            raise Corrupt(f"table {self.name!r}: an id was sent twice")
        return Changes(*[*(part[order] for part in parts), np.sort(removed)])

    def _shared_out(self, changes: Changes) -> list[list[Array]]:
        owners, gone = (processes_of(ids, self._ranks.processes) for ids in (changes.keys, changes.removed))
        *parts, removed = as_arrays(changes)
        each = range(self._ranks.processes)
        return [[*(part[owners == to] for part in parts), removed[gone == to]] for to in each]


class GatheredFilter:
    """The admission filter of a sharded table."""

    def __init__(self, ranks: RankRpc, number: int) -> None:
        self._ranks, self._number = ranks, number

    def export(self) -> Mapping[str, Array]:
        return self._gathered(RankCommand.FILTER)

    def changes(self) -> Mapping[str, Array]:
        return self._gathered(RankCommand.FILTER_CHANGES)

    def restore(self, arrays: Mapping[str, Array]) -> None:
        if "keys" in arrays:
            owners, gone = (processes_of(arrays[part], self._ranks.processes) for part in ("keys", "removed"))
            by_rank = [
                {
                    "keys": arrays["keys"][owners == to],
                    "counts": arrays["counts"][owners == to],
                    "removed": arrays["removed"][gone == to],
                }
                for to in range(self._ranks.processes)
            ]
        else:
            # Counters are by shard: each process picks its own shards'.
            by_rank = [dict(arrays)] * self._ranks.processes
        self._ranks.call_all(RankCommand.RESTORE_FILTER, self._number, [named_arrays(each) for each in by_rank])

    def _gathered(self, operation: RankCommand) -> Mapping[str, Array]:
        by_rank = [by_name(arrays) for arrays in self._ranks.call_all(operation, self._number)]
        # Shards are ordered by rank.
        whole = {name: np.concatenate([each[name] for each in by_rank]) for name in by_rank[0]}
        if "keys" in whole:
            order = np.argsort(whole["keys"], kind="stable")
            whole |= {name: whole[name][order] for name in ("keys", "counts")}
            whole["removed"] = np.sort(whole["removed"])
        return whole
