"""Group a run's batches into prefetch windows, whose rows are in memory before training on them starts.

A window ends when it reaches the id limit of a table's window (TieredRows.window_ids) or READ_IDS values, or at None,
which a stream yields when nothing arrives. One thread collects a window's batches, compacts the tables' logs and
prefetches its rows; the trainer's thread enters it.

Invariants. Items come out in order, each once, and an error after all items before it. A window is prefetched after the
previous one was entered, so prefetched records stay in place until the window is entered itself. At most three windows
are held: one in training, one ready, one being collected. After close() the threads have stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.embedding.distinct_ids import DistinctIds
from freshet_serving.models.embedding.tiered_rows import PrefetchedRows, TieredRows
from freshet_serving.models.runs.step_profile import StepProfile

READ_IDS = 1 << 21

Int64s = NDArray[np.int64]
IdsOf = Callable[[Any], Iterable[tuple[str, Int64s]]]


@dataclass(frozen=True, slots=True)
class PrefetchWindow:
    """Items in order, with their distinct ids and prefetched rows by table."""

    items: list[Any]
    ids: dict[str, Int64s]
    prefetched: dict[str, PrefetchedRows]


class PrefetchWindows(Iterator[Any]):
    """The items of a PrefetchPipeline, which it closes; their rows are in memory when they come out."""

    def __init__(
        self, items: PrefetchPipeline, ids_of: IdsOf, tables: Mapping[str, TieredRows], profile: StepProfile
    ) -> None:
        """Start to collect windows; ids_of() yields table and ids for each feature of an item."""
        self._items, self._ids_of, self._tables, self._profile = items, ids_of, dict(tables), profile
        self._begun, self._closed = threading.Semaphore(), False
        self._windows = PrefetchPipeline(self._ready(), depth=1)
        self._left: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        while True:
            for item in self._left:
                return item
            window = next(self._windows)
            for name, table in self._tables.items():
                table.enter_window(window.ids[name], window.prefetched[name])
            self._begun.release()
            self._left = iter(window.items)

    def close(self) -> None:
        self._closed = True
        self._begun.release()
        self._items.close()
        self._windows.close()

    def __enter__(self) -> PrefetchWindows:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ready(self) -> Iterator[PrefetchWindow]:
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
        """Yield items in groups, with the distinct ids of each table."""
        error, more = None, True
        while more:
            items: list[Any] = []
            distinct = {name: DistinctIds() for name in self._tables}
            values = 0
            try:
                for item in self._items:
                    items.append(item)
                    values += self._note(item, distinct)
                    if (
                        item is None
                        or values >= READ_IDS
                        or any(len(distinct[n]) >= t.window_ids for n, t in self._tables.items())
                    ):
                        break
                else:
                    more = False
            except Exception as raised:
                error, more = raised, False
            if items:
                yield items, {name: ids.ids for name, ids in distinct.items()}
        if error is not None:
            raise error

    def _note(self, item: Any, distinct: Mapping[str, DistinctIds]) -> int:
        """Add the item's ids; return its number of values."""
        values = 0
        for name, ids in self._ids_of(item):
            distinct[name].add(ids)
            values += len(ids)
        return values
