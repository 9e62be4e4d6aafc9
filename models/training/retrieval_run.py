"""Run `freshet train` for two towers that learn to retrieve.

As models.training.loop, but a row's score says nothing alone: each chosen item is ranked among all recent items. Recall
and NDCG replace AUC and log-loss: in summary and report, early stopping, the guard of deltas and the gate of versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.models.evaluation.retrieval_evaluation import POSITIVE
from freshet_serving.models.evaluation.retrieval_ranking import RetrievalRanking
from freshet_serving.models.training.early_stopping import EpochQuality
from freshet_serving.models.training.item_sources import ItemSources
from freshet_serving.models.training.pair_ranks import PairRanks
from freshet_serving.models.training.prefetch_windows import PrefetchWindows
from freshet_serving.models.training.retrieval_guard import RetrievalGuard
from freshet_serving.models.training.retrieval_trainer import PairBatch, RetrievalTrainer
from freshet_serving.models.training.sourced_run import SourcedRun
from freshet_serving.models.training.stream_guard import StreamGuard
from freshet_serving.models.training.trainer import BoundBatch
from freshet_serving.models.training.version_review import NEWEST_ROWS, newest_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation

RANKED = 256
"""Rows of a stream's batch that are ranked."""


class RetrievalRun(SourcedRun):
    """One training run over one source; resumes from its checkpoints automatically."""

    default_trainer = RetrievalTrainer
    network = "two towers that learn to retrieve, which one process trains"
    ranking = RetrievalRanking
    _counted_ahead = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        counts = self._sources.counts if self._sources is not None else None
        if counts is not None and not self._restore_clock() and self.state.position:
            # Weights of a version without its checkpoint, or of an older release.
            self.state.popularity = counts.go_on(self.state.position).saved()
        self._find_items()

    def full(self) -> Generation:
        """Run phase one, and report its ranks."""
        generation = super().full()
        if self.ranked.targets:
            about = {"what": "retrieval", "events": self.ranked.targets, "items": self.ranked.items}
            self.journal.measured([about | self.ranked.figures()])
        return generation

    def _epoch_quality(self, works: Iterable[BoundBatch]) -> EpochQuality:
        ranking = RetrievalRanking(self.config.evaluate.top)
        for work in works:
            self._ranks.rank(_pairs(work), ranking)
        return EpochQuality(ranking.figures(), ranking.result().ndcg, ranking.told())

    def _works(self, first: int, until: int, mixed: bool = False) -> PrefetchPipeline | PrefetchWindows:
        self._counted_ahead = mixed
        if mixed and not first and not self.state.epoch and self._sources is not None:
            self._count_log(self._sources, until)
        return super()._works(first, until, mixed)

    def _count_log(self, sources: ItemSources, until: int) -> None:
        """Count the rows of a pass, up to `until`, before training on them."""
        keys, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in self._timed(self.source.batches(self.config.train.batch_rows), until):
            chosen = np.flatnonzero(batch.label > POSITIVE)
            pairs = batch.take(chosen)
            ids = pairs.columns[self._items.item_input]
            self._see(ids, pairs.time)
            keys.append(sources.keys_of(ids))
            rows.append(batch.start + chosen)
        sources.count_log(np.concatenate(keys), np.concatenate(rows), until)
        self._note_clock()

    def _learned(self, work: BoundBatch, loss: float) -> None:
        pairs = _pairs(work).pairs
        if self._sources is not None and not self._counted_ahead and len(pairs):
            ids = pairs.columns[self._items.item_input]
            self._see(ids, pairs.time)
            self._sources.count(self._sources.keys_of(ids), work.batch.start)
        super()._learned(work, loss)

    def _item_feature(self) -> str:
        assert self.config.network.towers is not None
        return self.config.network.towers[1]

    @property
    def _items(self) -> RetrievalTrainer:
        assert isinstance(self.trainer, RetrievalTrainer)
        return self.trainer

    def _measure(self, work: BoundBatch, evaluation_metrics: EvaluationMetrics) -> None:
        self.guard.see_held_out(work, self._ranks.rank(_pairs(work), self.ranked))

    def _score_and_learn(self, work: BoundBatch, sampled: bool) -> None:
        """Rank before training: all rows of sampled batches, some of others."""
        gains = self._ranks.rank(_pairs(work), self.streamed_ranks, 0 if sampled else RANKED)
        self.guard.see(work, gains)
        self._learned(work, self.trainer.learn(work))

    def _begin_version(self) -> None:
        self._find_items()
        super()._begin_version()

    def _find_items(self) -> None:
        """Fill the recent items from the newest rows if weights came without a checkpoint."""
        if len(self._items.recent) or not self.state.position:
            return
        try:
            rows = newest_rows(self.source, self.state.position, NEWEST_ROWS, self.config.train.batch_rows)
        except BadInput:
            # They are gone; items come with new rows.
            return
        for batch in rows:
            self._items.see_items(self._items.transform(batch))

    def _make_guard(self) -> StreamGuard:
        return RetrievalGuard(self.config.guard, self._items, self._ranks, self.config.evaluate.top)

    @cached_property
    def _ranks(self) -> PairRanks:
        return PairRanks(self._items)


def _pairs(work: BoundBatch) -> PairBatch:
    assert isinstance(work, PairBatch)
    return work
