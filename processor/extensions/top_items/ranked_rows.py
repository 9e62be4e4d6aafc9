"""Keep codes beside the rows of the table whose rows a version ranks (processor.versions.row_watchers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.tables.table import ServedTable


class RankedRowWatcher:
    """The codes of a version's ranked table, as its writer keeps them."""

    def __init__(self, name: str, codes: RowCodes) -> None:
        self._name, self._codes = name, codes

    @classmethod
    def of(
        cls, manifest: Manifest, tables: Mapping[str, ServedTable], tensors: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> RankedRowWatcher | None:
        """Return the watcher of a version; None if it ranks no table in memory. Arguments: see RowWatchers."""
        ranking = ItemRanking.of(manifest)
        name = "" if ranking is None else manifest.tables[ranking.table].name
        if ranking is None or ranking.tower is not None or name not in tensors:
            return None
        return cls(name, RowCodes(tables[name], tensors[name], ranking.columns))

    @property
    def arrays(self) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        return {self._name: self._codes.arrays}

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes

    def changing(self, keys: Mapping[str, Sequence[NDArray[Any]]]) -> None:
        self._codes.changing(keys.get(self._name, ()))

    def refresh(self, epoch: int) -> bool:
        return self._codes.refresh(epoch)
