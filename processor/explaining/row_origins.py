"""Where the rows of ids come from, as of an epoch: the walk of processor.kernels.rows, told rather than taken.

The writer's: called under the version's lock, in which neither heads nor what they lead to change. A few microseconds
an id, in Python: an explanation asks for some hundreds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels.rows import LOGGED, SETTLED
from freshet_serving.processor.tables.table import ServedTable

FILE, DELTA, REMOVED, NOWHERE = "file", "delta", "removed", "nowhere"
UNKNOWN = -1


class RowOrigin(NamedTuple):
    """kind: FILE, of the file that the version was loaded from; DELTA; REMOVED by a delta; NOWHERE, there is no row.
    epoch: of the delta, UNKNOWN where the table has not kept it, and where there is none."""

    kind: str
    epoch: int = UNKNOWN


def row_origins(table: ServedTable, keys: NDArray[np.int64], epoch: int) -> list[RowOrigin]:
    """The origin of each key's row, or of its absence."""
    arrays = table.arrays
    index, meta, base_rows = arrays["index"], arrays["meta"], len(arrays["base"])
    heads = np.empty(len(keys), np.int64)
    hash_index.find(index.ctypes.data, len(index), np.ascontiguousarray(keys), heads)
    return [_origin(head, meta, base_rows, epoch) for head in heads.tolist()]


def _origin(ref: int, meta: NDArray[np.int64], base_rows: int, epoch: int) -> RowOrigin:
    while base_rows <= ref < SETTLED:
        stamp, before = meta[ref - base_rows].tolist()
        if stamp >> 1 <= epoch:
            return RowOrigin(REMOVED if stamp & 1 else DELTA, stamp >> 1)
        ref = before
    if SETTLED <= ref < LOGGED:
        stamp, copied = meta[ref - SETTLED].tolist()
        if copied < 0:
            return RowOrigin(DELTA, stamp >> 1)
        # A copy in memory of what lies in the file or in the log (processor.tables.tier).
        ref = copied
    if ref < 0:
        return RowOrigin(NOWHERE)
    return RowOrigin(FILE) if ref < base_rows else RowOrigin(DELTA)
