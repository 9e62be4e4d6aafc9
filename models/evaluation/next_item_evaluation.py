"""Rank with one generation what came next in an event log, among all items that have a row in that generation.

A history is what the log has of its user before the event, as a request would send it. Users' vectors are computed by
the executables of a server, and the items' rows are those that the server reads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.joined_rows import joined_rows
from freshet_serving.models.data.next_item_rows import NextItemRows
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.evaluation.catalogue_ranking import (
    CatalogueRanking,
    Lifts,
    RankedTargets,
    lifts_of,
    places_of,
)
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.next_item_baselines import NextItemBaselines
from freshet_serving.models.zoo.arch import MIXTURE, USER_VECTOR
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import SOURCE

CASES = 2048

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class NextItemRanker:
    """Ranks by one generation, among all items that have a row in it: `vectors`, float32 [items, d]."""

    def __init__(self, scorer: GenerationScorer, item: FeatureConfig, events: str) -> None:
        """Read the items' rows; `events` is the history's column of items. Raises BadInput."""
        manifest, self._plan = scorer.description, SparsePlan(scorer.description)
        sources = {f.name: int(self._plan.lookups[n, SOURCE]) for n, f in enumerate(manifest.lookups)}
        outputs = {output.name for output in manifest.outputs}
        if not {item.name, events} <= sources.keys() or USER_VECTOR not in outputs:
            raise BadInput(f"model: expected a network that reads {item.name!r} and {events!r} to rank what comes next")
        self._scorer, self._column = scorer, item.column
        self._sources = sources[events], sources[item.name]
        self._keys, self.vectors = scorer.rows(item.table)
        items = ItemRanking.of(manifest) if MIXTURE in outputs else None
        self._layout = None if items is None else items.successors

    @property
    def learned(self) -> Float32s:
        """The learned parts of the items' rows, float32 [items, d], without what is counted."""
        return self.vectors if self._layout is None else self.vectors[:, : self._layout.dim]

    def rank(self, histories: dict[str, Column], targets: Column, ranking: CatalogueRanking) -> RankedTargets:
        """Rank the items of n events after the history before each, by input, and count them."""
        inputs = histories | {self._column: targets}
        bound = self._plan.bind_inputs(inputs)
        seen, target = (bound.keep[source] for source in self._sources)
        assert seen.splits is not None
        outputs = [USER_VECTOR] if self._layout is None else [USER_VECTOR, MIXTURE]
        scores = self._scorer.score(inputs, len(targets), outputs).reshape(len(targets), -1)
        users = scores[:, : self.vectors.shape[1]]
        places, had = (places_of(self._keys, ids.values.reshape(-1)) for ids in (target, seen))
        lifts = None if self._layout is None else self._lifts(scores[:, -3:], had, seen.splits)
        return RankedTargets(users, places, ranking.add(users, self.vectors, places, had, seen.splits, lifts))

    def _lifts(self, mixture: Float32s, had: Int64s, splits: Int64s) -> Lifts:
        """Return what counts add to the products of histories, whose items are at places `had`."""
        assert self._layout is not None
        newest = []
        for number in (1, 2):
            exists = np.diff(splits) >= number
            at = np.where(exists, splits[1:] - number, 0)
            place = np.where(exists, np.append(had, -1)[at], -1)
            newest.append(np.where((place >= 0)[:, None], self.vectors[np.maximum(place, 0)], np.float32(0)))
        keys, shares = self._layout.followed(*newest)
        places = places_of(self._keys, keys.reshape(-1)).reshape(keys.shape)
        return lifts_of(self._layout, mixture, places, shares, self.vectors)


def rank_next_items(
    scorer: GenerationScorer,
    data: DataConfig,
    trained: TrainConfig,
    top: int,
    reporter: Reporter,
    skip: int = 0,
    rows: int = 0,
    leave_one_out: bool = False,
) -> tuple[CatalogueRanking, NextItemBaselines | None]:
    """Rank the items of events, by the generation and by counts of the events before them; None if none were skipped.

    Raises BadInput if the data lack a column, or have no such rows.

    Args:
        skip: Number of rows that only enter the histories.
        rows: Number of rows after them; 0 for all.
        leave_one_out: Rank each user's last event alone.
    """
    (sequence,) = trained.sequences.values()
    item = next(f for f in trained.features if f.side == "item")
    columns = [f for f in trained.features if f.sequence is not None]
    events = next(f.name for f in columns if f.table == item.table)
    source = joined_rows(lambda fields: open_source(data, fields), trained.features, trained.joined)
    assert isinstance(source, SequenceSource)
    total = source.count_rows() or 0
    log = NextItemRows(source.events, sequence, columns, min(total, skip + rows) if rows else total)
    ranker, ranking = NextItemRanker(scorer, item, events), CatalogueRanking(top)
    reporter.begin(f"ranking by {scorer.model} {scorer.generation}", None)
    for histories, targets in log.cases(CASES, skip, events, leave_one_out):
        ranker.rank(histories, targets, ranking)
        reporter.advance(len(targets))
    if not ranking.targets:
        raise BadInput(f"data: expected an event of a history after row {skip:,}, got {total:,} rows")
    counts = NextItemBaselines(log, events, skip, top) if skip else None
    if counts is not None:
        counts.rank(log, events, skip, leave_one_out)
    return ranking, counts
