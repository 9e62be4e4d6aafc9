"""Collect the rows of remote tables that one batch reads: from deltas, from the cache, and the rest from the store.

An id's newest local row version as of the batch's epoch wins: either that row or, for a tombstone, the default row. An
id without one has the row of the version's upload in the store, which never changes, or none. So a reply has one
generation, and equals to the bit what the same version serves from memory, unless rows were unavailable.

Unavailable rows (the store is down or slow, or has lost buckets) are counted, logged at most once a second, and then,
by RemoteConfig.on_error, either replaced by the table's default row or the reason to fail the batch with NotReady. They
are never cached, so scores are right again with the first batch after the store recovers.

A batch's substitute tables belong to the session that runs the batch, which holds its pin while it waits for the store:
applying a delta may take `timeout_s` longer; readers do not wait. Counters are guarded by a lock.

Costs: one pass over the batch's ids to gather the distinct ones into an index of their own (the fused kernel then runs
on that index, unchanged), one copy of each row, and at most one round trip per batch, for all its tables.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.counter_block import CounterBlock, Slot, Snapshot
from freshet_serving.processor.errors import Corrupt, NotReady
from freshet_serving.processor.extensions.remote_rows import batch_ids as kernels
from freshet_serving.processor.extensions.remote_rows.bucket_bytes import LOST
from freshet_serving.processor.extensions.remote_rows.cache import Bytes, Int64s, RowCache
from freshet_serving.processor.extensions.remote_rows.cached_rows import place
from freshet_serving.processor.extensions.remote_rows.layout import (
    COMPLETE,
    MAX_MARKER_NBYTES,
    StoredTable,
    parse_marker,
)
from freshet_serving.processor.extensions.remote_rows.remote_table import RemoteTable
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest, inputs_of
from freshet_serving.processor.features.late_values import fill_left_out
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.tables.remote_rows import REMOTE_ROWS, BatchTables, RemoteConfig
from freshet_serving.processor.tables.row_store import RowStore, open_store

log = logging.getLogger("freshet.remote")

LOG_EVERY_S = 1.0

COUNTERS = (
    Slot(REMOTE_ROWS, "asked", "model_remote_ids", "Distinct ids looked up in the row store or its cache."),
    Slot(REMOTE_ROWS, "cached", "model_remote_cached_ids", "Row store ids answered from the cache."),
    # With a row, or that there is none.
    Slot(REMOTE_ROWS, "fetched"),
    Slot(REMOTE_ROWS, "lost", "model_remote_unavailable_ids", "Row store ids whose row was unavailable."),
    Slot(REMOTE_ROWS, "fetches", "model_remote_fetches", "Batches that queried the row store."),
    Slot(REMOTE_ROWS, "fetch_s", "model_remote_fetch_seconds", "Seconds spent in row store queries.", zero=0.0),
)
ASKED, CACHED, FETCHED, UNAVAILABLE, FETCHES, FETCH_S = range(len(COUNTERS))


@dataclass(frozen=True, slots=True, eq=False)
class MissingRows:
    """Ids of a batch without a local row version, in parallel arrays.

    Those of remote table k are ids[starts[k]:][:counts[k]].

    Attributes:
        entries: Addresses of the ids' refs in the substitute indexes.
        rows: int64 [K, 3]: address of each table's rows, bytes of one row, address of their scales.
        status: Status of each id, see bucket_bytes.
    """

    starts: Int64s
    counts: Int64s
    ids: Int64s
    entries: Int64s
    rows: Int64s
    status: Bytes


class StoredTables:
    """The remote tables of a process: its store and its configuration. One for all models."""

    def __init__(self, config: RemoteConfig, store: RowStore, clock: Clock) -> None:
        self.config, self._store, self._clock = config, store, clock

    @classmethod
    def of(cls, config: RemoteConfig, clock: Clock) -> StoredTables:
        """Open the store that a configuration names; raises BadInput if its URL is not valid."""
        return cls(config, open_store(config.url, config.timeout_s, clock), clock)

    def stored(self, manifest: Manifest) -> list[StoredTable]:
        """Return the version's remote tables; raise NotReady unless all of them are complete in the store."""
        # Records are read before the keys in them can be looked up: they stay in memory.
        names = [t.name for t in manifest.embeddings if self.config.is_remote(manifest.model, t.name)]
        return [self._stored(manifest, name) for name in names]

    def tables(self, manifest: Manifest) -> dict[str, RemoteTable]:
        """Return the version's remote tables by name; raise NotReady unless all of them are complete in the store."""
        specs = {spec.name: spec for spec in manifest.tables}
        return {stored.table: RemoteTable(specs[stored.table]) for stored in self.stored(manifest)}

    def open_reader(self, manifest: Manifest, plan: SparsePlan) -> RemoteReader | None:
        """Return a reader of the version's remote tables, None if it has none; NotReady unless they are complete."""
        tables = self.stored(manifest)
        return RemoteReader(manifest, plan, tables, self.config, self._store, self._clock) if tables else None

    def close(self) -> None:
        self._store.close()

    def _stored(self, manifest: Manifest, name: str) -> StoredTable:
        table = StoredTable.of(manifest, name)
        data = self._store.read(table.marker_key, MAX_MARKER_NBYTES)
        how = f"run: freshet tables push {manifest.model} --version {manifest.version} --table {name}"
        if data is None:
            raise NotReady(f"table {table.name} is not in the row store; {how}")
        try:
            stored, state = parse_marker(data)
        except Corrupt as error:
            raise NotReady(f"table {table.name}: {error}") from None
        if state != COMPLETE:
            raise NotReady(f"table {table.name} is not complete in the row store; {how}")
        if stored != table:
            raise NotReady(f"table {table.name} in the row store is from another upload; drop it, then {how}")
        return table


