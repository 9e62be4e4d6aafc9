"""Train on histories: each event but the first is a target (models.training.next_item_functions).

A step reads the rows of all events and of the candidates, which are rows of the items' table, before it moves any;
every row moves once. Drawing a candidate is no occurrence of it. Candidates are drawn by id, not by place, so that a
resumed run draws the same; ordering a table's ids takes 0.03 s a step for a million items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.next_item_rows import NextItemRows
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding import kernels
from freshet_serving.models.embedding.variable import EmbeddingVariable, RowInitializer
from freshet_serving.models.training.batch_part import Write, write_rows
from freshet_serving.models.training.item_counts import Followed, ItemCounts, ItemRowInitializer
from freshet_serving.models.training.item_sources import ItemSources, with_sources
from freshet_serving.models.training.next_item_step import NextItemStep, Targets
from freshet_serving.models.training.trainer import NO_SPLITS, BoundBatch, Float32s, Int64s, Trainer
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.next_item_network import FASTER, MIXTURE_WEIGHTS
from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import CODES, MAX_LENGTH, SOURCE
from freshet_serving.processor.package import COMBINERS, SCORE, Manifest, SequenceEntry, TableEntry
from freshet_serving.processor.package.item_rows import ItemRows
from freshet_serving.processor.package.subgraphs import subgraphs
from freshet_serving.processor.running.graph_run import SubgraphRun

DRAWN = 7_919
"""Distinguishes the seeds of candidates from others of the run."""


class NextItemTrainer(Trainer):
    """A next-item network in training.

    A batch has one history a row, of at most max_length + 1 events; its label is how many of the newest are targets.

    Attributes:
        expected_items: Number of items that the batches to come will have met; 0 if unknown.
        counts: Counts of the items; None for rows that have none.
        counted_ahead: The events of the batches to come are counted already.
    """

    dense_step = NextItemStep

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig,
        fusion: Mapping[str, str] | None = None,
        tables: Mapping[str, TableConfig] | None = None,
        *others: Any,
    ) -> None:
        """As Trainer's."""
        item_feature = next(f for f in manifest.features if f.side == "item")
        with_table, self._sources_name = with_sources(manifest, item_feature, 1)
        super().__init__(with_table, settings, network, fusion, tables, *others)
        assert isinstance(self.dense, NextItemStep)
        self._step_of: NextItemStep = self.dense
        next_item = self.dense.arch.next_item
        if next_item is None:
            raise BadInput(f"model.arch: expected a next-item network, got {manifest.arch!r}")
        self._negatives, self.expected_items = next_item.negatives, 0
        (served,) = self.manifest.sequences
        self.sequence = _longer(served)
        # Histories alone: candidates are no part of a batch.
        of_events = [i for i in self.manifest.inputs if i.name in self.sequence.inputs]
        longer = replace(self.manifest, inputs=of_events, features=[], width=0, sequences=[self.sequence], sections={})
        self._longer_plan = SparsePlan(longer)
        self._read = [(row, f) for row, f in enumerate(longer.lookups) if f.table]
        graph = subgraphs(self.manifest)[SCORE]
        only = [i for i in graph.inputs if i.name == served.name]
        dims = [*only[0].dims[:-1], self.sequence.width]
        self._events = SubgraphRun(SCORE, replace(graph, inputs=[replace(only[0], dims=dims)]), self._longer_plan)
        (span,) = DenseInput.from_features(self.manifest.features, [self.sequence]).sequences
        items = {f.table for f in self.manifest.features if f.side == "item"}
        item = next(c for c in span.columns if c.table in items)
        self.dense.of_sequence(span, item)
        self.items, self.item_column = self.own[item.table], item.name
        self.rows = next_item.rows
        self.counts = ItemCounts(self.items, self.rows) if self.rows.popularity else None
        self.counted_ahead = False
        seed = manifest.table(item_feature.table).hash_seed
        self.sources = ItemSources(self.own[self._sources_name], seed, counted=False)
        self._seed = settings.known_seed

    def _first_rows(
        self, manifest: Manifest, table: TableEntry, network: NetworkConfig, config: TableConfig
    ) -> RowInitializer:
        plain = super()._first_rows(manifest, table, network, config)
        if table.name == self._sources_name:
            return RowInitializer("zeros")
        if table.name not in {f.table for f in manifest.features if f.side == "item"}:
            return plain
        layout = ItemRows.of(table.dim, network.options)
        return ItemRowInitializer(plain.kind, plain.scale, layout) if layout.popularity else plain

    def transform(self, batch: Batch) -> BoundBatch:
        with self.profile.timed("transform"):
            return BoundBatch(batch, self._longer_plan.bind_inputs(batch.columns))

    def learn(self, given: Batch | BoundBatch) -> float:
        """Take one optimizer step; return the targets' mean loss before it."""
        work = given if isinstance(given, BoundBatch) else self.transform(given)
        bound, rows = work.bound, len(work.batch)
        with self.profile.timed("look up"):
            for table in self.own.values():
                table.shrink_to_budget()
            columns = self._columns(bound)
            refs = {c.row: c.table.insert(c.values) for c in columns}
            item = next(c for c in columns if c.name == self.item_column)
            targets, drawn = self._targets(refs[item.row], item.splits, work.batch.label)
        if not targets.shares.any():
            self._count(refs[item.row], item.splits, work.batch)
            return 0.0
        with self.profile.timed_process("step"), self._writing(bound) as write:
            self._set_rates(self.steps)
            expected = min(self._negatives, self.expected_items)
            loss, pieces, by_candidates = self._step_of.learn(rows, write, targets, expected)
        self.steps += 1
        with self.profile.timed("update"):
            self.dense.move()
            for name, table in self.own.items():
                table_columns = [c for c in columns if c.table is table]
                if table_columns:
                    candidates = drawn if table is self.items else None
                    self._update(name, table_columns, refs, pieces, candidates, by_candidates)
            self._count(refs[item.row], item.splits, work.batch)
        return loss

    def count_log(self, log: NextItemRows, until: int) -> None:
        """Count the events of a pass, which ends before row `until`, before it is learned."""
        if self.counts is None:
            return
        columns, firsts, rows = log.whole_before(until)
        inputs: dict[str, Column] = {}
        for name, values in columns.items():
            assert not isinstance(values, Ragged), "a column has one value an event"
            # A history each: longer ones are cut.
            inputs[name] = Ragged(values, np.arange(len(firsts) + 1))
        bound = self._longer_plan.bind_inputs(inputs)
        item = next(c for c in self._columns(bound) if c.name == self.item_column)
        fitting = self.counts.count_log(item.values, firsts, rows, until)
        if self.rows.successors:
            first = self.dense.state.named()[MIXTURE_WEIGHTS].copy()
            first[1:] = fitting / FASTER
            self.dense.state.assign({MIXTURE_WEIGHTS: first})

    def _count(self, refs: Int64s, splits: Int64s, batch: Batch) -> None:
        if self.counts is None or self.counted_ahead:
            return
        self.counts.count_events(refs, splits, batch.label.astype(np.int64), batch.start)
        newest = np.repeat(np.diff(splits) - batch.label.astype(np.int64), np.diff(splits))
        place = np.arange(len(refs)) - np.repeat(splits[:-1], np.diff(splits))
        self.items.touch(np.unique(refs[(refs >= 0) & (place >= newest - 2)]))

    def states(self, given: Batch | BoundBatch) -> tuple[Float32s, NDArray[np.int64], NDArray[np.bool_]]:
        """Return the network's states [n, length, d] after each event but the last, and the events that followed.

        These are row numbers of items [n, length], -1 without a row, and which of them are targets. Changes nothing.
        """
        work = given if isinstance(given, BoundBatch) else self.transform(given)
        item = next(c for c in self._columns(work.bound) if c.name == self.item_column)
        nexts, real = self._nexts(self._find(item.values), item.splits, work.batch.label)
        with self._writing(work.bound) as write:
            return self._step_of.states(len(work.batch), write), nexts, real

    def catalogue(self) -> tuple[Int64s, Float32s]:
        with self.items.reading():
            live = self.items.live()
            rows = np.empty((len(live), self.items.dim), np.float32)
            self.items.read(live, rows)
        return live, rows

    def event_rows(self, work: BoundBatch) -> tuple[Int64s, Int64s]:
        """Return row numbers of the items of all events, -1 without a row, and the histories' ends."""
        item = next(c for c in self._columns(work.bound) if c.name == self.item_column)
        return self._find(item.values), item.splits

    def _find(self, ids: Int64s) -> Int64s:
        """Return row numbers, -1 without a row."""
        return np.maximum(self.items.find(ids), -1)

    def _targets(self, refs: Int64s, splits: Int64s, counts: Float32s) -> tuple[Targets, Int64s]:
        """Draw candidates; return the targets and the candidates' row numbers."""
        nexts, real = self._nexts(refs, splits, counts)
        real &= nexts >= 0
        live = self.items.live()
        drawn, raised = live, 0.0
        if len(live) > self._negatives:
            random = np.random.default_rng((self._seed, DRAWN, self.steps))
            drawn = live[np.sort(random.choice(len(live), self._negatives, replace=False))]
            raised = float(np.log(len(live) / len(drawn)))
        place = np.full(int(live.max(initial=-1)) + 1, -1, np.int64)
        place[drawn] = np.arange(len(drawn))
        places = np.where(real, place[np.where(real, nexts, 0)], -1) if len(place) else np.full(real.shape, -1)
        shares = (real / max(1, int(real.sum()))).astype(np.float32)
        rows = np.empty((len(drawn), self.items.dim), np.float32)
        self.items.read(drawn, rows)
        dense = np.ascontiguousarray(rows[:, : self.rows.dense])
        return Targets(places, shares, dense, raised, self._followed(refs, splits, nexts, real, place)), drawn

    def _followed(
        self, refs: Int64s, splits: Int64s, nexts: Int64s, real: NDArray[np.bool_], place: Int64s
    ) -> tuple[Float32s, ...]:
        """Return the successors for Targets; `place` maps row numbers to candidates."""
        if self.counts is None or not self.rows.successors:
            return ()
        followed = self.followed(refs, splits, nexts, real, self.counted_ahead)
        places_of = np.append(place, -1)
        places = np.where(followed.refs < len(place), places_of[np.minimum(followed.refs, len(place))], -1)
        shares = np.where((places >= 0)[:, :, None], followed.shares, 0.0)
        targets = np.flatnonzero(real.reshape(-1))
        filled = []
        for values in (places, shares[:, :, 0], shares[:, :, 1], followed.own):
            whole = np.zeros((real.size, values.shape[1]), np.float32)
            whole[targets] = values
            filled.append(whole.reshape(*real.shape, -1))
        return tuple(filled)

    def followed(
        self, refs: Int64s, splits: Int64s, nexts: Int64s, real: NDArray[np.bool_], counted: bool = False
    ) -> Followed:
        """Return what has followed the events before the targets, one target after another.

        `refs` are all events' items, those of history i at [splits[i], splits[i + 1]); `nexts`, `real` as of states().
        """
        assert self.counts is not None
        history, at = np.nonzero(real)
        last = refs[splits[history] + at] if len(refs) else np.empty(0, np.int64)
        before = np.where(at > 0, refs[np.maximum(splits[history] + at - 1, 0)], -1) if len(refs) else last
        return self.counts.followed(last, before, nexts[real], counted)

    def _nexts(self, refs: Int64s, splits: Int64s, counts: Float32s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Return the row numbers of what follows each event [n, length], and which of them are targets."""
        length = self.sequence.max_length - 1
        lengths, places = np.diff(splits), np.arange(1, length + 1)
        real = (places < lengths[:, None]) & (places >= (lengths - counts.astype(np.int64))[:, None])
        at = np.where(real, splits[:-1, None] + places, 0)
        return np.where(real, refs[at], -1) if len(refs) else np.full(real.shape, -1), real

    def _columns(self, bound: BoundRequest) -> list[_EventColumn]:
        columns = []
        for row, f in self._read:
            ids = bound.keep[self._longer_plan.lookups[row, SOURCE]]
            assert ids.splits is not None
            columns.append(_EventColumn(row, f.name, self.own[f.table], ids.values.reshape(-1), ids.splits))
        return columns

    @contextmanager
    def _writing(self, bound: BoundRequest) -> Iterator[Write]:
        with self._reading_tables() as tables:
            yield write_rows(self._events, tables, bound)

    def _update(
        self,
        name: str,
        columns: Sequence[_EventColumn],
        refs: Mapping[int, Int64s],
        pieces: Sequence[tuple[int, Float32s]],
        drawn: Int64s | None,
        by_candidates: Float32s,
    ) -> None:
        """Take one optimizer step on a table's rows by `pieces` and candidates, of which `drawn` are of this table."""
        values = sum(len(refs[c.row]) for c in columns) + (0 if drawn is None else len(drawn))
        place, (touched, sums, met) = self.own[name].place, self._scratch_of(name, 0, values)
        offsets, count = {c.name: c.offset for c in self.sequence.columns}, 0
        none = COMBINERS["none"].code
        for c in columns:
            most, codes = self._longer_plan.lookups[c.row, [MAX_LENGTH, CODES]].tolist()
            for start, grad in pieces:
                rows, times = np.arange(start, start + len(grad)), np.ones(len(grad), np.int64)
                batch = (refs[c.row], c.splits, rows, times, none, most, codes, grad, offsets[c.name], 0, 1)
                count = kernels.accumulate(*batch, place, touched, sums, met, count)
        if drawn is not None:
            read = met[:count].copy()
            rows, times = np.arange(len(drawn)), np.ones(len(drawn), np.int64)
            whole = np.zeros((len(drawn), self.items.dim), np.float32)
            whole[:, : by_candidates.shape[1]] = by_candidates
            plain = (drawn, NO_SPLITS, rows, times, COMBINERS["sum"].code, 0, 1, whole, 0, 0, 1)
            count = kernels.accumulate(*plain, place, touched, sums, met, count)
            met[: len(read)], met[len(read) : count] = read, 0
        kernels.forget(place, touched[:count])
        counted = self.rows.dim if self.own[name] is self.items else self.own[name].dim
        counts = self.own[name].rows[touched[:count], counted:]
        self._take_step(name, touched[:count], sums[:count], met[:count])
        self.own[name].rows[touched[:count], counted:] = counts


@dataclass(frozen=True, slots=True)
class _EventColumn:
    """The events of a batch in one column; those of history i are [splits[i], splits[i + 1])."""

    row: int
    name: str
    table: EmbeddingVariable
    values: Int64s
    splits: Int64s


def _longer(served: SequenceEntry) -> SequenceEntry:
    """Return a sequence with one more event, the last target."""
    length, columns, offset = served.max_length + 1, [], 0
    for c in served.columns:
        width = c.width // served.max_length * length
        columns.append(replace(c, offset=offset, width=width))
        offset += width
    width = offset + (length if served.time else 0)
    return replace(served, columns=columns, max_length=length, width=width)
