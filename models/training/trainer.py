"""Train on a batch in five stages, the last three of them here.

read       a source's batches (models.data)
transform  bind a batch to the plan: hash strings, compute columns as serving does; touches no state
look up    find or insert a row for every id; serving's kernel pools rows into the dense input
step       the network, forward and backward (models.training.dense_step)
update     propagate the gradient to the rows that were read, each moved once, and move the network's weights

Read, transform and reading rows from disk run ahead in threads (models.data.prefetch, prefetch_windows). The other
stages run one after another, each on all cores, so a batch reads what the previous one has written: staleness is 0, and
training is a function of rows, seed and configuration, identical to the bit on the same number of cores.

score() returns what a server at this state would: no insertion, default rows for unseen ids, inference mode.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.model_section import ONE_LABEL, NetworkConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding import kernels
from freshet_serving.models.embedding.admission import Admission, AdmitAll, CountingBloom, ExactCounts
from freshet_serving.models.embedding.id_shards import of_process
from freshet_serving.models.embedding.optimizer import row_optimizer
from freshet_serving.models.embedding.row_budget import RowBudget
from freshet_serving.models.embedding.trained_table import TrainedTable
from freshet_serving.models.embedding.variable import EmbeddingVariable, Eviction, RowInitializer
from freshet_serving.models.runs.step_profile import StepProfile
from freshet_serving.models.training.batch_part import GradientPiece, Write, write_rows
from freshet_serving.models.training.defaults import of_table
from freshet_serving.models.training.dense_step import PARTS_APART, DenseStep
from freshet_serving.models.training.losses import mean_shares
from freshet_serving.models.training.prefetch_windows import PrefetchWindows
from freshet_serving.models.training.same_histories import SameHistories
from freshet_serving.models.training.schedule import rate_factor
from freshet_serving.models.training.shared_lists import FirstRows, ListSharing
from freshet_serving.models.training.worker_pool import WorkerPool
from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.columns import Column
from freshet_serving.processor.cores import available
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import CODES, MAX_LENGTH, SOURCE
from freshet_serving.processor.package import COMBINERS, SCORE, Manifest, TableEntry
from freshet_serving.processor.package.subgraphs import subgraphs
from freshet_serving.processor.running.graph_run import SubgraphRun
from freshet_serving.processor.tables.table import descriptors

NO_SPLITS = np.zeros(1, np.int64)
FEW_IDS = 1 << 14
"""With fewer ids, waking another thread does not pay: with 2,048 rows of 8 ids the parts take a millisecond."""
BLOOM_ERROR = 0.01
"""Share of ids that a Bloom filter may admit too early."""

FEW_NEW, APART_ROWS = 4, 256
"""New ids are scored apart if at most one in FEW_NEW of the rows beyond APART_ROWS has one: a part of the network's
rows costs as much as a small batch."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Pieces = list[GradientPiece]
NONE_SHARED: FirstRows = {}


@dataclass(frozen=True, slots=True)
class BoundBatch:
    """A batch after its transform; `firsts` are the rows that hold lists which others share (shared_lists)."""

    batch: Batch
    bound: BoundRequest
    firsts: FirstRows = field(default_factory=dict, kw_only=True)


