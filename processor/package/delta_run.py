"""A run of deltas as one: what several deltas, one after another, come to. Pure: arrays come in, arrays go out.

Rows are whole values, never differences, so the newest row of each id is all that a run leaves; an id that a later
delta removes is removed. So a run is staged, judged and served as one change (processor.versions.log_applier), and
takes the memory of the ids that it changes rather than of all the rows that it carries.

Cost: each row is sorted a constant number of times: what has been gathered is folded only once it is twice what it
last folded to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.package.delta import Delta, TableDelta

FOLD_ROWS = 1 << 16
"""So many rows are kept unfolded at least."""


class DeltaRun:
    """Deltas of one version, each standing on the one before; at least one is added before folded()."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._gathered = self._folded = 0

    def add(self, delta: Delta) -> None:
        """The next delta; it has passed Delta.check()."""
        self._deltas.append(delta)
        self._gathered += delta.rows + delta.removed
        if len(self._deltas) > 1 and self._gathered > FOLD_ROWS + 2 * self._folded:
            self._deltas = [folded(self._deltas)]
            self._gathered = self._folded = self._deltas[0].rows + self._deltas[0].removed

    def folded(self) -> Delta:
        """The run as one delta; a run of one is that very delta."""
        return folded(self._deltas)


def folded(deltas: Sequence[Delta]) -> Delta:
    """One delta that leads where these lead one after another, from where the first of them stands. Its times and
    checksum are the newest's, its events those of all."""
    first, newest = deltas[0], deltas[-1]
    if len(deltas) == 1:
        return newest
    names = dict.fromkeys(name for delta in deltas for name in delta.tables)
    tables = {name: _folded([d.tables[name] for d in deltas if name in d.tables]) for name in names}
    dense: dict[str, NDArray[np.float32]] = {}
    for delta in deltas:
        dense |= delta.dense
    return replace(
        newest,
        parent_step=first.parent_step,
        compacted=first.compacted,
        tables=tables,
        dense=dense,
        event_time=next((d.event_time for d in reversed(deltas) if d.event_time), None),
        events=sum(delta.events for delta in deltas),
    )


def _folded(changes: Sequence[TableDelta]) -> TableDelta:
    if len(changes) == 1:
        return changes[0]
    newest_first = changes[::-1]
    keys = np.concatenate([part for c in newest_first for part in (c.keys, c.removed)])
    # Where each has its row among all rows, -1 for one that is removed.
    at, total = [], 0
    for change in newest_first:
        at.append(np.arange(total, total + len(change.keys)))
        at.append(np.full(len(change.removed), -1))
        total += len(change.keys)
    # Of equal keys unique() names the first, which is the newest.
    unique, first = np.unique(keys, return_index=True)
    rows_at = np.concatenate(at)[first]
    kept = rows_at >= 0
    rows = np.concatenate([change.rows for change in newest_first])[rows_at[kept]]
    return TableDelta(unique[kept], rows, unique[~kept])
