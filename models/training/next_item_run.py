"""Run `freshet train` for a network that learns which item comes next.

As models.training.loop, but a row of the log is an event of its user's history and has no label or score: the full
version learns a history a user (models.data.next_item_rows), a delta the histories of its rows' users. The held-out
tail is measured by hit rate and NDCG over the whole catalogue, before training on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.next_item_rows import NextItemRows, newest_histories
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.sequence_columns import SequenceSource, entering, event_values
from freshet_serving.models.data.source import Batch
from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.models.evaluation.next_item_baselines import NextItemBaselines
from freshet_serving.models.training.described_items import DescribedItems
from freshet_serving.models.training.next_item_guard import RANKED, NextItemGuard
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.models.training.prefetch_windows import PrefetchWindows
from freshet_serving.models.training.sourced_run import SourcedRun
from freshet_serving.models.training.stream_guard import StreamGuard
from freshet_serving.models.training.trainer import BoundBatch
from freshet_serving.processor.columns import Column, take_rows
from freshet_serving.processor.extensions.top_items.section import source_entry
from freshet_serving.processor.package.item_rows import LOG_FLOOR, SCALE


@dataclass(frozen=True, slots=True)
class SeenBatch(BoundBatch):
    """Histories that end with new rows of the log: the rows' items, and times [n] unless the log has none."""

    ids: Column = field(kw_only=True)
    times: NDArray[np.float64] | None = field(kw_only=True)


class NextItemRun(SourcedRun):
    """One training run over one event log; resumes from its checkpoints automatically."""

    default_trainer = NextItemTrainer
    network = "a next-item network, which is trained by one process"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        assert isinstance(self.source, SequenceSource)
        self._log = self.source.events
        self._columns = [f for f in self.config.features if f.sequence is not None]
        (self._sequence,) = self.config.sequences.values()
        self._passed: NextItemRows | None = None
        self._passed_until = self._tail = self._catalogue = 0
        self._batches = 0
        counts = self._items.counts
        if counts is not None and not self._restore_clock() and len(self._items.items):
            # Weights of a version without its checkpoint.
            self.state.popularity = counts.go_on(self.state.position).saved()

    @property
    def _items(self) -> NextItemTrainer:
        assert isinstance(self.trainer, NextItemTrainer)
        return self.trainer

    def counted(self) -> NextItemBaselines:
        """Return what counting reaches on the held-out rows."""
        item = self._items.item_column
        assert self._passed is not None
        counts = NextItemBaselines(self._passed, item, self._tail, self.ranked.top)
        counts.rank(self._passed, item, self._tail)
        return counts

    def _tell_baselines(self) -> None:
        counts = self.counted()
        for line in filter(None, (counts.line(), counts.advice(self.ranked.result().ndcg))):
            self._report.note(line)

    def _works(self, first: int, until: int, mixed: bool = False) -> PrefetchPipeline | PrefetchWindows:
        """Return the histories of rows [first, until); a mixed pass begins at row 0, another where that ended."""
        if mixed:
            self._tail = until
        batches: Iterator[Batch] = iter(())
        if first < until:
            if self._passed is None or self._passed_until != until:
                self._passed = NextItemRows(self._log, self._sequence, self._columns, until)
                self._passed_until = until
                self._see(*self._passed.times_of(self._items.item_column))
                self._catalogue = self._passed.distinct(self._items.item_column)
            self._items.counted_ahead = mixed
            if mixed and not first and not self.state.epoch and self._items.counts is not None:
                self._items.count_log(self._passed, until)
                self._note_clock()
            # Not for deltas: their tables have nearly all items, and a resumed run must compile the same.
            self._items.expected_items = self._catalogue if mixed else 0
            seed = (self.config.train.known_seed, self.state.epoch) if mixed else None
            batches = self._passed.batches(self.config.train.batch_rows, 0 if mixed else self._tail, first, seed)
        return self.trainer.with_prefetched_rows(PrefetchPipeline(self._timed(batches, until), self.trainer.transform))

    def _transformed(self, batch: Batch | None) -> BoundBatch | None:
        if batch is None:
            return None
        labels = self.source.schema.labels
        histories = newest_histories(batch, self._sequence, self._columns, labels)
        work = self.trainer.transform(histories)
        events = np.flatnonzero(entering(batch, self._sequence, labels))
        item = next(f for f in self._columns if f.name == self._items.item_column)
        ids = take_rows(event_values(item, batch, labels), events)
        times = None if batch.time is None else batch.time[events]
        return SeenBatch(work.batch, work.bound, firsts=work.firsts, ids=ids, times=times)

    def _measure(self, work: BoundBatch, evaluation_metrics: EvaluationMetrics) -> None:
        assert isinstance(self.guard, NextItemGuard)
        self.guard.see_held_out(work, self.guard.rank(work, self.ranked))

    def _score_and_learn(self, work: BoundBatch, sampled: bool) -> None:
        """Rank targets before training on them: all of sampled batches, some for the guard."""
        assert isinstance(self.guard, NextItemGuard)
        seen = self.guard.sees(self._batches)
        self._batches += 1
        if sampled or seen:
            self.guard.see(work, self.guard.rank(work, self.streamed_ranks, 0 if sampled else RANKED))
        self._learned(work, self.trainer.learn(work))

    def _learned(self, work: BoundBatch, loss: float) -> None:
        if isinstance(work, SeenBatch):
            self._see(work.ids, work.times)
        super()._learned(work, loss)

    def _describe(self) -> None:
        self._described.add(self.state.position)
        super()._describe()

    def _popularity(self) -> Mapping[str, Any] | None:
        rows = self._items.rows
        return source_entry(self._items.items.name, rows.dim, SCALE, -LOG_FLOOR) if rows.popularity else None

    @cached_property
    def _described(self) -> DescribedItems:
        # A version may be published during start-up.
        self._restore_clock()
        return DescribedItems(self._items, self._item_keys)

    def _make_guard(self) -> StreamGuard:
        return NextItemGuard(self.config.guard, self._items, self.config.evaluate.top)
