"""The port of extensions that keep something of their own beside a version's rows, as rows change.

Ownership: the version's writer calls all of it, under the version's lock. What readers need are arrays, which every
process maps with those of the table (Frame.arrays).

Invariants
- A watcher is told of every key whose row differs in a state before that state is published; of a delta that is then
  refused, too.
- It is asked to catch up only while no reader is pinned to a state older than the served one.
- It refuses no change: what it cannot keep up with it marks as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.tables.table import ServedTable

FIRST_SLICES = 64
"""Slices in which watchers catch up before a version is open; what is left is up to ServedVersion.maintain()."""

Keys = Sequence[NDArray[Any]]


class RowWatcher(Protocol):
    """Keeps something beside the rows of a version (Extension.row_watchers)."""

    @property
    def arrays(self) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        """Arrays that readers map, by table and name; other arrays than before have readers prepare a new frame."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are in use."""

    def changing(self, keys: Mapping[str, Keys]) -> None:
        """Take note of keys whose rows will be other ones in the state that is published next.

        Args:
            keys: Keys of rows that are added, replaced or removed, in arrays of int64 by table.
        """

    def refresh(self, epoch: int) -> bool:
        """Catch up by a slice of a few milliseconds; return True if more is left.

        Args:
            epoch: The epoch that is served.
        """


class RowWatchers:
    """The watchers of one version."""

    def __init__(
        self,
        manifest: Manifest,
        tables: Mapping[str, ServedTable],
        tensors: Mapping[str, Mapping[str, NDArray[Any]]],
    ) -> None:
        """Ask extensions for watchers.

        Args:
            manifest: The version's manifest.
            tables: Its tables by name.
            tensors: The tensors of the files of those whose rows are in memory, by table.
        """
        created = (create(manifest, tables, tensors) for create in ENGINE.offers("row_watchers").values())
        self._watchers: list[RowWatcher] = [watcher for watcher in created if watcher is not None]
        self._left = bool(self._watchers)

    @property
    def left(self) -> bool:
        """True if a watcher has to catch up."""
        return self._left

    @property
    def nbytes(self) -> int:
        return sum(watcher.nbytes for watcher in self._watchers)

    def arrays(self, table: str) -> dict[str, NDArray[Any]]:
        """Return what readers map beside a table's own arrays."""
        return {name: array for w in self._watchers for name, array in w.arrays.get(table, {}).items()}

    def changing(self, keys: Mapping[str, Keys]) -> None:
        """Tell every watcher (RowWatcher.changing)."""
        for watcher in self._watchers:
            watcher.changing(keys)
        self._left = bool(self._watchers)

    def refresh(self, epoch: int, slices: int = 1) -> None:
        """Have every watcher catch up by a slice or more; never raises: what is left is tried again."""
        left = False
        for watcher in self._watchers:
            try:
                left |= all(watcher.refresh(epoch) for _ in range(slices))
            except MemoryError:
                left = True
        self._left = left
