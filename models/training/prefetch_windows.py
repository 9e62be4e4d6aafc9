"""Stretches: the batches of a run in groups, each of which has its rows in memory before it is learned.

A group is as many batches as name the ids of one stretch of some table (TieredRows.window_ids), or READ_IDS values,
and one at least; None, where a stream has nothing for a moment, ends it. One thread collects a group's batches,
compacts the tables' logs and reads ahead what the group needs of them; the trainer's thread begins it.

Invariants. Items come out in their order, each once, an error after all that came before it. A group is read ahead
after the one before it has begun, so that what it reads stays where it is until it begins itself. At most three groups
of batches are held: one that is learned, one that is ready, one that is collected. At close() the threads have stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.distinct_ids import DistinctIds
from freshet_serving.models.embedding.tiered_rows import PrefetchedRows, TieredRows
from freshet_serving.models.pipeline.prefetch import PrefetchPipeline
from freshet_serving.models.pipeline.step_profile import StepProfile

READ_IDS = 1 << 21

Int64s = NDArray[np.int64]
IdsOf = Callable[[Any], Iterable[tuple[str, Int64s]]]


@dataclass(frozen=True, slots=True)
class PrefetchWindow:
    """Items in their order, with the distinct ids of each table and what was read of them."""

    items: list[Any]
    ids: dict[str, Int64s]
    prefetched: dict[str, PrefetchedRows]


class PrefetchWindows(Iterator[Any]):
    """The items of an Ahead, which it closes; their tables' rows are in memory when they come out."""

    def __init__(
        self, items: PrefetchPipeline, ids_of: IdsOf, tables: Mapping[str, TieredRows], profile: StepProfile
    ) -> None:
        """ids_of(item): table, one of these, and ids of each feature of it."""
        self._items, self._ids_of, self._tables, self._profile = items, ids_of, dict(tables), profile
        self._begun, self._closed = threading.Semaphore(), False
        self._windows = PrefetchPipeline(self._ready(), depth=1)
        self._left: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        while True:
            for item in self._left:
                return item
            found = next(self._windows)
            for name, table in self._tables.items():
                table.enter_window(found.ids[name], found.prefetched[name])
            self._begun.release()
            self._left = iter(found.items)

    def close(self) -> None:
        """Stops the threads, wherever they are."""
        self._closed = True
        self._begun.release()
        self._items.close()
        self._windows.close()

    def __enter__(self) -> PrefetchWindows:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ready(self) -> Iterator[PrefetchWindow]:
        """The stretches, each when what it needs has been read."""
        for items, ids in self._collected():
            self._begun.acquire()
            if self._closed:
                return
            with self._profile.timed("fetch"):
                for table in self._tables.values():
                    table.compact_log()
                prefetched = {name: table.prefetch(ids[name]) for name, table in self._tables.items()}
            yield PrefetchWindow(items, ids, prefetched)

    def _collected(self) -> Iterator[tuple[list[Any], dict[str, Int64s]]]:
        """Items in groups, with the distinct ids of each table."""
        error, more = None, True
        while more:
            items: list[Any] = []
            known = {name: DistinctIds() for name in self._tables}
            values = 0
            try:
                for item in self._items:
                    items.append(item)
                    values += self._note(item, known)
                    if (
                        item is None
                        or values >= READ_IDS
                        or any(len(known[n]) >= t.window_ids for n, t in self._tables.items())
                    ):
                        break
                else:
                    more = False
            except Exception as raised:
                error, more = raised, False
            if items:
                yield items, {name: ids.ids for name, ids in known.items()}
        if error is not None:
            raise error

    def _note(self, item: Any, known: Mapping[str, DistinctIds]) -> int:
        """Adds the item's ids to those that are known; returns how many values it has."""
        values = 0
        for name, ids in self._ids_of(item):
            known[name].add(ids)
            values += len(ids)
        return values
