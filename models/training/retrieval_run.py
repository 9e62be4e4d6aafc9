"""Run `freshet train` for two towers that learn to retrieve.

As models.training.loop, but a row has no score that says something alone: the item of each row that was chosen is
ranked among all recent items. Recall and NDCG of the held-out tail, and of the stream, take the place of AUC and
log-loss: in the summary and the report, for early stopping, the guard of deltas and the gate of versions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.models.evaluation.retrieval_ranking import RetrievalRanking
from freshet_serving.models.training.early_stopping import EpochQuality
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.pair_ranks import PairRanks
from freshet_serving.models.training.retrieval_guard import RetrievalGuard
from freshet_serving.models.training.retrieval_trainer import PairBatch, RetrievalTrainer
from freshet_serving.models.training.run_summary import Summary
from freshet_serving.models.training.stream_guard import StreamGuard
from freshet_serving.models.training.trainer import BoundBatch
from freshet_serving.models.training.version_gate import HeldOut
from freshet_serving.models.training.version_review import NEWEST_ROWS, newest_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation

RANKED = 256
"""Rows of a batch of the stream that are ranked."""


class RetrievalRun(TrainingRun):
    """One training run over one source; resumes from its checkpoints automatically."""

    default_trainer = RetrievalTrainer
    batches_have_rows = False

    def __init__(self, *given: Any, **named: Any) -> None:
        """Open the data, find the state to start from, and restore it; arguments as of TrainingRun."""
        if named.get("make_trainer") is not None:
            raise BadInput("--processes: expected 1 for two towers that learn to retrieve, which one process trains")
        super().__init__(*given, **named)
        self._find_items()

    @cached_property
    def ranked(self) -> RetrievalRanking:
        """Ranks of the held-out rows' items."""
        return RetrievalRanking(self.config.evaluate.top)

    @cached_property
    def streamed_ranks(self) -> RetrievalRanking:
        """Ranks of the streamed rows' items, before training on them."""
        return RetrievalRanking(self.config.evaluate.top)

    def run(self) -> Summary:
        """Run both phases."""
        summary = super().run()
        for rows, ranks in (("held out", self.ranked), ("streamed, before training on them", self.streamed_ranks)):
            if ranks.targets:
                self._report.note(f"{rows}: {ranks.told()}")
        return summary

    def full(self) -> Generation:
        """Run phase one, and put its figures into the report."""
        generation = super().full()
        if self.ranked.targets:
            about = {"what": "retrieval", "events": self.ranked.targets, "items": self.ranked.items}
            self.journal.measured([about | self.ranked.figures()])
        return generation

    def _held_out_quality(self) -> HeldOut:
        if not self.ranked.targets:
            return HeldOut()
        ndcg = self.ranked.result().ndcg
        return HeldOut("held-out NDCG", ndcg, math.sqrt(ndcg * (1 - ndcg) / self.ranked.targets))

    def _held_out_figures(self) -> dict[str, float]:
        return self.ranked.figures() if self.ranked.targets else {}

    def _epoch_quality(self, works: Iterable[BoundBatch]) -> EpochQuality:
        ranking = RetrievalRanking(self.config.evaluate.top)
        for work in works:
            self._ranks.rank(_pairs(work), ranking)
        return EpochQuality(ranking.figures(), ranking.result().ndcg, ranking.told())

    def _measure(self, work: BoundBatch, evaluation_metrics: EvaluationMetrics) -> None:
        """Rank a held-out batch before training on it."""
        self.guard.see_held_out(work, self._ranks.rank(_pairs(work), self.ranked))

    def _score_and_learn(self, work: BoundBatch, sampled: bool) -> None:
        """Rank a batch before training on it: some of its rows, or all of a sample of the batches."""
        gains = self._ranks.rank(_pairs(work), self.streamed_ranks, 0 if sampled else RANKED)
        self.guard.see(work, gains)
        self._learned(work, self.trainer.learn(work))

    def _begin_version(self) -> None:
        self._find_items()
        super()._begin_version()

    def _find_items(self) -> None:
        """Take the newest rows' items for the recent ones, where weights have come without a checkpoint of them."""
        trainer = self.trainer
        assert isinstance(trainer, RetrievalTrainer)
        if len(trainer.recent) or not self.state.position:
            return
        try:
            rows = newest_rows(self.source, self.state.position, NEWEST_ROWS, self.config.train.batch_rows)
        except BadInput:
            # They are gone; items come with the rows to be learned.
            return
        for batch in rows:
            trainer.see_items(trainer.transform(batch))

    def _make_guard(self) -> StreamGuard:
        assert isinstance(self.trainer, RetrievalTrainer)
        return RetrievalGuard(self.config.guard, self.trainer, self._ranks, self.config.evaluate.top)

    @cached_property
    def _ranks(self) -> PairRanks:
        assert isinstance(self.trainer, RetrievalTrainer)
        return PairRanks(self.trainer)


def _pairs(work: BoundBatch) -> PairBatch:
    assert isinstance(work, PairBatch)
    return work
