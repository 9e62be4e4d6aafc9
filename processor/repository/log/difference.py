"""Compute the delta that makes what is served equal to something else, bit by bit: a trainer's table, an older part.

Both sides are read in pieces: apart from the differing rows, memory is eight bytes for each key of the trainer. A
Difference follows the log beside other writers and compares only the keys that newer deltas changed: a retry after a
conflict costs what the other writer published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Diverged
from freshet_serving.processor.package import RECORD, Delta, DeltaRun, Manifest, TableDelta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents, stored, widened
from freshet_serving.processor.repository.log.history import ChainLink

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Read = Callable[[Int64s], NDArray[Any]]
"""Reads rows at the given places, float32 [m, dim], or records."""
Lookup = Callable[[Int64s], tuple[NDArray[np.bool_], NDArray[Any]]]
"""Returns which distinct keys have a row, bool [n], and their rows, [n, dim]."""

PIECE = 1 << 16
MODEL, ENTITIES = "model", "entities"
"""Parts of a version that may go back alone: rows and dense weights; the features of entities."""


def table_difference(contents: VersionContents, name: str, keys: Int64s, read: Read) -> TableDelta:
    """Return the rows to upsert, by ascending key, and the served keys that the trainer does not have.

    Upserted are rows that are not served or are served with other bits, compared as they would be stored. The trainer's
    keys are int64 [n], distinct, in any order; `read` reads its rows at places among them.
    """
    entry, changes = contents.base.manifest.table(name), contents.changes[name]
    dtype = entry.dtype
    order = np.argsort(keys)
    ordered = keys[order]
    seen = np.zeros(len(keys), np.bool_)
    moved: list[Int64s] = []
    gone: list[Int64s] = []

    def compare(served_keys: Int64s, served_rows: Float32s) -> None:
        at, present = places_of(ordered, served_keys)
        gone.append(served_keys[~present])
        places = order[at[present]]
        seen[places] = True
        moved.append(places[differs(stored(read(places), dtype), served_rows[present])])

    base_keys, base_rows, scales = contents.base_rows(name)
    for at in range(0, len(base_keys), PIECE):
        piece = base_keys[at : at + PIECE]
        unchanged = np.flatnonzero(~(places_of(changes.keys, piece)[1] | places_of(changes.removed, piece)[1])) + at
        compare(base_keys[unchanged], widened(base_rows[unchanged], scales[unchanged] if len(scales) else scales))
    for at in range(0, len(changes.keys), PIECE):
        compare(changes.keys[at : at + PIECE], stored(changes.rows[at : at + PIECE], dtype))
    if entry.unknown_key is not None:
        place = np.flatnonzero(~seen & (keys == entry.unknown_key))
        seen[place] = ~differs(read(place), contents.rows(name, keys[place])[1])
    places = np.concatenate([*moved, np.flatnonzero(~seen)])
    places = places[np.argsort(keys[places])]
    rows = np.empty((len(places), entry.dim), changes.rows.dtype)
    for at in range(0, len(places), PIECE):
        rows[at : at + PIECE] = read(places[at : at + PIECE])
    return TableDelta(keys[places], rows, np.sort(np.concatenate([np.empty(0, np.int64), *gone])))


class Difference:
    """The delta on the newest generation that makes tables (changes by name) and dense weights equal to a state."""

    def __init__(
        self,
        manifest: Manifest,
        link: ChainLink,
        state: Mapping[str, Lookup],
        weights: Mapping[str, Float32s],
        tables: Mapping[str, TableDelta] | None = None,
        dense: Mapping[str, Float32s] | None = None,
    ) -> None:
        """Begin with what differs at a generation: rows and weights to serve, by name, and the changes that give them.

        By default there are none, for a state that is the generation's own.
        """
        self.link, self._manifest, self._state, self._weights = link, manifest, state, weights
        self.tables = {name: table for name, table in (tables or {}).items() if len(table.keys) or len(table.removed)}
        self.dense = dict(dense or {})

    def follow(self, change_log: ChangeLog) -> bool:
        """Apply to the head as it was last read; return False, unchanged, if the generation has been undone.

        Raises Diverged if a delta since then cannot be read.
        """
        head, ahead = change_log.history.head, list[ChainLink]()
        for link in change_log.history.back(head):
            if link.digest == self.link.digest:
                break
            ahead.append(link)
        else:
            return False
        if ahead:
            run = DeltaRun()
            for link in reversed(ahead):
                run.add(change_log.read_delta(link))
            self._take(run.folded())
            self.link = head
        return True

    def _take(self, delta: Delta) -> None:
        for name in delta.tables.keys() & self._state.keys():
            table = self._compared(name, delta.tables[name])
            self.tables.pop(name, None)
            if len(table.keys) or len(table.removed):
                self.tables[name] = table
        for name in delta.dense.keys() & self._weights.keys():
            self.dense.pop(name, None)
            if not np.array_equal(bits(self._weights[name]), bits(delta.dense[name])):
                self.dense[name] = self._weights[name]

    def _compared(self, name: str, served: TableDelta) -> TableDelta:
        """Return the changes of a table after a delta: its keys compared anew, the others as before."""
        keys, upserted = np.concatenate([served.keys, served.removed]), len(served.keys)
        dtype = self._manifest.table(name).dtype
        present, rows = self._state[name](keys)
        same = np.zeros(len(keys), np.bool_)
        same[:upserted] = ~differs(stored(rows[:upserted], dtype), stored(served.rows, dtype))
        set_again, gone = present & ~same, ~present & (np.arange(len(keys)) < upserted)
        before = self.tables.get(name) or TableDelta(keys[:0], rows[:0], keys[:0])
        same_keys, still_removed = ~np.isin(before.keys, keys), ~np.isin(before.removed, keys)
        all_keys = np.concatenate([before.keys[same_keys], keys[set_again]])
        order = np.argsort(all_keys)
        all_rows = np.concatenate([before.rows[same_keys], rows[set_again]])
        removed = np.sort(np.concatenate([before.removed[still_removed], keys[gone]]))
        return TableDelta(all_keys[order], all_rows[order], removed)


def part_difference(change_log: ChangeLog, past: ChainLink, only: str) -> Difference:
    """Return the difference that takes a part (MODEL or ENTITIES) back to an earlier generation of a log just read.

    Raises BadInput for another part, or one that the model does not have.
    """
    if only not in (MODEL, ENTITIES):
        raise BadInput(f"only: expected {MODEL} or {ENTITIES}, got {only[:40]!r}")
    files, manifest = change_log.version, change_log.manifest
    contents = VersionContents(files, change_log, past)
    names = [entry.name for entry in manifest.tables if (entry.dtype == RECORD) == (only == ENTITIES)]
    if only == ENTITIES and not names:
        raise BadInput(f"only: expected {MODEL}, got {ENTITIES}: model {manifest.model!r} has none")
    state = {name: partial(contents.rows, name) for name in names}
    weights = contents.dense if only == MODEL else {}
    difference = Difference(manifest, past, state, weights)
    try:
        if difference.follow(change_log):
            return difference
    except Diverged:
        # Deltas that a snapshot replaces may have been pruned: compare whole tables, which needs none of them.
        pass
    served, tables = VersionContents(files, change_log, change_log.history.head), {}
    for name in names:
        keys, rows = contents.table(name)
        tables[name] = table_difference(served, name, keys, rows.__getitem__)
    dense = {n: value for n, value in weights.items() if not np.array_equal(bits(value), bits(served.dense[n]))}
    return Difference(manifest, served.link, state, weights, tables, dense)


def restores_part(change_log: ChangeLog, delta: Delta) -> bool:
    """Report whether all that a delta changes is as it was at the earlier generation that the delta names.

    A generation behind a gate does not count: it was never served. The log has just been read; the delta is of its
    next or newest generation.
    """
    if delta.restores is None:
        return False
    if delta.restores < change_log.history.base.step:
        change_log.reach_back()
    history = change_log.history
    past = history.on_line(delta.restores)
    if past is None or past.step > min(delta.parent_step, history.target.step):
        return False
    contents = VersionContents(change_log.version, change_log, past)
    for name, table in delta.tables.items():
        present, rows = contents.rows(name, table.keys)
        dtype = change_log.manifest.table(name).dtype
        if not present.all() or differs(rows, stored(table.rows, dtype)).any():
            return False
        if contents.rows(name, table.removed)[0].any():
            return False
    return all(np.array_equal(bits(value), bits(contents.dense[name])) for name, value in delta.dense.items())


def lookup_of(keys: Int64s, read: Read) -> Lookup:
    """Return a lookup among a trainer's rows; arguments as in table_difference()."""
    order = np.argsort(keys)
    ordered = keys[order]

    def look_up(asked: Int64s) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        at, present = places_of(ordered, asked)
        found_rows = read(order[at[present]])
        rows = np.zeros((len(asked), *found_rows.shape[1:]), found_rows.dtype)
        rows[present] = found_rows
        return present, rows

    return look_up


def differs(rows: Float32s, others: Float32s) -> NDArray[np.bool_]:
    """Return which rows have different bits, bool [n]; both are float32 [n, dim]."""
    return np.asarray((bits(rows) != bits(others)).any(axis=1))


def bits(array: NDArray[Any]) -> NDArray[np.uint32]:
    """Return float32 values, or the words of records, as their bits, so that -0.0 differs from 0.0."""
    return np.ascontiguousarray(array).view(np.uint32)


def places_of(ascending: Int64s, keys: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """Look up keys, int64 [n], among distinct ascending ones; return positions, int64 [n], and which are present."""
    if not len(ascending):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return at, np.asarray(ascending[at] == keys)