class RemoteReader:
    """Provides the rows of one version's remote tables, batch by batch, for any number of sessions."""

    def __init__(
        self,
        manifest: Manifest,
        plan: SparsePlan,
        tables: Sequence[StoredTable],
        config: RemoteConfig,
        store: RowStore,
        clock: Clock,
    ) -> None:
        self._plan, self._tables = plan, tables
        self._store, self._clock = store, clock
        self._fails = config.on_error == "fail"
        order = [t.name for t in manifest.tables]
        self._numbers = np.array([order.index(t.table) for t in tables], np.int64)
        self._remote = np.full(max(1, len(order)), -1, np.int64)
        self._remote[self._numbers] = np.arange(len(tables))
        self._nbytes = np.array([t.row_nbytes for t in tables], np.int64)
        self._cache = RowCache([t.value_nbytes for t in tables], config.cache_rows)
        self._lock = threading.Lock()
        self._counters = CounterBlock(COUNTERS)
        self._log_at_s = -LOG_EVERY_S

    def holds(self, table: int) -> bool:
        """Return whether the rows of a table, by its number in the manifest, are in the row store."""
        return bool(self._remote[table] >= 0)

    def counted(self) -> Snapshot:
        with self._lock:
            return self._counters.snapshot()

    def batch_tables(
        self, tables: NDArray[np.int64], epoch: int, bound: Sequence[BoundRequest], spans: NDArray[np.int64]
    ) -> BatchTables:
        """Return descriptors, int64 [T, TABLE_FIELDS], of everything that a batch reads, as of a pinned state.

        Raises NotReady if rows were unavailable and the policy is to fail.
        """
        inputs, left_out = inputs_of(bound), None
        if self._plan.entities:
            uncounted = np.zeros((len(tables), 2), np.int64)
            view = BatchView(tables, epoch, bound, spans, uncounted)
            left_out = fill_left_out(self._plan.entities, view, inputs)
        stands, starts = np.empty((len(self._tables), 3), np.int64), np.empty(len(self._tables) + 1, np.int64)
        plan, remote = self._plan.lookups, self._remote
        size = kernels.lay_out(plan, inputs, spans, remote, stands, starts)
        most = int(starts[-1])
        index, ids, entries = np.empty((size, 2), np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
        counts = np.empty(len(self._tables), np.int64)
        kernels.collect(tables, plan, inputs, spans, epoch, remote, index, stands, starts, ids, entries, counts)
        del left_out
        ends, scale_ends = np.cumsum(counts * self._nbytes), np.cumsum(counts)
        rows, scales = np.empty(int(ends[-1]), np.uint8), np.empty(int(scale_ends[-1]), np.float32)
        places = np.empty((len(counts), 3), np.int64)
        places[:, 0] = rows.ctypes.data + ends - counts * self._nbytes
        places[:, 1] = self._nbytes
        places[:, 2] = scales.ctypes.data + 4 * (scale_ends - counts)
        self._supply(MissingRows(starts, counts, ids, entries, places, np.empty(most, np.uint8)))
        standing = tables.copy()
        for at, values in (
            (row_kernels.INDEX, stands[:, 0]),
            (row_kernels.CAPACITY, stands[:, 1]),
            (row_kernels.BASE, places[:, 0]),
            (row_kernels.BASE_ROWS, stands[:, 2]),
            (row_kernels.SCALES, places[:, 2]),
        ):
            standing[self._numbers, at // 8] = values
        return BatchTables(standing, (index, rows, scales))

    def _supply(self, waiting: MissingRows) -> None:
        asked = int(waiting.counts.sum())
        unknown = self._cache.take(
            waiting.starts, waiting.counts, waiting.ids, waiting.entries, waiting.rows, waiting.status
        )
        lost, problem, taken_s = 0, "", 0.0
        if unknown:
            started_s = self._clock.now_s()
            lost, problem = self._fetch(waiting)
            taken_s = self._clock.now_s() - started_s
        self._count(asked, unknown, lost, taken_s, problem)
        if lost and self._fails:
            raise NotReady(f"could not fetch {lost} embedding rows: the row store {problem}")

    def _fetch(self, waiting: MissingRows) -> tuple[int, str]:
        """Fetch all ids still LOST in one round trip; return how many stay lost, and why."""
        jobs = []
        keys: list[bytes] = []
        max_nbytes = 0
        for k, table in enumerate(self._tables):
            part_ids = slice(int(waiting.starts[k]), int(waiting.starts[k] + waiting.counts[k]))
            positions = np.flatnonzero(waiting.status[part_ids] == LOST)
            if len(positions):
                ids = waiting.ids[part_ids][positions]
                row_keys, bucket = table.plan(ids)
                jobs.append((k, table, part_ids, positions, ids, bucket, slice(len(keys), len(keys) + len(row_keys))))
                keys += row_keys
                max_nbytes += table.max_nbytes(len(row_keys))
        reply = self._store.fetch(keys, max_nbytes)
        lost = 0
        for k, table, part_ids, positions, ids, bucket, part in jobs:
            rows, status = table.unpack(reply.values[part], bucket, ids)
            lost += place(positions, waiting.entries[part_ids], waiting.rows[k], rows, status)
            self._cache.keep(k, ids, rows, status)
        return lost, reply.problem or "has lost some of its buckets"

    def _count(self, asked: int, unknown: int, lost: int, taken_s: float, problem: str) -> None:
        with self._lock:
            cells = self._counters.cells
            cells[ASKED] += asked
            cells[CACHED] += asked - unknown
            cells[FETCHED] += unknown - lost
            cells[UNAVAILABLE] += lost
            cells[FETCHES] += unknown > 0
            cells[FETCH_S] += taken_s
            total = cells[UNAVAILABLE]
            now_s = self._clock.now_s()
            if not lost or now_s < self._log_at_s + LOG_EVERY_S:
                return
            self._log_at_s = now_s
        log.warning("could not fetch %d embedding rows (%d since the start): the row store %s", lost, total, problem)
