"""Training runs of models that rank items: they keep what ranks items for everybody (models.training.item_sources)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.training.described_items import DescribedKeys, described_by
from freshet_serving.models.training.item_sources import ItemSources
from freshet_serving.models.training.lineage import Lineage
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.version_gate import HeldOut
from freshet_serving.processor.columns import Column
from freshet_serving.processor.extensions.top_items.section import noted_origin
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import VersionContents


class SourcedRun(TrainingRun):
    """A run that keeps the numbers of items beside their rows."""

    def _item_table(self) -> EmbeddingVariable:
        raise NotImplementedError

    def _find_sources(self) -> ItemSources | None:
        """Return the numbers of the items; None if they have none."""
        raise NotImplementedError

    def _popularity(self) -> Mapping[str, Any] | None:
        """Return the note about the popularity in items' own rows; None without it."""
        return None

    @cached_property
    def _sources(self) -> ItemSources | None:
        sources = self._find_sources()
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
            self._sources.keep(self._item_table(), keys)


def held_out_ndcg(ranking: CatalogueRanking) -> HeldOut:
    ndcg, targets = ranking.result().ndcg, ranking.targets
    return HeldOut("held-out NDCG", ndcg, math.sqrt(ndcg * (1 - ndcg) / targets)) if targets else HeldOut()
