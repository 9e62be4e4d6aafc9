"""Compute the delta that makes what is served equal to something else, bit by bit: a trainer's table, an older part.

Both sides are read in pieces: apart from the differing rows, memory is eight bytes for each key of the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import RECORD, TableDelta
from freshet_serving.processor.repository.log.contents import VersionContents, stored, widened

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Read = Callable[[Int64s], NDArray[Any]]
"""Reader of rows at the given places, float32 [m, dim], or records."""

PIECE = 1 << 16
MODEL, ENTITIES = "model", "entities"
"""Parts of a version that may go back alone: rows and dense weights; the features of entities."""


def table_difference(contents: VersionContents, name: str, keys: Int64s, read: Read) -> TableDelta:
    """Return the rows to upsert and the keys to remove.

    Upserted, by ascending key, are rows that are not served or are served with other bits; rows of a type narrower than
    float32 are compared as they would be stored. Removed are served keys that the trainer does not have.

    Args:
        contents: The served state.
        name: Name of the table.
        keys: The trainer's keys, int64 [n], distinct, in any order.
        read: Reads the trainer's rows at places among the keys.
    """
    dtype, changes = contents.base.manifest.table(name).dtype, contents.changes[name]
    order = np.argsort(keys)
    ordered = keys[order]
    seen = np.zeros(len(keys), np.bool_)
    moved: list[Int64s] = []
    gone: list[Int64s] = []

    def compare(served_keys: Int64s, served_rows: Float32s) -> None:
        at, here = places_of(ordered, served_keys)
        gone.append(served_keys[~here])
        places = order[at[here]]
        seen[places] = True
        moved.append(places[differs(stored(read(places), dtype), served_rows[here])])

    base_keys, base_rows, scales = contents.base_rows(name)
    for at in range(0, len(base_keys), PIECE):
        piece = base_keys[at : at + PIECE]
        kept = np.flatnonzero(~(places_of(changes.keys, piece)[1] | places_of(changes.removed, piece)[1])) + at
        compare(base_keys[kept], widened(base_rows[kept], scales[kept] if len(scales) else scales))
    for at in range(0, len(changes.keys), PIECE):
        compare(changes.keys[at : at + PIECE], stored(changes.rows[at : at + PIECE], dtype))
    places = np.concatenate([*moved, np.flatnonzero(~seen)])
    places = places[np.argsort(keys[places])]
    rows = np.empty((len(places), contents.base.manifest.table(name).dim), changes.rows.dtype)
    for at in range(0, len(places), PIECE):
        rows[at : at + PIECE] = read(places[at : at + PIECE])
    return TableDelta(keys[places], rows, np.sort(np.concatenate([np.empty(0, np.int64), *gone])))


def part_difference(
    contents: VersionContents, past: VersionContents, only: str
) -> tuple[dict[str, TableDelta], dict[str, NDArray[np.float32]]]:
    """Return the tables and dense weights of the delta that takes one part of a version back; empty if it is there.

    Args:
        contents: The served state.
        past: An earlier state.
        only: MODEL or ENTITIES.

    Raises:
        BadInput: `only` is another word.
    """
    if only not in (MODEL, ENTITIES):
        raise BadInput(f"only: expected {MODEL} or {ENTITIES}, got {only[:40]!r}")
    tables = {}
    for entry in contents.base.manifest.tables:
        if (entry.dtype == RECORD) == (only == ENTITIES):
            keys, rows = past.table(entry.name)
            changed = table_difference(contents, entry.name, keys, rows.__getitem__)
            if len(changed.keys) or len(changed.removed):
                tables[entry.name] = changed
    weights = past.dense if only == MODEL else {}
    dense = {n: value for n, value in weights.items() if not np.array_equal(bits(value), bits(contents.dense[n]))}
    return tables, dense


def differs(mine: Float32s, theirs: Float32s) -> NDArray[np.bool_]:
    """Return a mask of the rows with different bits, bool [n].

    Args:
        mine: float32 [n, dim].
        theirs: float32 [n, dim].
    """
    return np.asarray((bits(mine) != bits(theirs)).any(axis=1))


def bits(array: NDArray[Any]) -> NDArray[np.uint32]:
    """Return float32 values, or the words of records, as their bits, so that -0.0 differs from 0.0."""
    return np.ascontiguousarray(array).view(np.uint32)


def places_of(ascending: Int64s, keys: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """Look up `keys` among distinct ascending ones.

    Args:
        ascending: int64, distinct.
        keys: int64 [n].

    Returns:
        Their positions, int64 [n], and bool [n]: the key is there.
    """
    if not len(ascending):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return at, np.asarray(ascending[at] == keys)
