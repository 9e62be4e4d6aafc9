"""Keep the vectors of a version's items, through deltas, new weights and rollbacks (processor.versions.row_watchers).

What a reply may mix. The user's vector, what the score makes of a product, and which items there are, are of the pinned
state. Items' vectors are all of one generation: the pinned one, or, where they lag, the one that `vector_of` names
(vector_table). An item that is not in both generations is in no list.

    current   deltas of rows: the vectors of the items that they touch are staged with them, under their epoch, so one
              flip publishes both. A delta that changes other weights than the items' tower reads, or rows that no item
              reads, costs nothing. Once the tower changes, or a delta touches more than AT_ONCE items, vectors lag
    lagging   deltas only remove items, and put back those that had been removed since. A pass (vector_pass) computes
              all vectors beside them; its result replaces the table, with a new frame, and may be current or lag again

Invariants
- Current vectors are equal to the bit to those that the state's rows and weights give, up to what batching a row with
  others changes in its last bits.
- A rollback within one table undoes its rows and what is said about them. Where a newer table has replaced it, a copy
  is served whose vectors lag, by their own generation, which may be one that was undone; a pass begins.
- A refused change leaves no trace: what it proposed is dropped by settle().
- A failure to compute makes vectors lag; it refuses no delta. What must not fail is the removal of items.

Costs. Of a delta: the vectors of the items that it touches. Of a pass: SLICE_S seconds of each 20 ms of the thread that
maintains tables (processor.versions.upkeep), under the version's lock: a delta waits for a slice; twice as much with
each pass that came to nothing, and after a rollback. Memory: 4 bytes a number and codes, twice while a pass runs.

Rejected: vectors of a delta, or of new items, by a tower that lags (a list would mix generations, and nothing could
name them); recomputing before the flip whatever it costs (a delta a second would wait for minutes); a pass under a
reader's pin (the writer waits for pins).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError, first_of
from freshet_serving.processor.extensions.top_items import vector_pass
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.extensions.top_items.tower_runs import TowerRuns, TowerWeights
from freshet_serving.processor.extensions.top_items.vector_pass import ItemRows, VectorPass
from freshet_serving.processor.extensions.top_items.vector_table import (
    ABSENT,
    NAME,
    NO_KEYS,
    OF,
    SCORE,
    VectorTable,
    reserved_rows,
    vectors_of,
)
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import TableDelta
from freshet_serving.processor.repository import VersionReader
from freshet_serving.processor.tables.table import RowVersions, ServedTable
from freshet_serving.processor.versions.control import IDLE
from freshet_serving.processor.versions.row_watchers import DerivedRows, DerivedState

log = logging.getLogger("freshet.vectors")

SLICE_S, LONGEST_SLICE_S = 0.005, 0.04
MOST_REMEMBERED = 4096
"""States whose vectors are remembered for rollbacks; more than an undo log has."""

NEWEST = 1 << 60
"""An epoch that sees all that is staged."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Lag:
    """Vectors of a generation that was served until a monotonic time; those of items removed since, by item."""

    generation: Generation
    since_s: float
    removed: dict[int, Float32s] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """A statement about vectors in one state: how they lag, and the arrays vector_of and vector_score."""

    table: str
    generation: Generation
    lag: Lag | None
    of: Int64s
    score: Float32s


