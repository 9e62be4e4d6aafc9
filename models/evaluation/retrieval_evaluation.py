"""Rank with one generation the items that users chose, among all items of a catalogue.

A catalogue is a row an item: that of its newest event. Both vectors are computed by the executables of a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.config.retrieval_rules import tower_keys
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.source import Batch, rows_between
from freshet_serving.models.evaluation.catalogue_ranking import RankedTargets, places_of
from freshet_serving.models.evaluation.evaluate import BATCH_ROWS, inputs_of, open_rows_of
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.item_vectors import item_inputs
from freshet_serving.models.evaluation.retrieval_ranking import RetrievalRanking
from freshet_serving.models.zoo.arch import ITEM_VECTOR, USER_VECTOR
from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns, take_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import SOURCE
from freshet_serving.processor.package import Input

POSITIVE = 0.5
"""A row whose label is above this was chosen."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class Catalogue(NamedTuple):
    """Items, int64 [m] ascending as their table has them, and their columns by input of the items' tower."""

    keys: Int64s
    columns: Mapping[str, Column]


class RetrievalRanker:
    """Ranks by one generation; `inputs` are those of the items' tower."""

    def __init__(self, scorer: GenerationScorer, trained: TrainConfig) -> None:
        """Find the two towers of a generation; raise BadInput if there are none."""
        manifest = scorer.description
        self._scorer, self._manifest, self._plan = scorer, manifest, SparsePlan(manifest)
        item = tower_keys(trained.features, trained.entities)[1]
        numbers = {f.name: number for number, f in enumerate(manifest.lookups)}
        outputs = {output.name: output.columns for output in manifest.outputs}
        if item not in numbers or not {USER_VECTOR, ITEM_VECTOR} <= outputs.keys():
            raise BadInput(f"model: expected two towers, one of which reads {item!r}, got {', '.join(outputs)}")
        self._dim, self._item = outputs[USER_VECTOR], manifest.lookups[numbers[item]]
        self._source = int(self._plan.lookups[numbers[item], SOURCE])
        self.inputs = [spec.name for spec in item_inputs(manifest)]
        self.keys, self._vectors = np.empty(0, np.int64), np.empty((0, self._dim), np.float32)

    def catalogue(self, batches: Iterable[Batch]) -> Catalogue:
        parts: list[tuple[Int64s, dict[str, Column]]] = []
        for batch in batches:
            inputs = inputs_of(self._manifest, batch)
            parts.append((self._keys_of(inputs), {name: inputs[name] for name in self.inputs}))
            if len(parts) > 1:
                parts = [_newest(parts)]
        return Catalogue(*_newest(parts)) if parts else Catalogue(np.empty(0, np.int64), {})

    def items(self, columns: Mapping[str, Column]) -> Catalogue:
        """Return the catalogue of a row an item; columns are by input, those of the items' tower among them."""
        if missing := sorted(set(self.inputs) - columns.keys()):
            raise BadInput(f"items: expected a column {missing[0]!r}, which the items' tower reads, got none")
        read = {name: columns[name] for name in self.inputs}
        rows = len(next(iter(read.values())))
        return Catalogue(*_newest([(self._keys_of(self._completed(read, rows)), read)]))

    def rank_among(self, catalogue: Catalogue) -> None:
        """Compute the vectors of a catalogue, among which rank() ranks."""
        self.keys = catalogue.keys
        rows = len(self.keys)
        if rows:
            self._vectors = self._vectors_of(self._completed(catalogue.columns, rows), rows, ITEM_VECTOR)

    def rank(self, batch: Batch, ranking: RetrievalRanking) -> RankedTargets:
        """Rank the items of rows that were chosen, and count them."""
        chosen = batch.take(np.flatnonzero(batch.label.reshape(len(batch), -1)[:, 0] > POSITIVE))
        if not len(chosen):
            return RankedTargets(self._vectors[:0], np.empty(0, np.int64), np.empty(0, np.int64))
        inputs = inputs_of(self._manifest, chosen)
        users, places = self._vectors_of(inputs, len(chosen), USER_VECTOR), places_of(self.keys, self._keys_of(inputs))
        return RankedTargets(users, places, ranking.add(users, self._vectors, places))

    def _completed(self, columns: Mapping[str, Column], rows: int) -> dict[str, Column]:
        """Add columns of all other inputs, which say nothing."""
        others = [spec for spec in self._manifest.inputs if spec.name not in self.inputs]
        return dict(columns) | {spec.name: nothing(spec, rows) for spec in others}

    def _vectors_of(self, inputs: dict[str, Column], rows: int, output: str) -> Float32s:
        return self._scorer.score(inputs, rows, [output]).reshape(rows, self._dim)

    def _keys_of(self, inputs: dict[str, Column]) -> Int64s:
        ids = self._plan.bind_inputs(inputs).keep[self._source]
        values = ids.values
        if ids.splits is None and ids.stride > 1:
            values = values.reshape(-1)[self._item.column :: ids.stride]
        return np.ascontiguousarray(values.reshape(-1))


def rank_pairs(
    scorer: GenerationScorer, data: DataConfig, trained: TrainConfig, top: int, reporter: Reporter, skip: int, rows: int
) -> RetrievalRanking:
    """Rank the items that were chosen in rows [skip, skip + rows), all with rows = 0, among all items of the data.

    Items of rows before `skip` are only in the catalogue. Raises BadInput if no row of these was chosen.
    """
    ranker, ranking = RetrievalRanker(scorer, trained), RetrievalRanking(top)
    source = open_rows_of(scorer.description, data, trained)
    reporter.begin(f"items of {scorer.model}", source.count_rows())
    ranker.rank_among(ranker.catalogue(source.batches(BATCH_ROWS)))
    total = source.count_rows() or 0
    stop = min(total, skip + rows) if rows else total
    reporter.begin(f"ranking by {scorer.model} {scorer.generation}", max(0, stop - skip))
    for batch in rows_between(source, BATCH_ROWS, skip, stop):
        ranker.rank(batch, ranking)
        reporter.advance(len(batch))
    if not ranking.targets:
        raise BadInput(f"data: expected a row after row {skip:,} whose label is above {POSITIVE}, got {total:,} rows")
    return ranking


def nothing(spec: Input, rows: int) -> Column:
    """Return a column of an input that says nothing: empty lists, zeros or empty strings."""
    values = rows * (spec.columns or 1)
    if spec.ragged:
        empty: Any = Strings.of([]) if spec.dtype == "string" else np.empty(0, spec.dtype)
        return Ragged(empty, np.zeros(rows + 1, np.int64))
    if spec.dtype == "string":
        return Strings(np.empty(0, np.uint8), np.zeros(values + 1, np.int64))
    return np.zeros((rows, spec.columns) if spec.columns else rows, spec.dtype)


def _newest(parts: list[tuple[Int64s, dict[str, Column]]]) -> tuple[Int64s, dict[str, Column]]:
    keys = np.concatenate([keys for keys, _ in parts])
    columns = {name: join_columns([part[name] for _, part in parts]) for name in parts[0][1]}
    items, newest = np.unique(keys[::-1], return_index=True)
    rows = len(keys) - 1 - newest
    return items, {name: take_rows(column, rows) for name, column in columns.items()}
