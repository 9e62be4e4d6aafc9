"""Read a table as layers, newest first: increments or deltas, on top of what they were applied to.

The newest layer that has an id provides its row; an id that a newer layer removed has none. Layers are read from where
they are stored, in pieces, so memory holds the ids above the last layer and one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.repository import NO_SCALES, VersionContents, stored, table_file, widened

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

PIECE_ROWS = 1 << 16
NOBODY: Int64s = np.empty(0, np.int64)


class RowChunk(NamedTuple):
    """Some rows of a table; how often training read each, and its last step, are None if unknown."""

    keys: Int64s
    rows: Float32s
    counts: Int64s | None
    last_step: Int64s | None


@dataclass(slots=True)
class RowLayer:
    """One layer: distinct keys in any order, rows as stored with their scales, and removed ids.

    `index` is the hash index of the keys, if the file has one.
    """

    keys: Int64s
    rows: NDArray[Any]
    scales: Float32s
    removed: Int64s
    counts: NDArray[Any] | None = None
    last_step: Int64s | None = None
    index: Int64s | None = None
    _order: Int64s | None = None

    def find(self, keys: Int64s) -> Int64s:
        """Return the positions of keys; negative for keys that are absent."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        if self.index is not None:
            refs = np.empty(len(keys), np.int64)
            hash_index.find(self.index.ctypes.data, len(self.index), np.ascontiguousarray(keys), refs)
            return np.where(refs < len(self.keys), refs, -1)
        if self._order is None:
            self._order = np.argsort(self.keys)
        at = np.searchsorted(self.keys, keys, sorter=self._order)
        refs = self._order[np.minimum(at, len(self.keys) - 1)]
        return np.where(self.keys[refs] == keys, refs, -1)

    def wide(self, places: Any) -> Float32s:
        """Return rows as float32, given their positions or a slice."""
        return widened(self.rows[places], self.scales[places] if len(self.scales) else self.scales)


class RowLayers:
    """A table of one generation, or of a checkpoint."""

    def __init__(self, name: str, dim: int, layers: Sequence[RowLayer]) -> None:
        self.name, self.dim, self._layers = name, dim, layers

    @classmethod
    def of(cls, contents: VersionContents, name: str) -> RowLayers:
        """Open a table from the files of a generation. Rows from deltas count as read once. Raises Corrupt."""
        entry, changes = contents.base.manifest.table(name), contents.changes[name]
        keys, rows, scales = contents.base_rows(name)
        file = contents.base.tensors(table_file(name))
        frequencies = file.get("frequencies")
        once = None if frequencies is None else np.ones(len(changes.keys), np.int64)
        newest = RowLayer(changes.keys, stored(changes.rows, entry.dtype), NO_SCALES, changes.removed, once)
        base = RowLayer(keys, rows, scales, NOBODY, frequencies, None, file["index"])
        return cls(name, entry.dim, [newest, base])

    @property
    def most_rows(self) -> int:
        """Total rows of all layers, hidden ones included: the number that pieces() reads."""
        return sum(len(layer.keys) for layer in self._layers)

    def pieces(self) -> Iterator[RowChunk]:
        hidden = NOBODY
        for number, layer in enumerate(self._layers):
            for first in range(0, len(layer.keys), PIECE_ROWS):
                piece = slice(first, first + PIECE_ROWS)
                keys = np.array(layer.keys[piece])
                visible = ~_within(hidden, keys)
                counts, steps = (
                    None if column is None else column[piece][visible].astype(np.int64)
                    for column in (layer.counts, layer.last_step)
                )
                yield RowChunk(keys[visible], layer.wide(piece)[visible], counts, steps)
            if number + 1 < len(self._layers):
                hidden = np.union1d(hidden, np.concatenate([layer.keys, layer.removed]))

    def rows(self, keys: Int64s) -> tuple[NDArray[np.bool_], Float32s]:
        """Return bool [n], whether each key has a row, and the rows, float32 [n, dim], zeros where there is none."""
        exists, unseen = np.zeros(len(keys), np.bool_), np.ones(len(keys), np.bool_)
        rows = np.zeros((len(keys), self.dim), np.float32)
        for layer in self._layers:
            left = np.flatnonzero(unseen)
            places = layer.find(keys[left])
            hits = left[places >= 0]
            rows[hits] = layer.wide(places[places >= 0])
            exists[hits] = True
            unseen[hits] = False
            unseen[np.isin(keys, layer.removed)] = False
        return exists, rows


def _within(ordered: Int64s, keys: Int64s) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    within: NDArray[np.bool_] = ordered[at] == keys
    return within
