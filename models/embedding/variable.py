"""EmbeddingVariable: an embedding table that grows by id and never lets two ids share a row (DeepRec's EV).

Owned by one thread, the trainer's. An id gets its row when training first meets it, or when its admission filter admits
it (models.embedding.admission). The row's first value depends on (seed, id) alone, not on the order of arrival. An id
without a row reads the default row (zeros), in training, evaluation and serving, and that read's gradient is dropped.
Only training inserts rows and counts occurrences.

Rows, slots and bookkeeping are columns of models.embedding.id_rows, which tracks a delta's content: ids changed and
removed since clear_changed(). With a budget some rows are on disk (models.embedding.tiered_rows): insert() brings those
of its ids into memory, shrink_to_budget() moves others out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding import kernels
from freshet_serving.models.embedding.admission import Admission, AdmitAll
from freshet_serving.models.embedding.id_rows import IdRows
from freshet_serving.models.embedding.optimizer import RowOptimizer
from freshet_serving.models.embedding.row_budget import RowBudget
from freshet_serving.models.embedding.tiered_rows import TieredRows
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.kernels.rows import LOG, LOGGED, RECORD_NBYTES
from freshet_serving.processor.package import TableEntry
from freshet_serving.processor.tables.table import descriptor

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

SCANNED_ROWS = 1 << 16

_NOTHING: NDArray[np.float32] = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of a table by ascending key, and ids removed from it.

    Attributes:
        last_step: int64 [m], last step that read the row.
        counts: int64 [m], number of reads in training.
        removed: int64 [r], ascending.
    """

    keys: Int64s
    rows: Float32s
    slots: Float32s
    last_step: Int64s
    counts: Int64s
    removed: Int64s


@dataclass(frozen=True, slots=True)
class RowInitializer:
    """First values of rows by (seed, id, column): uniform in [-scale, scale), normal with deviation scale, or zeros."""

    kind: str = "uniform"
    scale: float = 0.01

    def rows(self, ids: Int64s, seed: int, dim: int) -> Float32s:
        """Return first values, float32 [len(ids), dim]; `seed` is the table's."""
        rows = np.zeros((len(ids), dim), np.float32)
        if self.kind == "uniform":
            init_rows(ids, np.uint64(seed), np.float32(self.scale), rows)
        elif self.kind == "normal":
            # Box and Muller 1958, from two uniform numbers in [-1, 1) for each value.
            pairs = np.empty((len(ids), 2 * dim), np.float32)
            init_rows(ids, np.uint64(seed), np.float32(1.0), pairs)
            radius = np.sqrt(-2.0 * np.log((1.0 - pairs[:, :dim].astype(np.float64)) / 2.0))
            rows[:] = self.scale * radius * np.cos(np.pi * pairs[:, dim:].astype(np.float64))
        return rows


@dataclass(frozen=True, slots=True)
class Eviction:
    """Rule for rows to remove: untouched for more than so many steps, or with a smaller L2 norm; 0 for no limit."""

    after_steps: int = 0
    below_norm: float = 0.0


def norms(rows: Float32s) -> NDArray[np.float64]:
    """Return the L2 norms [n] of rows [n, dim]."""
    norms_of_rows = np.empty(len(rows), np.float64)
    kernels.norms(rows, np.arange(len(rows)), norms_of_rows)
    return norms_of_rows