class ItemVectors(DerivedRows):
    def __init__(self, items: ItemRows) -> None:
        self._items, self._tower = items, items.tower
        self._vectors: VectorTable | None = None
        self._standing: Standing | None = None
        self._history: dict[int, Standing] = {}
        self._pass: VectorPass | None = None
        self._slice_s = SLICE_S
        self._tables = 0
        # The proposal, and a table that it brings.
        self._proposed: Standing | None = None
        self._brought: VectorTable | None = None
        self._ends_pass = False

    @classmethod
    def of(
        cls, files: VersionReader, tables: Mapping[str, ServedTable], tensors: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> ItemVectors | None:
        """Return the vectors of a version; None if it ranks no items by vectors."""
        ranking = ItemRanking.of(files.manifest)
        tower = ranking.tower if ranking is not None else None
        if ranking is None or tower is None or not tower.tables <= tensors.keys():
            return None
        try:
            return cls(ItemRows(tower, TowerRuns(files, tower), tables, ranking.filtered))
        except FreshetError as error:
            log.warning("%s version %d ranks no items: %s", files.manifest.model, files.manifest.version, error)
            return None

    @property
    def arrays(self) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        standing, vectors = self._proposed or self._standing, self._brought or self._vectors
        if standing is None or vectors is None:
            return {}
        return {self._tower.table: {**vectors.arrays, OF: standing.of, SCORE: standing.score}}

    @property
    def nbytes(self) -> int:
        return self._vectors.nbytes if self._vectors is not None else 0

    @property
    def tables(self) -> Mapping[str, ServedTable]:
        return {self._vectors.name: self._vectors.table} if self._vectors is not None else {}

    @property
    def floor(self) -> int:
        return self._pass.publish_seq if self._pass is not None else IDLE

    @property
    def behind(self) -> bool:
        return self._standing is not None and self._standing.lag is not None

    @property
    def lag(self) -> tuple[int, float] | None:
        """Steps and seconds by which vectors lag; (0, 0) if they do not, None before open()."""
        standing = self._standing
        if standing is None:
            return None
        if standing.lag is None:
            return 0, 0.0
        return standing.generation.step - standing.lag.generation.step, time.monotonic() - standing.lag.since_s

    def changing(self, keys: Mapping[str, Sequence[NDArray[Any]]]) -> None:
        # A pass fills what filters read of records before its table is served.
        begun = self._pass.vectors if self._pass is not None else None
        for vectors in (self._vectors, self._brought, begun):
            if vectors is not None:
                vectors.changing(keys, self._tower.table)

    def refresh(self, epoch: int) -> bool:
        return self._vectors is not None and self._vectors.refresh(epoch)

    def open(self, state: DerivedState) -> None:
        try:
            whole = VectorPass(self._items, self._name(), state, time.monotonic)
            while not whole.step(state, np.inf):
                pass
            self._vectors = whole.vectors
            self._standing = self._said(state, self._vectors, None)
        except Exception:
            log.exception("no vectors of items yet; trying again")
            none, readers = reserved_rows(0, self._tower.columns), self._items.readers()
            self._vectors = VectorTable(self._name(), NO_KEYS, none, TowerWeights({}), readers, self._items.filtered)
            self._standing = self._said(state, self._vectors, Lag(state.generation, time.monotonic()), ABSENT)

    def stage(self, state: DerivedState, before: int, versions: dict[str, RowVersions]) -> None:
        self._drop()
        standing, vectors = self._standing, self._vectors
        if standing is None or vectors is None:
            return
        self._remember(before, standing)
        changes = {name: v.keys for name, v in versions.items() if name in self._tower.tables}
        if self._pass is not None:
            self._pass.note(changes, sum(len(v.keys) for v in versions.values()))
        lag = standing.lag
        delta = self._derived(state, changes, vectors) if lag is None else None
        if delta is None:
            lag = lag or Lag(standing.generation, time.monotonic())
            delta = self._members(state, before, changes.get(self._tower.table, NO_KEYS), vectors, lag)
        if len(delta.keys) or len(delta.removed):
            versions[vectors.name] = RowVersions()
            vectors.stage(delta, state.epoch, versions[vectors.name])
        self._proposed = self._said(state, vectors, lag)

    def turn(self, state: DerivedState) -> None:
        self._drop()
        standing, vectors = self._standing, self._vectors
        if standing is None or vectors is None:
            return
        self._ends_pass = self._pass is not None and self._pass.epoch > state.epoch
        was = self._history.get(state.epoch)
        if was is not None and was.table == vectors.name:
            self._proposed = self._said(state, vectors, was.lag)
            return
        # A newer table has replaced the one of that state.
        self._ends_pass, self._slice_s = True, LONGEST_SLICE_S
        try:
            self._brought, lag = self._copied(state, vectors, standing)
            self._proposed = self._said(state, self._brought, lag)
        except Exception:
            log.exception("no vectors of items until they are computed anew")
            lag = standing.lag or Lag(standing.generation, time.monotonic())
            self._proposed = self._said(state, vectors, lag, ABSENT)

    def settle(self, served: bool) -> None:
        if served and self._proposed is not None:
            self._standing = self._proposed
            self._vectors = self._brought or self._vectors
            if self._ends_pass:
                self._pass = None
        self._drop()

    def advance(self, state: DerivedState) -> bool:
        self._drop()
        if not self.behind or not state.readable():
            return False
        try:
            if self._pass is not None and self._pass.hopeless:
                self._give_up()
            if self._pass is None:
                self._pass = VectorPass(self._items, self._name(), state, time.monotonic)
            if not self._pass.step(state, self._slice_s):
                return False
            self._brought, lag = self._result(state, self._pass)
        except Exception:
            log.exception("vectors of items could not be computed; trying again")
            self._give_up()
            return False
        self._ends_pass, self._slice_s = True, SLICE_S
        self._proposed = self._said(state, self._brought, lag)
        return True

    def _give_up(self) -> None:
        self._pass, self._slice_s = None, min(2 * self._slice_s, LONGEST_SLICE_S)

    def _drop(self) -> None:
        self._proposed = self._brought = None
        self._ends_pass = False

    def _name(self) -> str:
        self._tables += 1
        return f"{NAME}-{self._tables}"

    def _said(
        self, state: DerivedState, vectors: VectorTable | None, lag: Lag | None, kind: int | None = None
    ) -> Standing:
        """Return what is said about vectors in a state, with the arrays that readers have where they are the same.

        `kind` is ABSENT for vectors that nobody may read until a pass brings others; None for what `lag` says.
        """
        assert vectors is not None, "it has been made"
        before, score = self._standing, self._tower.score.numbers(state.dense)
        of = vectors_of(lag.generation if lag is not None else None)
        unread = before is not None and before.table == vectors.name and before.of[0] == ABSENT
        if kind == ABSENT or unread:
            of[0] = ABSENT
        if before is not None:
            of = before.of if np.array_equal(of, before.of) else of
            score = before.score if np.array_equal(score.view(np.uint32), before.score.view(np.uint32)) else score
        return Standing(vectors.name, state.generation, lag, of, score)

    def _remember(self, epoch: int, standing: Standing) -> None:
        self._history.pop(epoch, None)
        self._history[epoch] = standing
        if len(self._history) > MOST_REMEMBERED:
            del self._history[first_of(self._history)]

    def _derived(self, state: DerivedState, changes: Mapping[str, Int64s], vectors: VectorTable) -> TableDelta | None:
        """Return the vectors that a staged delta changes; None if they have to lag."""
        if not state.readable() or not vectors.weights.holds(state.dense):
            return None
        try:
            touched = vectors.readers.touched({n: [keys] for n, keys in changes.items()}, vector_pass.AT_ONCE)
            if touched is None:
                return None
            self._items.index(vectors.readers, np.unique(changes.get(self._tower.table, NO_KEYS)), state.epoch)
            return self._items.derive(vectors, touched, state.epoch)
        except (FreshetError, MemoryError, ValueError) as error:
            log.warning("vectors of items lag: %s", error)
            return None

    def _members(self, state: DerivedState, before: int, keys: Int64s, vectors: VectorTable, lag: Lag) -> TableDelta:
        """Return which items are removed, and which come back with the vectors that they had.

        `keys` of the catalogue are changed by the delta that leads to the state; `before` is the epoch that is served.
        """
        keys = np.unique(keys)
        present = self._items.present(keys, state.epoch)
        had, rows = vectors.table.look_up(keys, before)
        gone = ~present[had]
        lag.removed.update(zip(keys[had][gone].tolist(), rows[gone].copy()))
        back = [key for key in keys[present & ~had].tolist() if key in lag.removed]
        put = np.array([lag.removed[key] for key in back], np.float32).reshape(len(back), self._tower.columns)
        return TableDelta(np.array(back, np.int64), put, np.ascontiguousarray(keys[had][gone]))

    def _copied(self, state: DerivedState, vectors: VectorTable, standing: Standing) -> tuple[VectorTable, Lag]:
        """Return the served vectors of the items of an older state, in a table of their own, and how they lag."""
        lag = standing.lag or Lag(standing.generation, time.monotonic())
        keys, rows = vectors.table.export(NEWEST)
        keys_copied = set(keys.tolist()) if lag.removed else set()
        if removed := [key for key in lag.removed if key not in keys_copied]:
            keys = np.concatenate([keys, np.array(removed, np.int64)])
            rows = np.concatenate([rows, np.array([lag.removed[key] for key in removed], np.float32)])
            order = np.argsort(keys)
            keys, rows = keys[order], rows[order]
        present = self._items.present(keys, state.epoch)
        copied = reserved_rows(int(present.sum()), self._tower.columns)
        copied[...] = rows[present]
        gone = dict(zip(keys[~present].tolist(), rows[~present].copy()))
        filtered = self._items.filtered
        table = VectorTable(self._name(), keys[present], copied, vectors.weights, vectors.readers, filtered)
        return table, Lag(lag.generation, lag.since_s, gone)

    def _result(self, state: DerivedState, done: VectorPass) -> tuple[VectorTable, Lag | None]:
        """Return a pass's table as it is served in a state, and how its vectors lag."""
        vectors = done.vectors
        assert vectors is not None, "it has a result"
        if done.current:
            return vectors, None
        since_s = time.monotonic() if done.superseded_s is None else done.superseded_s
        lag = Lag(done.generation, since_s)
        keys = np.concatenate([NO_KEYS, *done.changes.get(self._tower.table, [])])
        delta = self._members(state, state.epoch, keys, vectors, lag)
        if len(delta.removed):
            vectors.put(delta, state.epoch, state.publish_seq)
        return vectors, lag
