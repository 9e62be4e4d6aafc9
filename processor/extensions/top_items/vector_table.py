"""A table of items' vectors and their codes, as the version's writer keeps them and readers of all processes map them.

Vectors are rows of a ServedTable of their own, so they are staged, undone and read under an epoch like the version's
rows; codes (row_codes) lie beside them. Readers get both, and two small arrays, with the arrays of the catalogue:

    vector_<name>   the table's arrays, by their names (processor.tables.table)
    code_<name>     the codes (row_codes)
    filter_<name>   what filters read, by the positions of the codes (filter_columns)
    vector_of       int64 [4]: CURRENT, LAGGING or ABSENT; step and digest of the generation that lagging vectors are of
    vector_score    float32 [2]: what the score makes of a product (item_tower.ScoreForm)

The last two are replaced, never written to: a state and what its frame says about it are published by one flip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.top_items.filter_columns import FilterColumns
from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity
from freshet_serving.processor.extensions.top_items.item_readers import ItemReaders
from freshet_serving.processor.extensions.top_items.item_tower import ItemTower
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.tower_runs import TowerWeights
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.memory import reserve
from freshet_serving.processor.package import TableDelta, TableEntry
from freshet_serving.processor.tables.table import RowVersions, ServedTable, descriptor, packed_stored
from freshet_serving.processor.versions.control import ControlEntry

CURRENT, LAGGING, ABSENT = range(3)
"""Vectors are of the state's own generation; of an older one; or there are none."""
PREFIX = "vector_"
OF, SCORE = "vector_of", "vector_score"
NAME = "vectors"

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
NO_KEYS: Int64s = np.empty(0, np.int64)


class VectorTable:
    """The vectors of items by one tower, under a name that no other table has or had."""

    def __init__(
        self,
        name: str,
        keys: Int64s,
        rows: Float32s,
        weights: TowerWeights,
        readers: ItemReaders,
        filtered: tuple[ServedTable, FilteredEntity] | None = None,
    ) -> None:
        """Take vectors of keys, ascending, in reserved memory (reserved_rows), and the entity that filters read."""
        self.name, self.weights, self.readers = name, weights, readers
        tensors = packed_stored(keys, rows)
        self.table = ServedTable(TableEntry(NAME, rows.shape[1], len(keys)), tensors)
        self.codes = RowCodes(self.table, tensors, rows.shape[1])
        self.columns = None if filtered is None else FilterColumns(self.codes, *filtered)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        filters = {} if self.columns is None else self.columns.arrays
        return {**{PREFIX + name: array for name, array in self.table.arrays.items()}, **self.codes.arrays, **filters}

    @property
    def nbytes(self) -> int:
        filters = 0 if self.columns is None else self.columns.nbytes
        return sum(self.table.nbytes.values()) + self.codes.nbytes + self.readers.nbytes + filters

    def changing(self, keys: Mapping[str, Sequence[Int64s]], records: str) -> None:
        """Mark what will be different in the state that is published next (RowWatcher.changing), records too."""
        self.codes.changing(keys.get(self.name, ()))
        if self.columns is not None:
            self.columns.changing(keys.get(records, ()))

    def refresh(self, epoch: int) -> bool:
        left = self.codes.refresh(epoch)
        return (self.columns is not None and self.columns.refresh(epoch)) or left

    def stage(self, delta: TableDelta, epoch: int, versions: RowVersions) -> None:
        self.table.apply(delta, epoch, versions)
        self.codes.changing([versions.keys])

    def put(self, delta: TableDelta, epoch: int, publish_seq: int) -> None:
        """Change vectors of the served epoch for good, before any reader has the table."""
        versions = RowVersions()
        self.stage(delta, epoch, versions)
        self.table.retire(versions, publish_seq)
        if self.columns is not None:
            # The codes may have new arrays.
            self.columns.changing(())


def reserved_rows(count: int, columns: int) -> Float32s:
    """Return room for vectors in memory that other processes can map, float32 [count, columns]."""
    nbytes = 4 * count * columns
    return reserve(nbytes, "vectors")[:nbytes].view(np.float32).reshape(count, columns)


def vectors_of(generation: Generation | None) -> Int64s:
    """Return the array vector_of for vectors that lag; of the state's own generation for None."""
    if generation is None:
        return np.array([CURRENT, 0, 0, 0], np.int64)
    entry = ControlEntry.of(0, 0, generation)
    return np.array([LAGGING, entry.step, entry.high, entry.low], np.int64)


class ReadVectors(NamedTuple):
    """Vectors as a reader has mapped them: their table's descriptor, int64 [TABLE_FIELDS], and numbers of a score.

    If they lag, there is the generation that they are of.
    """

    tower: ItemTower
    table: Int64s
    generation: Generation | None
    numbers: Float32s

    @classmethod
    def of(cls, tower: ItemTower, version: int, arrays: Mapping[str, NDArray[Any]]) -> ReadVectors:
        """Describe the vectors of a state by the catalogue's arrays; raise NotReady if there are none yet."""
        kind, step, high, low = arrays[OF].tolist() if OF in arrays else (ABSENT, 0, 0, 0)
        if kind == ABSENT:
            raise NotReady("top_items: the items' vectors are not there yet; try again, or see the server's log")
        of_vectors = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        table = np.array(descriptor(TableEntry(NAME, tower.columns, len(of_vectors["base"])), of_vectors), np.int64)
        digest = ControlEntry(0, step, 0, high, low).digest
        return cls(tower, table, Generation(version, step, digest) if kind == LAGGING else None, arrays[SCORE])

    def queries(self, vectors: Float32s) -> Float32s:
        """Return vectors whose products with items' have the order of the scores, float32 [n, columns]."""
        # The score falls with the product where the factor is negative, and is the same for all where it is 0.
        return np.ascontiguousarray(vectors * np.sign(self.numbers[0]))

    def scores(self, products: Float32s) -> Float32s:
        return self.tower.score.score(products * np.sign(self.numbers[0]), self.numbers)