class EmbeddingVariable:
    """Rows of one table by int64 id, with the optimizer's slots, by row number.

    Attributes:
        last_step: int64 [_], last step in which training read the row.
        counts: int64 [_], number of reads in training since the id got its row.
        place: int32 [_], scratch of the gradient kernels.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: RowOptimizer,
        seed: int = 0,
        initial: RowInitializer | None = None,
        admission: Admission | None = None,
        budget: RowBudget | None = None,
    ) -> None:
        """Create an empty table, by default of RowInitializer() and AdmitAll(); without `budget` all in memory."""
        self.name, self.dim, self.optimizer = name, dim, optimizer
        self.admission = AdmitAll() if admission is None else admission
        self.seed, self._initial = seed, initial or RowInitializer()
        self._fill = optimizer.fill(dim)
        self._default = np.zeros(dim, np.float32)
        self._kinds = columns = {
            "rows": ((dim,), np.float32),
            "slots": ((optimizer.slots_a_row(dim),), np.float32),
            "books": ((2,), np.int64),
        }
        self.tiers = None if budget is None else TieredRows(name, columns, budget)
        self._ids = IdRows(columns) if self.tiers is None else self.tiers
        self._place = np.full(len(self._ids.keys), -1, np.int32)
        self._described: tuple[tuple[Any, ...], list[int]] = ((object(),), [])

    @property
    def rows(self) -> Float32s:
        return self._ids.columns["rows"]

    @property
    def slots(self) -> Float32s:
        return self._ids.columns["slots"]

    @property
    def slots_nbytes(self) -> int:
        return int(self.slots.shape[1]) * self.slots.itemsize

    @property
    def last_step(self) -> Int64s:
        return self._ids.columns["books"][:, 0]

    @property
    def counts(self) -> Int64s:
        return self._ids.columns["books"][:, 1]

    @property
    def place(self) -> NDArray[np.int32]:
        if len(self._place) < len(self._ids.keys):
            self._place = np.full(len(self._ids.keys), -1, np.int32)
        return self._place

    def clear(self) -> None:
        self._ids.clear()
        self.admission.clear()

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, ids: Int64s) -> Int64s:
        """Return the row numbers of `ids`, negative for ids without a row."""
        return self._ids.find(ids)

    def live(self) -> Int64s:
        return self._ids.live()

    def shrink_to_budget(self) -> None:
        """Move rows beyond the budget to disk; row numbers become invalid."""
        self._ids.shrink_to_budget()

    def reading(self) -> AbstractContextManager[Any]:
        """Return a context in which no row moves, for reads by row number or through descriptor()."""
        return nullcontext() if self.tiers is None else self.tiers.lock

    def insert(self, ids: Int64s, times: Int64s | None = None) -> Int64s:
        """Return row numbers of ids met `times` [n] (1 each) in training, int64 [n]; negative for unadmitted ids."""
        refs = self._ids.fetch(ids)
        absent = np.flatnonzero(refs < 0)
        if len(absent):
            absent = absent[self.admission.met(ids[absent], None if times is None else times[absent])]
            refs[absent] = self._put(ids[absent])
        return refs

    def read(self, refs: Int64s, rows: Float32s) -> None:
        """Copy rows by number, negative for the default row, into `rows`; within reading()."""
        if (refs < LOGGED).all():
            kernels.copy_rows(self.rows, refs, rows)
        else:
            rows[:] = self._ids.gather(np.maximum(refs, 0), "rows")[0]
            rows[refs < 0] = self._default

    def update(self, touched: Int64s, sums: Float32s, met: Int64s, rate: float, step: int) -> None:
        """Take an optimizer step on rows `touched` [m] by gradients `sums` [m, dim]; `met` are reads in the batch."""
        self.optimizer.update(touched, sums, self.rows, self.slots, rate, step)
        kernels.note(touched, met, step, self._ids.columns["books"], self._ids.marks)

    def touch(self, refs: Int64s) -> None:
        """Note that rows have changed."""
        self._ids.touch(refs)

    def remove(self, ids: Int64s) -> int:
        """Remove the rows of `ids` (tombstones in the next delta); return their number."""
        return self._ids.remove(ids)

    def evict(self, eviction: Eviction, step: int) -> int:
        """Remove the rows that a rule does not keep at a step of the run; return their number."""
        if not (eviction.after_steps or eviction.below_norm):
            return 0
        with self.reading():
            refs, gone = self._ids.present(), []
            for first in range(0, len(refs), SCANNED_ROWS):
                piece = refs[first : first + SCANNED_ROWS]
                leaves = np.zeros(len(piece), np.bool_)
                keys, books = self._ids.gather(piece, "keys", "books")
                if eviction.after_steps:
                    leaves |= books[:, 0] < step - eviction.after_steps
                if eviction.below_norm:
                    leaves |= norms(*self._ids.gather(piece, "rows")) < eviction.below_norm
                gone.append(keys[leaves])
            return self.remove(np.concatenate(gone)) if gone else 0

    def changes(self) -> Changes:
        with self.reading():
            return self._gather(self._ids.changed(), self._ids.removed())

    def clear_changed(self) -> None:
        self._ids.clear_changed()
        self.admission.clear_changed()

    def export(self) -> Changes:
        with self.reading():
            return self._gather(self._ids.live(), np.empty(0, np.int64))

    def pieces(self, rows: int) -> Iterator[Changes]:
        """Yield every row by ascending id, `rows` at a time."""
        nothing = np.empty(0, np.int64)
        if self.tiers is None:
            refs = self._ids.live()
            for first in range(0, len(refs), rows):
                yield self._gather(refs[first : first + rows], nothing)
            return
        # Export as a whole: each piece would go through the log again.
        whole = self.export()
        for first in range(0, len(whole.keys), rows):
            span = slice(first, first + rows)
            columns = (whole.keys[span], whole.rows[span], whole.slots[span], whole.last_step[span], whole.counts[span])
            yield Changes(*columns, nothing)

    def restore(self, changes: Changes) -> None:
        """Restore rows from export() or changes(), and remove the removed ones."""
        if len(changes.removed):
            self.remove(changes.removed)
        for first in range(0, len(changes.keys), SCANNED_ROWS):
            span = slice(first, first + SCANNED_ROWS)
            self._ids.put(changes.keys[span])
            refs = self._ids.fetch(changes.keys[span])
            self.rows[refs], self.slots[refs] = changes.rows[span], changes.slots[span]
            self.last_step[refs], self.counts[refs] = changes.last_step[span], changes.counts[span]
            self.shrink_to_budget()
        self._ids.clear_changed()

    def mark(self, changes: Changes) -> None:
        """Mark ids as changed again, because their delta was not published."""
        self._ids.mark(changes.keys, changes.removed)

    def overwrite(self, keys: Int64s, rows: Float32s, removed: Int64s, rate: float, step: int) -> None:
        """Replace rows by imported ones with new optimizer state, and remove others; all count as changed."""
        self.remove(removed)
        for first in range(0, len(keys), SCANNED_ROWS):
            span = slice(first, first + SCANNED_ROWS)
            self.admission.forget(keys[span][self.find(keys[span]) < 0])
            self._put(keys[span])
            refs = self._ids.fetch(keys[span])
            self.rows[refs], self.slots[refs] = rows[span], self.optimizer.slots_of(rows[span], rate, step)
            self.last_step[refs] = step
            self._ids.touch(refs)
            self.shrink_to_budget()

    def descriptor(self) -> list[int]:
        """Return the table for serving's kernels: float32, all rows of epoch 0, no arena."""
        read = self._ids.index, self.rows, None if self.tiers is None else self.tiers.cold
        # Rebuilt only if an array was replaced: it takes as long as finding 2,000 rows.
        if any(now is not before for now, before in zip(read, self._described[0])):
            arrays = dict.fromkeys(("arena", "meta", "scales", "arena_scales"), _NOTHING)
            arrays |= {"index": self._ids.index, "base": self.rows, "default": self._default}
            fields = descriptor(TableEntry(self.name, self.dim, len(self.rows)), arrays)
            if self.tiers is not None:
                log = self.tiers.cold.log.ctypes.data, self.tiers.cold.record_nbytes
                fields[LOG // 8], fields[RECORD_NBYTES // 8] = log
            self._described = read, fields
        return self._described[1]

    def _gather(self, refs: Int64s, removed: Int64s) -> Changes:
        count, names = len(refs), ("keys", "rows", "slots", "books")
        keys, rows, slots, books = (
            self._ids.empty((count, *shape), dtype)
            for shape, dtype in (((), np.int64), *(self._kinds[name] for name in names[1:]))
        )
        # In storage order, for rows on disk.
        order = np.argsort(refs)
        for first in range(0, count, SCANNED_ROWS):
            at = order[first : first + SCANNED_ROWS]
            keys[at], rows[at], slots[at], books[at] = self._ids.gather(refs[at], *names)
        last_step, counts = (np.ascontiguousarray(column) for column in books.T)
        return Changes(keys, rows, slots, last_step, counts, removed)

    def _put(self, ids: Int64s) -> Int64s:
        """Give ids without a row one with its first value; return all row numbers."""
        refs, new = self._ids.put(ids)
        self.rows[new] = self._initial.rows(self._ids.keys[new], self.seed, self.dim)
        self.slots[new] = self._fill
        return refs
