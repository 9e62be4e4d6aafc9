"""Rank by any version the items of the newest rows that were chosen, for the gate of towers that learn to retrieve.

Each version ranks them among the run's recent items by its own executables, so two versions are compared row by row.

Costs: each version computes the vectors of all recent items, and of PAIRS users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.evaluation.evaluate import fields_of
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.retrieval_evaluation import POSITIVE, RetrievalRanker
from freshet_serving.models.evaluation.retrieval_ranking import RetrievalRanking
from freshet_serving.models.training.newest_events import RankedEvents
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import VersionReader

PAIRS = 4096


class NewestPairs:
    """The newest rows that were chosen, and the items to rank them among."""

    def __init__(self, config: TrainConfig, rows: Sequence[Batch], items: Mapping[str, Column]) -> None:
        """Take the newest PAIRS of `rows`, in order; `items` are columns by input, {} for the rows' items."""
        self._config, self._rows, self._items = config, rows, items
        self._pairs, left = list[Batch](), PAIRS
        for batch in reversed(rows):
            chosen = np.flatnonzero(batch.label > POSITIVE)[-left:]
            if left and len(chosen):
                self._pairs.insert(0, batch.take(chosen))
                left -= len(chosen)

    def ranked(self, version: VersionReader, model: str) -> RankedEvents:
        """Rank the rows by a version, committed or not; raise FreshetError if it cannot."""
        top = self._config.evaluate.top
        with GenerationScorer(version, model) as scorer:
            ranker, ranking = RetrievalRanker(scorer, self._config), RetrievalRanking(top)
            read = {field.name for field in fields_of(scorer.description)}
            if self._pairs and (missing := sorted(read - self._pairs[0].columns.keys())):
                raise BadInput(f"data: expected a column {missing[0]!r}, which the version reads, got none")
            ranker.rank_among(ranker.items(self._items) if self._items else ranker.catalogue(self._rows))
            parts = [ranker.rank(batch, ranking) for batch in self._pairs]
        return RankedEvents.of(parts, top, {})
