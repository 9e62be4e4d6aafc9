"""Compare two generations of a table: new rows, removed rows, and those that have moved most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.variable import norms
from freshet_serving.models.evaluation.row_layers import RowLayers

MOST_MOVED = 20


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Changes of one table: numbers of new, removed and changed rows.

    `furthest` has (id, L2 distance, norm before, norm after) of the rows that moved most, largest distance first.
    """

    name: str
    born: int
    gone: int
    moved: int
    furthest: list[tuple[int, float, float, float]]


def changed_rows(
    newer: RowLayers, older: RowLayers, advance: Callable[[int], None], most: int = MOST_MOVED
) -> ChangedRows:
    """Compare two generations of a table; `most` is the length of `furthest`, `advance` gets numbers of rows."""
    born = moved = 0
    best = np.empty((0, 3), np.float64)
    ids: NDArray[np.int64] = np.empty(0, np.int64)
    for piece in newer.pieces():
        exists, before = older.rows(piece.keys)
        distance = norms(piece.rows - before)
        born += int((~exists).sum())
        changed = np.flatnonzero(exists & (distance > 0))
        moved += len(changed)
        moves = np.stack([distance, norms(before), norms(piece.rows)], axis=1)[changed]
        ids, best = np.concatenate([ids, piece.keys[changed]]), np.concatenate([best, moves])
        # Ties are ordered by id, so that the result does not depend on the order of the files.
        order = np.lexsort((ids, -best[:, 0]))[:most]
        ids, best = ids[order], best[order]
        advance(len(piece.keys))
    gone = 0
    for piece in older.pieces():
        gone += int((~newer.rows(piece.keys)[0]).sum())
        advance(len(piece.keys))
    furthest = [(key, float(d), float(a), float(b)) for key, (d, a, b) in zip(ids.tolist(), best.tolist())]
    return ChangedRows(newer.name, born, gone, moved, furthest)
