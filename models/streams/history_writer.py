"""Write the histories that a run learns to online stores, so that requests read what training read.

Invariants
- A history is written whole, under its user's key: the user's events of rows before the run's position, as a row sees
  them that is later than all of these (models.data.user_events), in the layout in which the version reads it.
- Before a delta, and before the increment of its checkpoint, the histories of all users with events of its rows are
  written. So a kill in between leaves the store ahead of what is served, never behind: a run that resumes learns these
  rows again and writes the same histories.
- The run's state says which processes of the store have all histories, and in which layout. Another one (the first, a
  store that was restarted and may have lost what it acknowledged, a new master, other fields) gets all of them before
  the next version or delta.
- While a store does not take them, nothing is published and no row is learned; `wait` decides for how long.
- A rollback takes back weights, not what users did: nothing is removed from the store, a store that comes up empty
  meanwhile gets what the other had, and rows that are learned again see what they saw.
- Memory: the users of one delta, 8 bytes each, and CHUNK_EVENTS events.

Users who are away longer than `ttl_s` lose their histories by the keys' expiry, not by a write. The time that counts is
that of the newest event, not of a clock: a log of last year is written as it was then.

Rejected: writing as rows are learned (a history would run ahead of the delta by minutes, and each event would be a
write); a queue behind an unreachable store (it has no bound, and its deltas would have to wait all the same).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.sequence_columns import SequenceConfig, SequenceSource
from freshet_serving.models.data.source import Source
from freshet_serving.models.data.user_events import UserEvents
from freshet_serving.models.runs.outages import Outages
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.features.input_writer import ListWriter, list_writer
from freshet_serving.processor.package import Manifest

CHUNK_USERS, CHUNK_EVENTS = 4096, 1 << 16
"""Most users of one write, and most events unless it is of one user."""

MOST_S, CHECK_S = 8.0, 10.0
"""Longest wait before a store is asked again, and how often it is asked while there is nothing to write."""

T = TypeVar("T")
Int64s = NDArray[np.int64]


class Written(Protocol):
    """The part of a run's state that its histories need.

    Attributes:
        position: Number of the next row to learn.
        histories: For each sequence, what its writer's begin() returned when all its histories were written; changed.
    """

    position: int
    histories: dict[str, str]


class HistoryWriter:
    """The histories that one run writes. For one thread."""

    def __init__(
        self,
        sequences: Mapping[str, SequenceConfig],
        writers: Mapping[str, ListWriter],
        source: SequenceSource | None,
        report: Reporter,
        wait: Callable[[NotReady], None],
    ) -> None:
        """Write nothing yet.

        Args:
            writers: For some of the sequences, what writes to their stores; needs a source.
            wait: Waits before a store is asked again, or raises to give up.
        """
        self._sequences, self._writers, self._source = sequences, writers, source
        self._report, self._wait = report, wait
        if source is not None and writers:
            source.erase_stored = self.erase
        self.trouble, self._checked_s = "", -CHECK_S
        # By sequence: the events that were written last; `settled` counts for these.
        self._written: dict[str, UserEvents] = {}

    @classmethod
    def of(
        cls, config: TrainConfig, manifest: Manifest, source: Source, report: Reporter, stopped: threading.Event
    ) -> HistoryWriter:
        """Return the writer of a run: of the sequences with `store`, as far as the run knows where the stores are.

        A followed run waits for a store until `stopped`; it raises BadInput if it does not know where one is.
        """
        check_stores(config)
        writers: dict[str, ListWriter] = {}
        for name, sequence in config.sequences.items():
            if sequence.store in config.online_stores:
                inputs = [f.name for f in config.features if f.sequence is not None and f.sequence.name == name]
                writers[name] = list_writer(config.online_stores[sequence.store], manifest, inputs)
        assert not writers or isinstance(source, SequenceSource)
        wait = Outages(config.data.follow, stopped, report.note, MOST_S).wait
        return cls(config.sequences, writers, source if isinstance(source, SequenceSource) else None, report, wait)

    def write(self, state: Written, bar: bool = False) -> None:
        """Write what the stores do not have yet of the rows before the run's position.

        Raises NotReady if the run gives up on a store, BadInput if it has something else under the keys. With `bar`,
        the progress of writing all histories is shown.
        """
        for name, writer in self._writers.items():
            assert self._source is not None
            events = self._source.events_before(state.position)[name]
            while not self._wrote(name, writer, events, state, bar):
                pass
            events.settle(state.position)
            self._written[name] = events

    def check(self, state: Written) -> None:
        """Every CHECK_S, write all histories to a store that may have lost some since; skip one that is away."""
        if time.monotonic() - self._checked_s < CHECK_S:
            return
        self._checked_s = time.monotonic()
        for name, writer in self._writers.items():
            try:
                store = writer.begin()
            except NotReady as error:
                self.trouble = str(error)
                continue
            self.trouble = ""
            if store != state.histories.get(name):
                self.write(state)

    def erase(self, users: Int64s, state: Written) -> int:
        """Remove the histories of users (ids or hashes of keys) from the stores, before their events; return how many.

        It may be repeated after NotReady.
        """
        erased = 0
        for name, writer in self._writers.items():
            assert self._source is not None
            erased += writer.erase(self._source.events_before(state.position)[name].keys_of(users))
        return erased

    def _wrote(self, name: str, writer: ListWriter, events: UserEvents, state: Written, bar: bool) -> bool:
        """Write to one store; return False if another process of it came up meanwhile, and has to get all."""
        store, row = self._begun(writer), max(state.position, events.settled)
        # After a run has gone far back it writes from other events than before, and then from those again.
        behind = events.settled > 0 and self._written.get(name, events) is not events
        whole = behind or state.histories.get(name) != store
        users = events.users() if whole else events.changed(row)
        now_s = events.newest_time(users)
        step = max(1, min(CHUNK_USERS, CHUNK_EVENTS // self._sequences[name].max_length))
        bar = bar and whole
        if bar:
            self._report.begin(f"writing histories to {self._sequences[name].store}", len(users))
        for first in range(0, len(users), step):
            chunk = users[first : first + step]
            while not self._try(partial(self._write, name, writer, events, chunk, row, now_s)):
                if self._begun(writer) != store:
                    return False
            if bar:
                self._report.advance(len(chunk))
        if whole and not bar:
            self._report.note(f"wrote the histories of {len(users):,} users to {self._sequences[name].store}")
        # Not in place: earlier states share the mapping.
        state.histories = {**state.histories, name: store}
        return True

    def _begun(self, writer: ListWriter) -> str:
        while (store := self._try(writer.begin)) is None:
            pass
        return store

    def _write(self, name: str, writer: ListWriter, events: UserEvents, users: Int64s, row: int, now_s: float) -> bool:
        assert self._source is not None
        keys, splits, times, values = events.histories(users, row, now_s)
        newest = np.zeros(len(splits) - 1, np.int64)
        nonempty = splits[1:] > splits[:-1]
        newest[nonempty] = times[splits[1:][nonempty] - 1]
        ttl_s = self._sequences[name].ttl_s
        left_s = newest.astype(np.float64) + (ttl_s - now_s) if ttl_s else None
        writer.write(keys, self._source.lists(name, splits, times, values), newest, left_s)
        return True

    def _try(self, act: Callable[[], T]) -> T | None:
        """Return act(); None, after a wait, if a store could not be reached."""
        try:
            result = act()
        except NotReady as error:
            self.trouble = str(error)
            self._wait(error)
            return None
        self.trouble = ""
        return result


def check_stores(config: TrainConfig) -> None:
    """Raise BadInput if a followed run does not know where a store of its histories is."""
    for name, sequence in config.sequences.items():
        if config.data.follow and sequence.store and sequence.store not in config.online_stores:
            raise BadInput(
                f"sequences.{name}.store: expected the address of {sequence.store!r}, got none; say it with "
                f"freshet train --online-store {sequence.store}=redis://HOST:PORT, or in [online_stores]"
            )
