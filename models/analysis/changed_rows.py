"""Two generations of a table side by side: which rows are new, which are gone, and which have moved most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.analysis.row_layers import RowLayers
from freshet_serving.models.embedding.variable import norms

MOST_MOVED = 20


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """One table: rows that came, went and moved; of those that moved most id, distance (L2), and norm before and
    after, the furthest first."""

    name: str
    born: int
    gone: int
    moved: int
    furthest: list[tuple[int, float, float, float]]


def changed_rows(
    newer: RowLayers, older: RowLayers, advance: Callable[[int], None], most: int = MOST_MOVED
) -> ChangedRows:
    """What became of the older rows. Both have rows of one width."""
    born = moved = 0
    best = np.empty((0, 3), np.float64)
    ids: NDArray[np.int64] = np.empty(0, np.int64)
    for piece in newer.pieces():
        there, before = older.rows(piece.keys)
        distance = norms(piece.rows - before)
        born += int((~there).sum())
        changed = np.flatnonzero(there & (distance > 0))
        moved += len(changed)
        found = np.stack([distance, norms(before), norms(piece.rows)], axis=1)[changed]
        ids, best = np.concatenate([ids, piece.keys[changed]]), np.concatenate([best, found])
        # Of rows that moved alike the smaller id comes first, whatever the order of the files.
        order = np.lexsort((ids, -best[:, 0]))[:most]
        ids, best = ids[order], best[order]
        advance(len(piece.keys))
    gone = 0
    for piece in older.pieces():
        gone += int((~newer.rows(piece.keys)[0]).sum())
        advance(len(piece.keys))
    furthest = [(key, float(d), float(a), float(b)) for key, (d, a, b) in zip(ids.tolist(), best.tolist())]
    return ChangedRows(newer.name, born, gone, moved, furthest)
