"""Keep codes, and what filters read, beside the rows that a version ranks (processor.versions.row_watchers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items.filter_columns import FilterColumns
from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.tables.table import ServedTable


class RankedRowWatcher:
    def __init__(self, name: str, codes: RowCodes, records: str = "", columns: FilterColumns | None = None) -> None:
        self._name, self._codes, self._records, self._columns = name, codes, records, columns

    @classmethod
    def of(
        cls, manifest: Manifest, tables: Mapping[str, ServedTable], tensors: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> RankedRowWatcher | None:
        """Return the watcher of a version; None if it ranks no table in memory."""
        ranking = ItemRanking.of(manifest)
        if ranking is None or ranking.tower is not None:
            return None
        return cls.beside(manifest.tables[ranking.table].name, ranking.columns, ranking.filtered, tables, tensors)

    @classmethod
    def of_sources(
        cls, manifest: Manifest, tables: Mapping[str, ServedTable], tensors: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> RankedRowWatcher | None:
        """Return the watcher of a table that ranks items for everybody (item_sources); None if there is none."""
        ranking = ItemRanking.of(manifest)
        sources = [] if ranking is None else [s for s in ranking.sources.values() if s.table != ranking.table]
        if ranking is None or not sources:
            return None
        name, columns = manifest.tables[sources[0].table].name, sources[0].columns
        return cls.beside(name, columns, ranking.filtered, tables, tensors)

    @classmethod
    def beside(
        cls,
        name: str,
        columns: int,
        source: FilteredEntity | None,
        tables: Mapping[str, ServedTable],
        tensors: Mapping[str, Mapping[str, NDArray[Any]]],
    ) -> RankedRowWatcher | None:
        """Return the watcher of a table; None if it is not in memory.

        Products read the leading `columns` of a row; filters read columns of `source`, None for none.
        """
        if name not in tensors:
            return None
        codes = RowCodes(tables[name], tensors[name], columns)
        if source is None or source.entity.table not in tensors:
            return cls(name, codes)
        records = source.entity.table
        return cls(name, codes, records, FilterColumns(codes, tables[records], source))

    @property
    def arrays(self) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        filters = self._columns.arrays if self._columns is not None else {}
        return {self._name: {**self._codes.arrays, **filters}}

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + (self._columns.nbytes if self._columns is not None else 0)

    def changing(self, keys: Mapping[str, Sequence[NDArray[Any]]]) -> None:
        self._codes.changing(keys.get(self._name, ()))
        if self._columns is not None:
            self._columns.changing(keys.get(self._records, ()))

    def refresh(self, epoch: int) -> bool:
        left = self._codes.refresh(epoch)
        return (self._columns is not None and self._columns.refresh(epoch)) or left
