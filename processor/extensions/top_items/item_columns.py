"""Read the columns of listed items, as a state has them, for people who look at a list.

A list names its generation, and the records are read as of that one. The caller holds the version's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.extensions.top_items.chosen_items import keys_of_ids
from freshet_serving.processor.extensions.top_items.item_sources import MODEL
from freshet_serving.processor.extensions.top_items.section import LIKE, SOURCE, ItemRanking
from freshet_serving.processor.package import Input, Manifest

MOST_VALUES = 16
"""Values of a list that are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemColumns:
    ranking: ItemRanking

    @classmethod
    def of(cls, manifest: Manifest) -> ItemColumns | None:
        """Return the columns of a version's items; None if it ranks none."""
        ranking = ItemRanking.of(manifest)
        return None if ranking is None else cls(ranking)

    def described(self) -> dict[str, Any]:
        """Return the item's input, the sources, the inputs of a user, and the columns to filter on, JSON-able."""
        ranking, source = self.ranking, self.ranking.filtered
        others = (ranking.item, *ranking.options)
        return {
            "item": ranking.item,
            "dtype": ranking.manifest.input(ranking.item).dtype,
            "sources": [MODEL, LIKE, *ranking.sources] if {LIKE, SOURCE} <= ranking.options else [MODEL],
            "inputs": [spec.name for spec in ranking.manifest.inputs if spec.name not in others],
            "columns": [
                {"name": name, "dtype": spec.dtype, "ragged": spec.ragged}
                for name, spec in ({} if source is None else source.columns).items()
            ],
        }

    def values(self, ids: Sequence[int | str], tables: NDArray[np.int64], epoch: int) -> dict[str, list[Any]]:
        """Return the columns of items by name, one value an item, JSON-able; None for an item without a record.

        Whole numbers are texts: browsers cannot represent all of them. Of a list, the first MOST_VALUES are there.
        `tables` are the descriptors, int64 [T, TABLE_FIELDS].
        """
        ranking, source = self.ranking, self.ranking.filtered
        if source is None or not ids:
            return {}
        if ranking.texts:
            keys = keys_of_ids(ranking, Strings.of([str(item) for item in ids]))
        else:
            keys = np.array([int(item) % 2**64 for item in ids], np.uint64).view(np.int64)
        records, present = source.read(tables[source.table], epoch, keys)
        columns: dict[str, list[Any]] = {name: [None] * len(ids) for name in source.columns}
        if present.any():
            places = np.flatnonzero(present).tolist()
            for name, column in source.unpack(np.ascontiguousarray(records[present]), list(source.columns)).items():
                shown = _as_sent(source.columns[name], column)
                for row, place in enumerate(places):
                    columns[name][place] = _value(shown, row)
        return columns


def _as_sent(spec: Input, column: Column) -> Column:
    values = column.values if isinstance(column, Ragged) else column
    if not isinstance(values, Strings):
        values = spec.as_sent(values)
    return replace(column, values=values) if isinstance(column, Ragged) else values


def _value(column: Any, row: int) -> Any:
    """Return one value, JSON-able: a number, a text, or a list of these; None for NaN."""
    if isinstance(column, Ragged):
        first, last = (int(end) for end in column.row_splits[row : row + 2])
        return [_value(column.values, n) for n in range(first, min(last, first + MOST_VALUES))]
    if isinstance(column, Strings):
        text: bytes = column.tolist()[row]
        return text.decode(errors="replace")
    value = column[row].item()
    if isinstance(value, float):
        return None if value != value else float(f"{value:.7g}")
    return str(value)
