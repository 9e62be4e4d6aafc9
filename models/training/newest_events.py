"""Rank by any version what came next in the newest events of a log, for the gate of next-item networks.

Each version ranks the events among its own items by its own executables; events and order are the same for both, so
that they are compared event by event. Histories are made of the newest READ_ROWS rows alone: a small run need not read
a long log, and a stream still has them.

Costs: READ_ROWS are read into memory; each version computes EVENTS user vectors and their scores of all items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.next_item_rows import NextItemRows
from freshet_serving.models.data.source import Source
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking, RankedTargets, gains_of
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.next_item_evaluation import CASES, NextItemRanker
from freshet_serving.processor.repository import VersionReader

EVENTS, READ_ROWS = 4096, 1 << 16

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RankedEvents:
    """The newest events as one version ranks them: ranks int64 [n] of their items among all, from 1.

    `alike` says that all histories have the same vector. Coverage is the share of events whose item has a row that is
    not all 0, by the items' feature.
    """

    ranks: Int64s
    top: int
    alike: bool
    coverage: dict[str, float]

    @classmethod
    def of(cls, parts: Sequence[RankedTargets], top: int, coverage: dict[str, float]) -> RankedEvents:
        ranks = np.concatenate([np.empty(0, np.int64), *(part.ranks for part in parts)])
        alike = bool(parts) and all(bool((part.users == parts[0].users[:1]).all()) for part in parts)
        return cls(ranks, top, alike, coverage)

    def gains(self) -> Float64s:
        return gains_of(self.ranks, self.top)

    def hits(self) -> Float64s:
        return (self.ranks <= self.top).astype(np.float64)


class NewestEvents:
    """The newest events of a log."""

    def __init__(self, config: TrainConfig, log: Source, stop: int) -> None:
        """Read the newest rows of the log before row `stop`."""
        (sequence,) = config.sequences.values()
        columns = [f for f in config.features if f.sequence is not None]
        self._item = next(f for f in config.features if f.side == "item")
        self._column = next(f.name for f in columns if f.table == self._item.table)
        self._rows = NextItemRows(log, sequence, columns, stop, max(0, stop - READ_ROWS))
        self._first = max(0, stop - EVENTS)
        self._top = config.evaluate.top

    def ranked(self, version: VersionReader, model: str) -> RankedEvents:
        """Rank the events by a version, committed or not; raise FreshetError if it cannot."""
        with GenerationScorer(version, model) as scorer:
            ranker, ranking = NextItemRanker(scorer, self._item, self._column), CatalogueRanking(self._top)
            filled = np.append(ranker.learned.any(axis=1), False)
            cases = self._rows.cases(CASES, self._first, self._column)
            parts = [ranker.rank(histories, targets, ranking) for histories, targets in cases]
        alive = sum(int(filled[part.places].sum()) for part in parts)
        shares = {self._item.name: round(alive / ranking.targets, 6)} if ranking.targets else {}
        return RankedEvents.of(parts, self._top, shares)
