"""Train two towers on rows that were chosen: a user and an item each (models.training.retrieval_functions).

Rows whose label is not positive are skipped. A step compares its users with the items of its own rows and some of those
chosen last (models.training.recent_items), drawn evenly: popular items are among the rows' own. Being drawn is no
occurrence: it gives an item no row and no count. Draws are a function of seed, step and the keys of the recent items,
so a resumed run draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding import kernels
from freshet_serving.models.embedding.variable import RowInitializer
from freshet_serving.models.evaluation.item_vectors import item_inputs
from freshet_serving.models.evaluation.retrieval_evaluation import POSITIVE, nothing
from freshet_serving.models.training.batch_part import GradientPiece, write_rows
from freshet_serving.models.training.item_sources import ItemSources, with_sources
from freshet_serving.models.training.losses import mean_shares
from freshet_serving.models.training.recent_items import RecentItems
from freshet_serving.models.training.retrieval_step import Candidates, RetrievalStep
from freshet_serving.models.training.trainer import FEW_IDS, NO_SPLITS, BoundBatch, Float32s, Int64s, Trainer
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.kernels.pool import CODES, MAX_LENGTH, SOURCE
from freshet_serving.processor.package import COMBINERS, Feature, Manifest, TableEntry

DRAWN = 7_919
"""Distinguishes the seeds of drawn items from others of the run."""
BOUND_ITEMS = 1 << 14


@dataclass(frozen=True, slots=True)
class PairBatch(BoundBatch):
    """A batch after its transform: `bound` has only the rows that were chosen, `pairs`."""

    pairs: Batch = field(kw_only=True)


class RetrievalTrainer(Trainer):
    """Two towers in training; `sources` is None for items whose ids a transform makes."""

    dense_step = RetrievalStep

    def __init__(self, manifest: Manifest, settings: TrainSettings, network: NetworkConfig, *others: Any) -> None:
        assert network.towers is not None
        key = next(f for f in manifest.lookups if f.name == network.towers[1])
        direct = _as_sent(manifest, key)
        self._sources_name = ""
        if direct:
            manifest, self._sources_name = with_sources(manifest, key, 2)
        super().__init__(manifest, settings, network, *others)
        assert isinstance(self.dense, RetrievalStep)
        self._towers: RetrievalStep = self.dense
        numbers = {f.name: number for number, f in enumerate(manifest.lookups)}
        user, item = network.towers
        self._user, self._item = numbers.get(user), numbers[item]
        self._item_inputs = [spec.name for spec in item_inputs(self.manifest)]
        self._of_items = {number for number, f in enumerate(manifest.lookups) if f.side == "item"}
        self.recent = RecentItems(self._item_inputs)
        self.item_input, self.items = key.input, self.own[key.table]
        seed = self.manifest.table(key.table).hash_seed
        self.sources = ItemSources(self.own[self._sources_name], seed, counted=True) if direct else None
        self.counts = self.sources.counts if self.sources is not None else None
        self._seed = settings.known_seed

    def _first_rows(
        self, manifest: Manifest, table: TableEntry, network: NetworkConfig, config: TableConfig
    ) -> RowInitializer:
        plain = super()._first_rows(manifest, table, network, config)
        return RowInitializer("zeros") if table.name == self._sources_name else plain

    def transform(self, batch: Batch) -> PairBatch:
        with self.profile.timed("transform"):
            chosen = np.flatnonzero(batch.label > POSITIVE)
            pairs = batch if len(chosen) == len(batch) else batch.take(chosen)
            # A request has at least one row: if nothing was chosen, bind a row that is not read.
            columns, firsts = self._sharing.shared(pairs.columns if len(pairs) else batch.slice(0, 1).columns)
            return PairBatch(batch, self.plan.bind_inputs(columns), firsts=firsts, pairs=pairs)

    def learn(self, given: Batch | BoundBatch) -> float:
        """Take one optimizer step on the rows that were chosen; return their mean loss before it."""
        work = given if isinstance(given, PairBatch) else self.transform(given)  # type: ignore[arg-type]
        bound, pairs = work.bound, work.pairs
        if not len(pairs):
            return 0.0
        with self.profile.timed("look up"):
            for table in self.own.values():
                table.shrink_to_budget()
            inserted = self._worker_pool.run(
                [partial(self._insert, name, bound) for name, read in self._readers.items() if read],
                bound.ids < FEW_IDS,
            )
            refs = dict(item for table in inserted for item in table)
            keys = self.see_items(work)
            drawn = self._drawn()
            further = self._bound_items(drawn) if len(drawn) else None
            candidates = self._candidates(work, keys, self.recent.keys[drawn])
        with self.profile.timed_process("step"), self._reading_tables() as tables:
            self._set_rates(self.steps)
            write = self._sharing.spread(write_rows(self.run, tables, bound), work.firsts)
            write_items = None if further is None else write_rows(self.run, tables, further)
            loss, by_rows, by_items = self._towers.learn(write, write_items, candidates)
        self.steps += 1
        pieces = [GradientPiece(0, len(pairs), {self._held_by[0]: by_rows})]
        with self.profile.timed("update"):
            moves: list[Callable[[], None]] = [self.dense.move]
            moves += [
                partial(self._moved, name, work, refs, pieces, further, by_items)
                for name, read in self._readers.items()
                if read
            ]
            self._worker_pool.run(moves, bound.ids < FEW_IDS)
        return loss

    def item_keys(self, bound: BoundRequest) -> Int64s:
        """Return the keys [n] of the items of bound rows."""
        return self._ids_of(bound, self._item).reshape(-1)

    def see_items(self, work: PairBatch) -> Int64s:
        """Add the items of rows that were chosen to the recent ones; return their keys."""
        if not len(work.pairs):
            return np.empty(0, np.int64)
        keys = self.item_keys(work.bound)
        self.recent.add(keys, {name: work.pairs.columns[name] for name in self._item_inputs})
        return keys

    def user_vectors(self, work: PairBatch, rows: Int64s) -> Float32s:
        """Return the users' vectors of some rows that were chosen, float32 [n, d]; changes nothing."""
        columns = work.pairs.columns if len(rows) == len(work.pairs) else work.pairs.take(rows).columns
        return self._vectors(self.plan.bind_inputs(columns), len(rows))[0]

    def item_vectors(self, places: Int64s) -> Float32s:
        """Return the vectors of recent items by place, float32 [m, d]; changes nothing."""
        pieces = [places[first : first + BOUND_ITEMS] for first in range(0, len(places), BOUND_ITEMS)]
        parts = [self._vectors(self._bound_items(piece), len(piece))[1] for piece in pieces]
        return np.concatenate(parts) if parts else np.empty((0, 1), np.float32)

    def clear(self) -> None:
        super().clear()
        self.recent.clear()

    def saved(self, whole: bool) -> dict[str, NDArray[Any]]:
        return self.recent.changes(whole)

    def restore_saved(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        # A checkpoint of labels, or of an older release, has none.
        if arrays:
            self.recent.restore(arrays)

    def _vectors(self, bound: BoundRequest, rows: int) -> tuple[Float32s, Float32s]:
        with self._reading_tables() as tables:
            return self._towers.vectors(rows, write_rows(self.run, tables, bound))

    def _drawn(self) -> Int64s:
        """Return the places of a step's further items."""
        items, most = len(self.recent), self._towers.negatives
        if items <= most:
            return np.arange(items if most else 0)
        random = np.random.default_rng((self._seed, DRAWN, self.steps))
        return np.sort(random.choice(items, most, replace=False))

    def _candidates(self, work: PairBatch, keys: Int64s, drawn: Int64s) -> Candidates:
        """Return what the rows are compared with: their items' `keys` [n], and the `drawn` further ones [m]."""
        pairs, candidates = work.pairs, np.concatenate([keys, drawn])
        distinct, items = np.unique(keys, return_inverse=True)
        at = np.minimum(np.searchsorted(distinct, drawn), len(distinct) - 1)
        numbers = np.concatenate([items.reshape(-1), np.where(distinct[at] == drawn, at, len(keys))])
        users = np.arange(len(keys))
        if self._user is not None:
            of_users = self._ids_of(work.bound, self._user)
            users = np.unique(of_users, axis=0, return_inverse=True)[1].reshape(-1)
        expected = len(keys) * self.recent.shares(candidates) + len(drawn) / max(1, len(self.recent))
        return Candidates(users, numbers, expected, mean_shares(len(pairs), pairs.weight))

    def _ids_of(self, bound: BoundRequest, lookup: int) -> Int64s:
        feature = self.manifest.lookups[lookup]
        values = next(ids for number, ids in self._values(feature.table, bound) if number == lookup)
        return values.reshape(bound.rows, -1)

    def _bound_items(self, places: Int64s) -> BoundRequest:
        """Bind rows of recent items, with all other inputs empty."""
        columns = self.recent.columns_of(places)
        others = [spec for spec in self.manifest.inputs if spec.name not in self._item_inputs]
        return self.plan.bind_inputs(columns | {spec.name: nothing(spec, len(places)) for spec in others})

    def _moved(
        self,
        name: str,
        work: PairBatch,
        refs: Mapping[int, Int64s],
        pieces: list[GradientPiece],
        further: BoundRequest | None,
        by_items: Float32s,
    ) -> None:
        """Take one optimizer step on the rows of a table, including those of further items."""
        table = self.own[name]
        of_items = [] if further is None else list(self._item_rows(name, further))
        ids = sum(len(refs[i]) for i, _ in self._readers[name]) + sum(len(item_refs) for _, _, item_refs, _ in of_items)
        place, (touched, sums, met) = table.place, self._scratch_of(name, 0, ids)
        count = self._add_up(name, place, 0, 1, work.bound, refs, pieces, touched, sums, met, work.firsts)
        read = met[:count].copy()
        rows, times = np.arange(len(by_items)), np.ones(len(by_items), np.int64)
        for i, f, item_refs, ends in of_items:
            combiner, (most, codes) = COMBINERS[f.combiner].code, self.plan.lookups[i, [MAX_LENGTH, CODES]].tolist()
            batch = (item_refs, ends, rows, times, combiner, most, codes, by_items, f.offset, 0, 1)
            count = kernels.accumulate(*batch, place, touched, sums, met, count)
        met[: len(read)], met[len(read) : count] = read, 0
        kernels.forget(place, touched[:count])
        self._take_step(name, touched[:count], sums[:count], met[:count])

    def _item_rows(self, name: str, further: BoundRequest) -> Iterator[tuple[int, Any, Int64s, Int64s]]:
        """Yield number, feature, row numbers and splits for each feature of items that reads a table."""
        features = dict(self._readers[name])
        for number, ids in self._values(name, further):
            if number in self._of_items:
                splits = further.keep[self.plan.lookups[number, SOURCE]].splits
                yield number, features[number], self.own[name].find(ids), NO_SPLITS if splits is None else splits


def _as_sent(manifest: Manifest, item: Feature) -> bool:
    return item.kind in ("id", "string") and item.input in {i.name for i in manifest.inputs}
