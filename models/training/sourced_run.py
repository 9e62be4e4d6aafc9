"""Training runs of models that rank items: they keep what ranks items for everybody (models.training.item_sources)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.training.described_items import DescribedKeys, described_by
from freshet_serving.models.training.item_counts import PopularityClock
from freshet_serving.models.training.item_sources import ItemSources
from freshet_serving.models.training.lineage import Lineage
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.run_summary import Summary
from freshet_serving.models.training.version_gate import HeldOut
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items.section import noted_origin
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import VersionContents

if TYPE_CHECKING:
    from freshet_serving.models.training.next_item_trainer import NextItemTrainer
    from freshet_serving.models.training.retrieval_trainer import RetrievalTrainer


class SourcedRun(TrainingRun):
    """A run that ranks items, and keeps their numbers beside their rows; one process trains it.

    Attributes:
        network: The network and who trains it, for the message to somebody who asks for several processes.
        ranking: Counts the ranks of items.
    """

    batches_have_rows = False
    network: str
    ranking: type[CatalogueRanking] = CatalogueRanking

    def __init__(self, *given: Any, **named: Any) -> None:
        if named.get("make_trainer") is not None:
            raise BadInput(f"--processes: expected 1 for {self.network}")
        super().__init__(*given, **named)

    @property
    def _items(self) -> NextItemTrainer | RetrievalTrainer:
        raise NotImplementedError

    @cached_property
    def ranked(self) -> CatalogueRanking:
        return self.ranking(self.config.evaluate.top)

    @cached_property
    def streamed_ranks(self) -> CatalogueRanking:
        """Ranks of streamed items before training on them."""
        return self.ranking(self.config.evaluate.top)

    def run(self) -> Summary:
        summary = super().run()
        for rows, ranks in (("held out", self.ranked), ("streamed, before training on them", self.streamed_ranks)):
            if ranks.targets:
                self._report.note(f"{rows}: {ranks.told()}")
                if ranks is self.ranked:
                    self._tell_baselines()
        return summary

    def _tell_baselines(self) -> None:
        """Report what counting reaches on the held-out rows. Nothing here."""

    def _held_out_quality(self) -> HeldOut:
        ndcg, targets = self.ranked.result().ndcg, self.ranked.targets
        return HeldOut("held-out NDCG", ndcg, math.sqrt(ndcg * (1 - ndcg) / targets)) if targets else HeldOut()

    def _held_out_figures(self) -> dict[str, float]:
        return self.ranked.figures() if self.ranked.targets else {}

    def _restore_clock(self) -> bool:
        """Set the clock of popularity from the run's state; return False if it has none."""
        if self._items.counts is not None and self.state.popularity:
            self._items.counts.clock = PopularityClock(**self.state.popularity)
        return bool(self.state.popularity)

    def _note_clock(self) -> None:
        counts = self._items.counts
        assert counts is not None
        assert counts.clock is not None, "events were counted"
        self.state.popularity = counts.clock.saved()

    def _popularity(self) -> Mapping[str, Any] | None:
        """Return the note about the popularity in items' own rows; None without it."""
        return None

    @cached_property
    def _sources(self) -> ItemSources | None:
        sources = self._items.sources
        if sources is not None:
            sources.restore(self.state.sources)
        return sources

    @cached_property
    def _item_keys(self) -> DescribedKeys:
        item = next(f for f in self.config.features if f.side == "item" and f.name == self._item_feature())
        seed = self.trainer.manifest.table(item.table).hash_seed
        return DescribedKeys(described_by(self.source, item.column), seed)

    def _item_feature(self) -> str:
        return next(f.name for f in self.config.features if f.side == "item")

    def _see(self, ids: Column, times: NDArray[np.float64] | None) -> None:
        """Take in events by their items' ids, and times."""
        if self._sources is not None:
            self._sources.see(self._sources.keys_of(ids), times)
            self.state.sources = self._sources.saved()

    def _begin_with(self, old: VersionContents) -> None:
        manifest = old.base.root_manifest
        origin_s = noted_origin(manifest.notes)
        if self._sources is not None and origin_s is not None:
            # The rows' times are relative to it.
            newest_s = manifest.event_time[-1] if manifest.event_time else origin_s
            self._sources.restore({"origin_s": origin_s, "newest_s": newest_s})
            self.state.sources = self._sources.saved()
        super()._begin_with(old)

    def _save_version(self) -> None:
        self._describe()
        super()._save_version()

    def _publish_delta(self, lineage: Lineage) -> Generation | None:
        self._describe()
        return super()._publish_delta(lineage)

    def _publish_version(self) -> None:
        if self._sources is not None:
            self.trainer.manifest = self._sources.noted(self.trainer.manifest, self._popularity())
        super()._publish_version()

    def _describe(self) -> None:
        """Take in items that have a record, and drop those that have neither a record nor a row."""
        if self._sources is None:
            return
        keys = np.concatenate([np.empty(0, np.int64), *(newest.keys for newest in self._item_keys.newest())])
        self._sources.describe(keys)
        if any(table.evict_after_steps or table.evict_below_norm for table in self.config.tables.values()):
            self._sources.keep(self._items.items, keys)
