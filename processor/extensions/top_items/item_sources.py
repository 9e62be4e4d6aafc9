"""Rank items for everybody, such as by popularity: a number of each item, in a column of a table.

The manifest's notes list them by name in the entry "sources" (section.NOTE):

    "sources": {"popular": {"table": "item", "column": 50, "scale": 32.0, "shift": -20.0},
                "new": {"table": "item_sources", "column": 0, "scale": 4096.0, "shift": -4096.0,
                        "origin_s": 1767225600}}

The keys of the table are those of the items. A score is number * scale + shift:

    popular  the natural logarithm of the item's share of the recent events: an event counts less the older it is. That
             is a share at the time of the full version; all scores rise alike with later events
    new      hours from the origin, in Unix seconds, until the item was first seen

A source is scanned as any table is that a request ranks (row_ranking), by a vector that is 1 in its column and 0 in the
others. So filters, lists of ids, deltas and rollbacks do to it what they do to the model's own ranking.

Rejected: a sorted list (each delta would move most of it); popularity as of now (each delta would change all rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.package import RECORD, Manifest

MODEL, POPULAR, NEW = "model", "popular", "new"
LARGEST = 1e30
"""Numbers that notes may have."""

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ItemSource:
    """A number of each item.

    Attributes:
        column: The number's place in a row.
        columns: Leading numbers of a row that have codes.
        scale: Factor of the score.
        shift: What is added to it.
        origin_s: Unix seconds that hours are counted from; 0 for what is no time.
    """

    table: int
    column: int
    columns: int
    scale: float = 1.0
    shift: float = 0.0
    origin_s: float = 0.0

    def vectors(self, users: int) -> Float32s:
        """Return vectors whose products with rows are the numbers, float32 [users, columns]."""
        vectors = np.zeros((users, self.columns), np.float32)
        vectors[:, self.column] = 1
        return vectors

    def scores(self, numbers: Float32s) -> Float32s:
        return np.asarray(numbers.astype(np.float64) * self.scale + self.shift, np.float32)


def sources_of(manifest: Manifest, noted: Any, ranked: int, columns: int) -> dict[str, ItemSource]:
    """Return the sources that a version's notes name, without those that this release cannot read.

    `ranked` is the number of the items' table, whose rows have so many leading numbers with codes; 0 for none.
    """
    tables = {t.name: number for number, t in enumerate(manifest.tables) if t.dtype != RECORD}
    sources: dict[str, ItemSource] = {}
    for name in (POPULAR, NEW):
        entry = noted.get(name) if isinstance(noted, dict) else None
        if not isinstance(entry, dict):
            continue
        table, column = entry.get("table"), entry.get("column")
        if not isinstance(table, str) or table not in tables or type(column) is not int:
            continue
        number = tables[table]
        coded = columns if number == ranked else manifest.tables[number].dim
        numbers = [entry.get(key, plain) for key, plain in (("scale", 1.0), ("shift", 0.0), ("origin_s", 0.0))]
        # Beside the items' rows, one table has codes.
        coded = 0 if any(number != s.table != ranked != number for s in sources.values()) else coded
        of_items = manifest.tables[number].hash_seed == manifest.tables[ranked].hash_seed
        if of_items and 0 <= column < coded and all(type(n) in (int, float) and abs(n) < LARGEST for n in numbers):
            sources[name] = ItemSource(number, column, coded, *map(float, numbers))
    return sources
