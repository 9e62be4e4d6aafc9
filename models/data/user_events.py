"""The events of all users of a log, as far as a row may still see them: the histories of [sequences.NAME].

A history is a function of the log alone: a row sees its user's events in earlier rows. Several readers ask at once (the
run reads ahead of training, the gate reads the newest rows again, a checkpoint is of a row between), so the store
answers for any of the newest KEPT_ROWS rows.

Rules
- An event has its row's number. A row sees only events with a lower number, so batch borders, reading ahead and the
  place where reading started change nothing.
- ties = "exclude": the newest max_length events before the newest time among them (of all, if the row is later), none
  of the row's own time or later. ties = "file": of the newest max_length, those up to the row's own time.
- So a late event takes its place by time and is seen by the rows that arrive after it; a late row sees nothing that
  happened after it.
- Events older than ttl_s before the row are not seen. The clock that expires events ignores times in the future: one
  wrong clock ends nobody's history.
- keep = "oldest": a user's first max_length events to arrive are kept and no others.

Invariants
- Rows are added once, in order; `position` is the next. An event is dropped only when no row from `floor` (KEPT_ROWS
  before the newest batch) on can see it: a user has at most 2 max_length events and those of KEPT_ROWS rows.
- A checkpoint can be written for any row between `floor` and `position`: whole, or as the rows since the part before.
  After a row behind the last saved part (a rollback) the next part is a whole one.
- The budget holds the table of users, its copy while it grows, SORTED_NBYTES a user for whole parts, and events
  (models.data.event_heap); further events, and a whole part that does not fit, are in a file. The table is always in
  memory: 50 to 150 bytes a user; with a store of texts 24 and the text more.
- Guests have no events. Of users only the hash of their key is kept; for a store the key too, here and in saved parts,
  from which erasing takes it (models.data.saved_events).
- For a store, changed() names every user with an event of a row since `settled`, perhaps more. That row never goes
  back: a rollback of weights does not undo what users did.

Calls are atomic: a lock guards each.

Rejected: undoing the newest rows for readers of older ones (late events make it hard to get right); a copy of the state
for each reader; Python lists by user (forty times the memory and time).
"""

from __future__ import annotations

import math
import mmap
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data import event_kernels
from freshet_serving.models.data.event_heap import EventHeap
from freshet_serving.models.data.event_kernels import TIME, VALUES
from freshet_serving.models.data.keyed_rows import ids_of
from freshet_serving.models.data.numbered_texts import DistinctTexts, NumberedTexts
from freshet_serving.models.data.saved_events import Arrays, Int64s, pieces_of
from freshet_serving.models.embedding.id_rows import IdRows
from freshet_serving.processor.columns import Column, Strings, take_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.memory import advise

KEPT_ROWS = 1 << 17
MERGED_USERS = 1 << 17
BUDGET_NBYTES = 256 << 20
SORTED_NBYTES = 64
"""Per user, while a whole part is made."""
NEVER = np.iinfo(np.int64).min
SEVERAL_RUNS = "history: the saved events are of several runs; restore the checkpoints of one"
AHEAD_S = 86_400.0
"""Clocks differ by less than a day: later events are in the future."""
FLOATS, TEXTS, IDS = "floats", "strings", "ids"


@dataclass(frozen=True, slots=True)
class EventRules:
    """The rules of [sequences.NAME] by which a row sees at most `most` events of its user; ttl_s 0 is no limit."""

    most: int
    newest: bool = True
    exclude: bool = True
    ttl_s: float = 0.0


