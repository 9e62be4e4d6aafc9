"""The port of extensions that keep something of their own beside a version's rows, as rows change.

Ownership: the version's writer calls all of it, under the version's lock. What readers need are arrays, which every
process maps with those of the table (Frame.arrays).

A watcher may derive rows from the version's rows and dense weights (DerivedRows). The version treats the tables with
these rows like its own: they are staged with each delta under its epoch, and undone with it.

Invariants
- A watcher hears of every key whose row differs in a state before that state is published; also of a delta that is
  refused later.
- It catches up only while no reader is pinned to a state older than the served one.
- It refuses no change: it marks what it cannot keep up with.
- Until settle(), derived rows are those of the state that stage(), turn() or advance() were called with; arrays are
  those of the proposal, or those before it.
- Derived rows may be computed from an older state: no row of a state after `floor` is reused. The writer never waits
  for that, unlike for a reader's pin.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.repository import VersionReader
from freshet_serving.processor.tables.table import RowVersions, ServedTable
from freshet_serving.processor.versions.control import IDLE

FIRST_SLICES = 64
"""Slices in which watchers catch up before a version is open; ServedVersion.maintain() does the rest."""

Keys = Sequence[NDArray[Any]]


class RowWatcher(Protocol):
    """Keeps something beside a version's rows (Extension.row_watchers)."""

    @property
    def arrays(self) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        """Arrays that readers map, by table and name; different arrays cause a new frame."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""

    def changing(self, keys: Mapping[str, Keys]) -> None:
        """Note keys (int64 arrays by table) of rows that the next published state adds, replaces or removes."""

    def refresh(self, epoch: int) -> bool:
        """Catch up with the served epoch by a slice of a few milliseconds; return True if more is left."""


class DerivedState(NamedTuple):
    """A state of the version, as rows are derived from it, under the served flip.

    An unchanged dense tensor is the same object as before. If readable() is False, no row may be read: a mapped file
    may be cut short.
    """

    epoch: int
    publish_seq: int
    generation: Generation
    dense: Mapping[str, NDArray[np.float32]]
    readable: Callable[[], bool]


class DerivedRows(RowWatcher):
    """A watcher that derives rows from a version's rows and dense weights."""

    @property
    @abstractmethod
    def tables(self) -> Mapping[str, ServedTable]:
        """The tables with these rows, by names that no other table has or had."""

    @property
    @abstractmethod
    def floor(self) -> int:
        """The oldest flip whose state rows are derived from; IDLE if there is none."""

    @property
    @abstractmethod
    def behind(self) -> bool:
        """True while advance() has work."""

    @property
    @abstractmethod
    def lag(self) -> tuple[int, float] | None:
        """Steps and seconds by which the rows lag, 0 if they do not; None before open(). Thread-safe."""

    @abstractmethod
    def open(self, state: DerivedState) -> None:
        """Derive all rows, before the version is open."""

    @abstractmethod
    def stage(self, state: DerivedState, before: int, versions: dict[str, RowVersions]) -> None:
        """Propose the rows of a staged delta, which leads to `state`; raise if they can be neither derived nor marked.

        Row versions of derived tables are added to the delta's `versions` before their first row; `before` is served.
        """

    @abstractmethod
    def turn(self, state: DerivedState) -> None:
        """Propose the rows of a rollback's state; derived rows are undone with the others."""

    @abstractmethod
    def settle(self, served: bool) -> None:
        """Note whether the proposal is served; allocates no memory if it is not."""

    @abstractmethod
    def advance(self, state: DerivedState) -> bool:
        """Work for a few milliseconds; return True if arrays are proposed that readers must map."""


class RowWatchers:
    """The watchers of one version."""

    def __init__(
        self,
        files: VersionReader,
        tables: Mapping[str, ServedTable],
        tensors: Mapping[str, Mapping[str, NDArray[Any]]],
    ) -> None:
        created = (create(files, tables, tensors) for create in ENGINE.offers("row_watchers").values())
        self._watchers: list[RowWatcher] = [watcher for watcher in created if watcher is not None]
        self._derived = [watcher for watcher in self._watchers if isinstance(watcher, DerivedRows)]
        self.left = bool(self._watchers)

    @property
    def nbytes(self) -> int:
        return sum(watcher.nbytes for watcher in self._watchers)

    @property
    def tables(self) -> Mapping[str, ServedTable]:
        tables: dict[str, ServedTable] = {}
        for derived in self._derived:
            tables |= derived.tables
        return tables

    @property
    def floor(self) -> int:
        return min((derived.floor for derived in self._derived), default=IDLE)

    @property
    def behind(self) -> bool:
        return any(derived.behind for derived in self._derived)

    @property
    def lag(self) -> tuple[int, float] | None:
        """Largest lag of derived rows in steps and seconds; None without any."""
        return max((lag for derived in self._derived if (lag := derived.lag) is not None), default=None)

    def open(self, state: DerivedState) -> None:
        for derived in self._derived:
            derived.open(state)

    def stage(self, state: DerivedState, before: int, versions: dict[str, RowVersions]) -> None:
        for derived in self._derived:
            derived.stage(state, before, versions)

    def turn(self, state: DerivedState) -> None:
        for derived in self._derived:
            derived.turn(state)

    def settle(self, served: bool) -> None:
        for derived in self._derived:
            derived.settle(served)

    def advance(self, state: DerivedState) -> bool:
        proposals = [derived.advance(state) for derived in self._derived]
        return any(proposals)

    def arrays(self, table: str) -> dict[str, NDArray[Any]]:
        return {name: array for w in self._watchers for name, array in w.arrays.get(table, {}).items()}

    def changing(self, keys: Mapping[str, Keys]) -> None:
        for watcher in self._watchers:
            watcher.changing(keys)
        self.left = bool(self._watchers)

    def refresh(self, epoch: int, slices: int = 1) -> None:
        """Make every watcher catch up by a slice or more; never raises: what is left is tried again."""
        unfinished = False
        for watcher in self._watchers:
            try:
                unfinished |= all(watcher.refresh(epoch) for _ in range(slices))
            except MemoryError:
                unfinished = True
        self.left = unfinished