class Trainer:
    """A model in training, with whole `tables` and `own`, this process's part of them (models.parallel)."""

    dense_step = DenseStep

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
        tables: Mapping[str, TableConfig] | None = None,
        scratch: Path | None = None,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        """Create a model with new weights. Raises BadInput for an unknown architecture or optimizer.

        Args:
            manifest: The draft (models.training.spec).
            settings: [train], filled in (models.training.defaults).
            fusion: Additional outputs as expressions (compiler.dense.fusion).
            scratch: Folder for rows of tables with a budget; by default that of temporary files.
            processes: Number of processes that share the tables.
        """
        self.settings = settings
        self.plan = SparsePlan(manifest)
        configs, shards = tables or {}, of_process(process, processes)
        self.own: dict[str, EmbeddingVariable] = {}
        self.rates: dict[str, float] = {}
        self._evictions: dict[str, Eviction] = {}
        # Tables whose rows are counts: each step adds to them, whatever the rate.
        self._counts = {f.table for f in manifest.features if f.name in network.counts}
        for n, t in enumerate(manifest.tables):
            config = configs.get(t.name, TableConfig())
            table_settings = of_table(settings, config)
            self.rates[t.name] = table_settings.learning_rate
            self._evictions[t.name] = Eviction(config.evict_after_steps, config.evict_below_norm)
            self.own[t.name] = EmbeddingVariable(
                t.name,
                t.dim,
                row_optimizer(table_settings.optimizer, table_settings),
                settings.known_seed * 1_000_003 + n,
                self._first_rows(manifest, t, network, config),
                _admission(config, shards),
                _budget(config, scratch, processes),
            )
        self.tables: Mapping[str, TrainedTable] = self.own
        self.tiers = {name: table.tiers for name, table in self.own.items() if table.tiers is not None}
        self._readers = {name: [(i, f) for i, f in enumerate(manifest.lookups) if f.table == name] for name in self.own}
        # The dense graph's input that has each lookup.
        of_sequences = [s.name for s in manifest.sequences for _ in s.columns]
        self._held_by = [MATRIX] * len(manifest.features) + of_sequences
        self._worker_pool = WorkerPool(len(available()))
        share = replace(settings, batch_rows=-(-settings.batch_rows // processes))
        self.dense = self.dense_step(manifest, share, network, fusion, self._worker_pool, process * PARTS_APART)
        self.manifest = self.dense.described(manifest)
        # Fills the dense graph's inputs, as a server does.
        self.run = SubgraphRun(SCORE, subgraphs(self.manifest)[SCORE], self.plan)
        self._histories = SameHistories(self.manifest, self.plan) if self.dense.shares_histories else None
        counting = [name for name, table in self.own.items() if not isinstance(table.admission, AdmitAll)]
        self._sharing = ListSharing(self.manifest, counting)
        self.profile = StepProfile(lambda: self._worker_pool.helper_cpu_s)
        self._scratch: dict[tuple[str, int], tuple[Int64s, Float32s, Int64s]] = {}
        self.steps, self.rate_factor = 0, 1.0

    def _first_rows(
        self, manifest: Manifest, table: TableEntry, network: NetworkConfig, config: TableConfig
    ) -> RowInitializer:
        return RowInitializer(config.init, config.init_scale)

    def transform(self, batch: Batch) -> BoundBatch:
        """Bind a batch to the plan. Thread-safe."""
        with self.profile.timed("transform"):
            columns, firsts = self._sharing.shared(batch.columns)
            return BoundBatch(batch, self.plan.bind_inputs(columns), firsts=firsts)

    def with_prefetched_rows(
        self, items: PrefetchPipeline, works: Callable[[Any], list[BoundBatch]] = lambda work: [work]
    ) -> PrefetchPipeline | PrefetchWindows:
        """Return items of batches works(item) with their rows in memory; unchanged if no table has rows on disk."""

        def ids_of(item: Any) -> Iterator[tuple[str, Int64s]]:
            for work in works(item):
                for name in self.tiers:
                    yield from ((name, ids) for _, ids in self._values(name, work.bound))

        return PrefetchWindows(items, ids_of, self.tiers, self.profile) if self.tiers else items

    def learn(self, given: Batch | BoundBatch) -> float:
        """Take one optimizer step on a batch; return its mean loss before the step."""
        work = given if isinstance(given, BoundBatch) else self.transform(given)
        bound, label, share = work.bound, work.batch.label, mean_shares(len(work.batch), work.batch.weight)
        self.dense.ready(bound.rows, self._same(bound))
        with self.profile.timed("look up"):
            for table in self.own.values():
                table.shrink_to_budget()
            inserted = self._worker_pool.run(
                [partial(self._insert, name, bound) for name in self.own], bound.ids < FEW_IDS
            )
            refs = dict(item for table in inserted for item in table)
            with self._pooling(bound) as write:
                self.dense.fill(self._sharing.spread(write, work.firsts), bound.ids < FEW_IDS)
        with self.profile.timed_process("step"):
            self._set_rates(self.steps)
            loss, grads = self.dense.gradients(label, share)
        self.steps += 1
        with self.profile.timed("update"):
            self._worker_pool.run([self.dense.move, *self._moves(work, refs, grads)], bound.ids < FEW_IDS)
        return loss

    def learn_scored(self, work: BoundBatch) -> tuple[float, Float32s]:
        """Score a batch as score() does and learn it, in one pass of the network if possible.

        Rows with an id that is new in this step are scored before: servers have no row of it yet.
        """
        new = self._rows_with_new_ids(work.bound) if self.dense.has_scores else None
        if new is None or len(new) * FEW_NEW > max(0, len(work.batch) - APART_ROWS):
            scores = self.score(work)
            return self.learn(work), scores
        apart = self.score(self.transform(work.batch.take(new))) if len(new) else None
        loss, scores = self.learn(work), self.dense.scores()
        if apart is not None:
            scores[new] = apart
        return loss, scores

    def _rows_with_new_ids(self, bound: BoundRequest) -> Int64s:
        """Return the numbers of the rows with an id that has no row in its table."""
        new = [np.empty(0, np.int64)]
        for name, table in self.own.items():
            for row, ids in self._values(name, bound):
                absent = np.flatnonzero(table.find(ids) < 0)
                splits = bound.keep[self.plan.lookups[row, SOURCE]].splits
                new.append(absent if splits is None else np.searchsorted(splits, absent, side="right") - 1)
        return np.unique(np.concatenate(new))

    def _same(self, bound: BoundRequest) -> Int64s | None:
        """Return for each row the first one with the same histories; None if they are not shared."""
        return None if self._histories is None else self._histories.first_rows(bound)

    def score(self, given: Mapping[str, Column] | BoundBatch) -> NDArray[np.float32]:
        """Return scores [n] or [n, labels] as a server at this state would answer; changes nothing."""
        bound, firsts = self._as_bound(given)
        with self._pooling(bound) as write:
            return self.dense.score(bound.rows, self._sharing.spread(write, firsts))

    def dense_inputs(self, given: Mapping[str, Column] | BoundBatch) -> dict[str, Float32s]:
        """Return all inputs of the dense graph from the current tables."""
        return self._pooled(*self._as_bound(given))

    def _as_bound(self, work: Mapping[str, Column] | BoundBatch) -> tuple[BoundRequest, FirstRows]:
        return (work.bound, work.firsts) if isinstance(work, BoundBatch) else (self.plan.bind_inputs(work), {})

    def _pooled(self, bound: BoundRequest, firsts: FirstRows = NONE_SHARED) -> dict[str, Float32s]:
        inputs = self.run.spec.allocate_inputs(bound.rows)
        with self._pooling(bound) as write:
            self._sharing.spread(write, firsts)(slice(0, bound.rows), inputs)
        return inputs

    def evict(self) -> int:
        """Apply the tables' eviction rules; return the number of removed rows."""
        return sum(table.evict(self._evictions[name], self.steps) for name, table in self.own.items())

    def clear(self) -> None:
        """Remove every row of every table."""
        for table in self.own.values():
            table.clear()

    def saved(self, whole: bool) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint has beside tables and network: all, or changes since the last call. Nothing here."""
        return {}

    def restore_saved(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take in a result of saved() on top of those before."""

    def count_from(self, steps: int) -> None:
        """Set the number of steps taken; rates are those of the last step."""
        self.steps = steps
        if steps:
            self._set_rates(steps - 1)

    def _set_rates(self, step: int) -> None:
        self.rate_factor = rate_factor(self.settings, step)
        self.dense.scale_rate(self.rate_factor)

    def progress(self) -> dict[str, Any]:
        """Return step, rates and rows of tables for a progress line."""
        return {
            "step": self.steps,
            "dense_learning_rate": self.settings.dense_learning_rate * self.rate_factor,
            "learning_rates": {name: rate * self.rate_factor for name, rate in self.rates.items()},
            "table_rows": {name: len(table) for name, table in self.tables.items()},
        }

    def _values(self, name: str, bound: BoundRequest) -> Iterator[tuple[int, Int64s]]:
        """Yield each feature of a table, as its row of the plan, and its ids in a batch."""
        for row, f in self._readers[name]:
            column = bound.keep[self.plan.lookups[row, SOURCE]]
            values = column.values.reshape(-1)
            if column.splits is None and column.stride > 1:
                values = np.ascontiguousarray(values[f.column :: column.stride])
            yield row, values

    def _insert(self, name: str, bound: BoundRequest) -> list[tuple[int, Int64s]]:
        """Find or insert rows of a table; return row numbers by feature, whose occurrences are counted together."""
        rows, values = zip(*self._values(name, bound))
        refs = self.own[name].insert(np.concatenate(values) if len(values) > 1 else values[0])
        ends = np.cumsum([len(ids) for ids in values])
        return list(zip(rows, np.split(refs, ends[:-1])))

    @contextmanager
    def _pooling(self, bound: BoundRequest) -> Iterator[Write]:
        with self._reading_tables() as tables:
            yield write_rows(self.run, tables, bound)

    @contextmanager
    def _reading_tables(self) -> Iterator[Int64s]:
        """Yield descriptors of the tables, which do not change meanwhile."""
        with ExitStack() as reading:
            for table in self.own.values():
                reading.enter_context(table.reading())
            yield descriptors([table.descriptor() for table in self.own.values()])

    def _moves(self, work: BoundBatch, refs: Mapping[int, Int64s], grads: Pieces) -> list[Callable[[], None]]:
        """Return calls that update the rows that were read; a table with many of the ids has several."""
        calls: list[Callable[[], None]] = []
        bound = work.bound
        for name, table in self.own.items():
            ids = sum(len(refs[i]) for i, _ in self._readers[name])
            several = ids * self._worker_pool.size > bound.ids and ids > FEW_IDS
            parts = self._worker_pool.size if several else 1
            # Created here, so that no two threads create it.
            place = table.place
            calls += [partial(self._move, name, place, part, parts, ids, work, refs, grads) for part in range(parts)]
        return calls

    def _move(
        self,
        name: str,
        place: NDArray[np.int32],
        part: int,
        parts: int,
        ids: int,
        work: BoundBatch,
        refs: Mapping[int, Int64s],
        grads: Pieces,
    ) -> None:
        """Take one optimizer step on the rows of a table with number = `part` modulo `parts`."""
        touched, sums, met = scratch = self._scratch_of(name, part, ids)
        count = self._add_up(name, place, part, parts, work.bound, refs, grads, *scratch, work.firsts)
        kernels.forget(place, touched[:count])
        self._take_step(name, touched[:count], sums[:count], met[:count])

    def _add_up(
        self,
        name: str,
        place: NDArray[np.int32],
        part: int,
        parts: int,
        bound: BoundRequest,
        refs: Mapping[int, Int64s],
        grads: Pieces,
        touched: Int64s,
        sums: Float32s,
        met: Int64s,
        firsts: FirstRows = NONE_SHARED,
    ) -> int:
        """Sum the gradients of all features of a table (kernels.accumulate); return the number of rows."""
        count = 0
        for i, f in self._readers[name]:
            splits = bound.keep[self.plan.lookups[i, SOURCE]].splits
            ends = NO_SPLITS if splits is None else splits
            combiner, (most, codes) = COMBINERS[f.combiner].code, self.plan.lookups[i, [MAX_LENGTH, CODES]].tolist()
            for piece in grads:
                if (first := firsts.get(f.input)) is not None:
                    (grad, rows, times), offset = self._sharing.summed(f, piece, first), 0
                else:
                    grad, offset = piece.by_inputs[self._held_by[i]], f.offset
                    rows, times = piece.rows_of(self._held_by[i])
                batch = (refs[i], ends, rows, times, combiner, most, codes, grad, offset, part, parts)
                count = kernels.accumulate(*batch, place, touched, sums, met, count)
        return count

    def _take_step(self, name: str, touched: Int64s, sums: Float32s, met: Int64s) -> None:
        """Apply the optimizer to rows of a table by number."""
        rate = self.rates[name] * self.rate_factor
        if name in self._counts:
            rate = 1.0
        elif self.settings.clip_norm:
            kernels.clip_rows(sums, self.settings.clip_norm)
        self.own[name].update(touched, sums, met, rate, self.steps)

    def _scratch_of(self, name: str, part: int, ids: int) -> tuple[Int64s, Float32s, Int64s]:
        """Return row numbers, gradients and counts [ids]; reused, because new pages cost as much as the sums."""
        scratch = self._scratch.get((name, part))
        if scratch is None or len(scratch[0]) < ids:
            sums = np.empty((ids, self.own[name].dim), np.float32)
            scratch = self._scratch[name, part] = np.empty(ids, np.int64), sums, np.empty(ids, np.int64)
        return scratch


def _budget(config: TableConfig, scratch: Path | None, processes: int) -> RowBudget | None:
    if not config.memory_mb:
        return None
    return RowBudget((config.memory_mb << 20) // processes, scratch or Path(tempfile.gettempdir()))


def _admission(config: TableConfig, shards: range) -> Admission:
    if config.admit_after == 1:
        return AdmitAll()
    if config.admit_by == "counts":
        return ExactCounts(config.admit_after)
    return CountingBloom(config.admit_after, config.admit_ids, BLOOM_ERROR, shards)