class UserEvents:
    """The events of all users.

    Attributes:
        position: Number of the next row.
        floor: First row whose events are still seen as they were.
        settled: Row before which a store has all events.

    Example:
        >>> events = UserEvents(EventRules(most=2), ["ids"])
        >>> batch = np.array([7, 7, 7]), np.array([1.0, 2.0, 3.0])
        >>> events.add(0, *batch, np.ones(3, bool), [np.array([10, 20, 30])])
        >>> splits, _, (items,) = events.seen(0, *batch)
        >>> items.tolist(), splits.tolist()
        ([10, 10, 20], [0, 0, 1, 3])
    """

    def __init__(
        self,
        rules: EventRules,
        kinds: Sequence[str],
        folder: Path | None = None,
        budget_nbytes: int = BUDGET_NBYTES,
        stored: str = "",
    ) -> None:
        """Start with no events.

        Args:
            kinds: Kind of each value of an event: IDS, TEXTS or FLOATS.
            folder: Folder of the file for what is beyond the budget; by default that of temporary files.
            stored: Kind of the users' keys, IDS or TEXTS, if histories are written to a store.
        """
        self._rules, self._kinds = rules, tuple(kinds)
        self._width = VALUES + len(kinds)
        self._lock, self._budget_nbytes = threading.Lock(), budget_nbytes
        self._heap = EventHeap(budget_nbytes, 8 * self._width * rules.most, folder)
        self._stored, self._names = stored, NumberedTexts()
        self._users = IdRows({"book": ((3,), np.int64)} | ({"name": ((), np.int64)} if stored == TEXTS else {}))
        # Users with events of rows between two, at most MERGED_USERS of them or twice as many as are distinct.
        self._changed, self._changed_users, self._merge_at = deque[tuple[int, int, Int64s]](), 0, MERGED_USERS
        self._texts = DistinctTexts()
        self.position = self.floor = self.settled = 0
        # Newest time before the floor, and that of each batch behind it with the row after the batch.
        self._floor_s, self._clock = -np.inf, deque[tuple[int, float]]()
        # Keys and events by batch: since row `since`, that of the newest checkpoint if an increment can follow it.
        self._saves, self._since, self._texts_since = False, 0, 0
        self._added: deque[tuple[Int64s, Int64s]] = deque()

    def __len__(self) -> int:
        return len(self._users)

    @property
    def nbytes(self) -> int:
        """Bytes of events and users in memory; those in the file are not counted."""
        return self._heap.nbytes + self._table_nbytes(0)

    @property
    def file_nbytes(self) -> int:
        return self._heap.file_nbytes

    def _table_nbytes(self, more: int) -> int:
        return self._users.nbytes_with(more) + self._names.nbytes + self._texts.nbytes

    def add(self, start: int, keys: Column, times: NDArray[np.float64], enter: Any, values: Sequence[Any]) -> None:
        """Add the events of the next rows; rows that were added before are left out.

        Args:
            times: [n], Unix seconds.
            enter: bool [n], rows that are events.
            values: The events' values by column, n each.
        """
        with self._lock:
            first = max(0, self.position - start)
            if first >= len(times):
                return
            entering = np.flatnonzero(np.asarray(enter, bool))
            entering = entering[entering >= first]
            events = np.empty((len(entering), self._width), np.int64)
            events[:, TIME] = ordered(times[entering])
            events[:, event_kernels.ROW] = start + entering
            for place, (kind, column) in enumerate(zip(self._kinds, values), VALUES):
                events[:, place] = self._words(kind, column, entering)
            users = ids_of(keys)[entering]
            self._push(users, events, start + first, names=take_rows(keys, entering) if self._named else None)
            if self._stored and len(users):
                self._note_changed(start + first, start + len(times), np.unique(users))
            self.position = start + len(times)
            self._clock.append((self.position, _latest(times)))

    def seen(self, start: int, keys: Column, times: NDArray[np.float64]) -> tuple[Int64s, Int64s, list[Any]]:
        """Return what rows see: splits [n + 1]; the events' times, whole Unix seconds; their values by column.

        `start` is at least `floor`, `times` are Unix seconds; all rows before the last have been added.
        """
        since = None if not self._rules.ttl_s else times - self._rules.ttl_s
        with self._lock:
            users = self._users.find(ids_of(keys))
            splits, events = self._selected(users, times, since, start + np.arange(len(times)))
            return splits, _whole_seconds(events), self._columns(events)

    def users(self) -> Int64s:
        with self._lock:
            return self._users.keys[self._users.live()]

    def keys_of(self, users: Int64s) -> Column:
        """Return the keys of users, given as int64; if they are texts, those of users with events."""
        with self._lock:
            refs = self._users.find(users)
            return self._names.take(self._users.columns["name"][refs[refs >= 0]]) if self._named else users

    def changed(self, stop: int) -> Int64s:
        """Return the users with events of rows before `stop` that are not settled, as int64, ascending."""
        with self._lock:
            parts = [users for first, _, users in self._changed if first < stop]
            return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def settle(self, stop: int) -> None:
        """Forget which users have events of rows before `stop`: a store has them."""
        with self._lock:
            self.settled = max(self.settled, stop)
            self._changed = deque(part for part in self._changed if part[1] > stop)
            self._changed_users = sum(len(users) for _, _, users in self._changed)

    def newest_time(self, users: Int64s) -> float:
        """Return the time of users' newest event, one in the future only without others; -inf without any."""
        with self._lock:
            refs = self._users.find(users)
            refs = refs[refs >= 0]
            newest = self._newest(refs)
            times = _seconds(newest[newest > NEVER])
            return max(_latest(times), float(times.min())) if len(times) else -math.inf

    def histories(self, users: Int64s, stop: int, now_s: float) -> tuple[Column, Int64s, Int64s, list[Any]]:
        """Return the users' keys and, as seen(), what row `stop` sees if it is later than all before.

        Users without events are left out. The row is between `floor` and `position`; `now_s` counts for the time limit.
        """
        with self._lock:
            refs = self._users.find(users)
            has_events = refs >= 0
            users, refs = users[has_events], refs[has_events]
            # Later than any event.
            times = np.full(len(refs), np.inf)
            since = None if not self._rules.ttl_s else np.full(len(refs), now_s - self._rules.ttl_s)
            splits, events = self._selected(refs, times, since, np.full(len(refs), stop))
            keys = self._names.take(self._users.columns["name"][refs]) if self._named else users
            return keys, splits, _whole_seconds(events), self._columns(events)

    def erase(self, users: Int64s) -> int:
        """Remove all events of users (ids, or hashes of keys), read ahead or not; return how many had any.

        The next part that is saved has to be a full one.
        """
        with self._lock:
            self._saves = False
            removed = self._remove(np.unique(users))
            self._compact_names()
            return removed

    def full(self, stop: int) -> Arrays:
        """Return all events of rows before `stop`, to be restored; later increments begin there.

        Args:
            stop: A row between `floor` and `position`. If it lies before that of a part, the next one has to be full().
        """
        with self._lock:
            self._drop_old_users()
            if len(self._names) > 2 * len(self._users) + MERGED_USERS:
                self._compact_names()
            refs = self._users.live()
            counts, events = self._copied(refs, stop)
            nonempty = counts > 0
            keys = self._users.keys[refs[nonempty]]
            arrays = {"keys": keys, "counts": counts[nonempty], "events": events} | self._names_of(keys)
            return arrays | self._settled(stop, 0)

    def increment(self, stop: int) -> Arrays | None:
        """Return the events up to row `stop` since what was saved last; None if they do not follow it: call full()."""
        with self._lock:
            if stop < self._since or not self._saves:
                return None
            parts = [(keys[rows], events[rows]) for keys, events in self._added if len(rows := _before(events, stop))]
            keys = np.concatenate([keys for keys, _ in parts]) if parts else np.empty(0, np.int64)
            events = np.concatenate([e for _, e in parts]) if parts else np.empty((0, self._width), np.int64)
            since = np.array([self._since], np.int64)
            arrays = {"keys": keys, "events": events, "since": since} | self._names_of(keys)
            return arrays | self._settled(stop, self._texts_since)

    def restore(self, parts: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Take over what was saved: a full() and the increments after it, in order. Raises BadInput."""
        with self._lock:
            for part in parts:
                position, floor = part["position"].tolist()
                users = self._begin_part(part)
                for keys, events in pieces_of(part):
                    texts = events[:, [VALUES + n for n, kind in enumerate(self._kinds) if kind == TEXTS]]
                    if texts.min(initial=0) < 0 or texts.max(initial=0) > len(self._texts):
                        raise BadInput(SEVERAL_RUNS)
                    names = None
                    if self._named:
                        names = take_rows(Strings(part["names"], part["name_offsets"]), np.searchsorted(users, keys))
                    self._push(keys, events, position, floor, names)
                    advise(part["events"], mmap.MADV_DONTNEED)
                self.position, self.floor = position, floor
                self._floor_s = float(_seconds(part["floor_time"])[0])
            self._saves, self._since, self._texts_since = True, self.position, len(self._texts)
            self._added.clear()

    def _begin_part(self, part: Mapping[str, NDArray[Any]]) -> Int64s:
        """Check a saved part, and take over its texts; return its users, ascending. Raises BadInput."""
        events, users = part["events"], part["keys"]
        if events.shape[1:] != (self._width,):
            raise BadInput(f"history: expected {self._width} numbers an event, got {events.shape[-1]}")
        if "counts" in part:
            counts = part["counts"]
            fits = counts.shape == users.shape and not (counts < 0).any() and int(counts.sum()) == len(events)
            fits = fits and bool((users[1:] > users[:-1]).all())
        else:
            since, fits = int(part["since"][0]), len(users) == len(events)
            if since != self.position:
                raise BadInput(f"history: expected events since row {self.position:,}, got those since row {since:,}")
            users = np.unique(users)
        if self._named:
            ends = part["name_offsets"]
            fits = fits and len(ends) == len(users) + 1 and bool((np.diff(ends) >= 0).all())
            fits = fits and ends[0] >= 0 and ends[-1] <= len(part["names"])
        if not fits:
            raise BadInput(SEVERAL_RUNS)
        self._texts.extend(Strings(part["text"], part["offsets"]))
        return users

    def _drop_old_users(self) -> None:
        """Remove the users whose newest event is older than the time limit twice over."""
        if not self._rules.ttl_s:
            return
        refs = self._users.present()
        self._remove(self._users.keys[refs[self._newest(refs) < self._oldest_time()]])

    def _newest(self, refs: Int64s) -> Int64s:
        newest = np.full(len(refs), NEVER)
        for part in self._heap.touching(len(refs)):
            heap = self._users.columns["book"], *self._heap.addresses(), self._width
            event_kernels.newest_times(refs[part], *heap, newest[part])
        return newest

    def _oldest_time(self) -> int:
        """Return the time, ordered, of the oldest event that is kept: rows may be late by the time limit."""
        rules = self._rules
        return int(ordered(np.array([self._floor_s - 2 * rules.ttl_s]))[0]) if rules.ttl_s else NEVER

    def _settled(self, stop: int, first_text: int) -> Arrays:
        """Return the arrays that every saved part has, and begin the next increment."""
        remaining = [(keys[rows], events[rows]) for keys, events in self._added if len(rows := _after(events, stop))]
        self._added = deque(remaining)
        texts = self._texts.since(first_text)
        # Behind the newest part its own events would be missing between the two.
        self._saves = stop >= self._since
        self._since, self._texts_since = max(self._since, stop), len(self._texts)
        position = np.array([stop, min(self.floor, stop)], np.int64)
        floor_time = ordered(np.array([self._floor_s if stop >= self.floor else -np.inf]))
        return {"position": position, "floor_time": floor_time, "text": texts.data, "offsets": texts.offsets}

    def _push(
        self, keys: Int64s, events: Int64s, first_row: int, floor: int | None = None, names: Strings | None = None
    ) -> None:
        """Add events whose rows are `first_row` or later, or those of a saved part; `names`: the users' keys."""
        rules, new_rows = self._rules, (keys, events) if floor is None else None
        if floor is None:
            self.floor = max(self.floor, first_row - KEPT_ROWS)
            while self._clock and self._clock[0][0] <= self.floor:
                self._floor_s = max(self._floor_s, self._clock.popleft()[1])
            while not self._saves and self._added and not len(_after(self._added[0][1], self.floor)):
                self._added.popleft()
                self._since = max(self._since, self.floor)
        if not len(keys):
            return
        # Texts may grow, too, and are copied then.
        taken = self._table_nbytes(len(keys)) + SORTED_NBYTES * len(self._users)
        taken += 2 * (self._names.nbytes + self._texts.nbytes)
        self._heap.fit(max(0, self._budget_nbytes - taken))
        users, new = self._users.put(keys)
        distinct, firsts, counts = np.unique(users, return_index=True, return_counts=True)
        if names is not None and len(new):
            numbers = self._names.append(take_rows(names, firsts[np.searchsorted(distinct, new)]))
            self._users.columns["name"][new] = numbers
        books = self._users.columns["book"]
        most = rules.most if rules.newest else 0
        if rules.newest:
            order = np.lexsort((events[:, TIME], users))
            users, events = users[order], events[order]
        oldest, first = self._oldest_time(), self.floor if floor is None else floor
        for part in self._heap.touching(len(distinct)):
            done = part.start
            while done < part.stop:
                rest = slice(done, part.stop)
                done += event_kernels.make_room(
                    distinct[rest], counts[rest], books, *self._heap.addresses(), self._heap.end, self._heap.used,
                    self._heap.free, self._width, most, first, oldest,
                )  # fmt: skip
                self._heap.note_border()
                if done < part.stop:
                    user_events = int(counts[done] + books[distinct[done], event_kernels.COUNT])
                    self._heap.lengthen(4 * user_events * self._width)
        for part in self._heap.touching(len(users)):
            columns = events[part, TIME], events[part, event_kernels.ROW], events[part, VALUES:]
            most_kept = 0 if rules.newest else rules.most
            event_kernels.push(users[part], *columns, books, *self._heap.addresses(), self._width, most_kept)
        if new_rows is not None:
            self._added.append(new_rows)

    @property
    def _named(self) -> bool:
        return self._stored == TEXTS

    def _names_of(self, keys: Int64s) -> Arrays:
        if not self._named:
            return {}
        refs = self._users.find(np.unique(keys))
        names = self._names.take(np.where(refs < 0, 0, self._users.columns["name"][refs]))
        return {"names": names.data, "name_offsets": names.offsets}

    def _note_changed(self, first: int, stop: int, users: Int64s) -> None:
        self._changed.append((first, stop, users))
        self._changed_users += len(users)
        if self._changed_users > self._merge_at:
            merged = np.unique(np.concatenate([part for _, _, part in self._changed]))
            self._changed = deque([(self._changed[0][0], stop, merged)])
            self._changed_users, self._merge_at = len(merged), max(MERGED_USERS, 2 * len(merged))

    def _compact_names(self) -> None:
        if self._named:
            refs, columns = self._users.present(), self._users.columns
            names = self._names.take(columns["name"][refs])
            self._names = NumberedTexts()
            columns["name"][refs] = self._names.append(names)

    def _selected(
        self, users: Int64s, times: NDArray[np.float64], since: NDArray[np.float64] | None, rows: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Return splits [n + 1] and the events that rows of users see; with `since`, only later ones."""
        rules, books = self._rules, self._users.columns["book"]
        oldest = np.full(len(times), NEVER) if since is None else ordered(since)
        splits, moments = np.zeros(len(times) + 1, np.int64), ordered(times)
        events = np.empty((0, self._width), np.int64)
        for counting in (True, False):
            for part in self._heap.touching(len(times)):
                event_kernels.select(
                    users[part], moments[part], oldest[part], rows[part], books, *self._heap.addresses(), self._width,
                    rules.most, rules.exclude, splits[part.start : part.stop + 1], events,
                )  # fmt: skip
            if counting:
                np.cumsum(splits, out=splits)
                if not splits[-1]:
                    break
                events = np.empty((int(splits[-1]), self._width), np.int64)
        return splits, events

    def _copied(self, refs: Int64s, stop: int) -> tuple[Int64s, Int64s]:
        counts, books = np.zeros(len(refs), np.int64), self._users.columns["book"]
        none = np.empty((0, self._width), np.int64)
        for part in self._heap.touching(len(refs)):
            event_kernels.copy_out(refs[part], books, *self._heap.addresses(), self._width, stop, counts[part], none)
        shape = int(counts.sum()), self._width
        nbytes = 8 * shape[0] * self._width
        beyond = self.nbytes + nbytes + SORTED_NBYTES * len(refs) > self._budget_nbytes
        scratch = self._heap.scratch(nbytes) if nbytes and beyond else None
        events = np.empty(shape, np.int64) if scratch is None else scratch.array.view(np.int64).reshape(shape)
        done = 0
        for part in self._heap.touching(len(refs)):
            until = done + int(counts[part].sum())
            if until > done:
                copied = events[done:until] if scratch is None else np.empty((until - done, self._width), np.int64)
                event_kernels.copy_out(
                    refs[part], books, *self._heap.addresses(), self._width, stop, counts[part], copied
                )
                if scratch is not None:
                    scratch.write(8 * done * self._width, copied)
            done = until
        return counts, events

    def _remove(self, ids: Int64s) -> int:
        """Remove users; rows that were read ahead of a checkpoint bring none of them back with the next part."""
        stays = [~np.isin(keys, ids) for keys, _ in self._added]
        self._added = deque((keys[rows], events[rows]) for rows, (keys, events) in zip(stays, self._added))
        refs = self._users.find(ids)
        for user in refs[refs >= 0].tolist():
            event_kernels.release(user, self._users.columns["book"], *self._heap.addresses(), self._heap.free)
        return self._users.remove(ids)

    def _words(self, kind: str, column: Any, rows: Int64s) -> Int64s:
        if kind == TEXTS:
            return self._texts.numbers(column, rows)
        if kind == FLOATS:
            floats = np.ascontiguousarray(np.asarray(column)[rows], np.float32)
            return floats.view(np.int32).astype(np.int64)
        return np.ascontiguousarray(np.asarray(column)[rows]).astype(np.int64)

    def _columns(self, events: Int64s) -> list[Any]:
        columns: list[Any] = []
        for place, kind in enumerate(self._kinds, VALUES):
            words = events[:, place]
            if kind == TEXTS:
                columns.append(self._texts.take(words))
            elif kind == FLOATS:
                columns.append(words.astype(np.int32).view(np.float32))
            else:
                columns.append(np.ascontiguousarray(words))
        return columns


def ordered(times: NDArray[np.float64]) -> Int64s:
    """Return integers in the order of times, each equal only to those of equal times."""
    bits = np.ascontiguousarray(times + 0.0, np.float64).view(np.int64)
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


def _seconds(ordered_times: Int64s) -> NDArray[np.float64]:
    """Invert ordered()."""
    bits = ordered_times ^ ((ordered_times >> 63) & np.iinfo(np.int64).max)
    return np.ascontiguousarray(bits).view(np.float64)


def _latest(times: NDArray[np.float64]) -> float:
    """Return the latest of times that are not in the future; -inf without any."""
    return float(np.max(times, initial=-math.inf, where=times <= time.time() + AHEAD_S))


def _whole_seconds(events: Int64s) -> Int64s:
    return np.floor(_seconds(events[:, TIME])).astype(np.int64)


def _before(events: Int64s, row: int) -> Int64s:
    return np.flatnonzero(events[:, event_kernels.ROW] < row)


def _after(events: Int64s, row: int) -> Int64s:
    return np.flatnonzero(events[:, event_kernels.ROW] >= row)
