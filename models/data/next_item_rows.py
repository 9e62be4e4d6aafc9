"""Histories of an event log, one a user, for networks that learn which item comes next.

A range of the log's rows is learned as one history a user: the newest max_length + 1 events up to the end of the range,
of which those in the range are targets. So each event is a target once a pass, unless its history is too long. Events
are in the order of their times, those of one time in the order of the log.

New rows of a stream are learned as histories that end with them. Each event is a target once, after what its row sees
(models.data.user_events): a late event begins a history of its own, and so does the one after it.

Invariants
- A target's history is what the log has of its user before it. Rows before the range are read for that and are no
  targets; nor is a late event of the range that is before one of them.
- A pass can be resumed: a batch covers all rows of its users in the range, its position is the number of rows covered
  before it, and the order of users depends on the seed and the range alone.
- A row that the log left out as invalid counts as one of the next row's user, so that positions are the log's.
- All events of the range and of the rows before it are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.keyed_rows import ids_of
from freshet_serving.models.data.sequence_columns import SequenceConfig, SequenceFeature, entering, event_values
from freshet_serving.models.data.source import Batch, Source, rows_between
from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns, take_rows

READ_ROWS = 65_536

Int64s = NDArray[np.int64]


class NextItemRows:
    """The histories of rows [since, until) of an event log."""

    def __init__(
        self,
        source: Source,
        config: SequenceConfig,
        columns: Sequence[SequenceFeature],
        until: int,
        since: int = 0,
    ) -> None:
        """Read the rows of an event log that has the columns of the sequence."""
        self._config, self._since = config, since
        users, read = list[Any](), list[Int64s]()
        rows, times, parts = list[Int64s](), list[Any](), list[list[Any]]()
        for batch in rows_between(source, READ_ROWS, since, until):
            entered = np.flatnonzero(entering(batch, config, source.schema.labels))
            read.append(np.arange(batch.start, batch.start + len(batch)))
            users.append(batch.columns[config.from_events])
            rows.append(batch.start + entered)
            times.append(np.zeros(len(entered)) if batch.time is None else batch.time[entered])
            parts.append([take_rows(event_values(f, batch, source.schema.labels), entered) for f in columns])
        # The user of every row, numbered in the order of their keys.
        self._user_of_row = _numbered(join_columns(users) if users else np.empty(0, np.int64))
        if users and len(self._user_of_row) < until - since:
            next_read = np.searchsorted(np.concatenate(read), np.arange(since, until))
            self._user_of_row = self._user_of_row[np.minimum(next_read, len(self._user_of_row) - 1)]
        at = np.concatenate(rows) if rows else np.empty(0, np.int64)
        when = np.concatenate(times) if times else np.zeros(0)
        order = np.lexsort((when, self._user_of_row[at - since]))
        self._rows: Int64s = at[order]
        self._times = when[order] if source.schema.time else None
        self._columns = {f.name: take_rows(join_columns(values), order) for f, values in zip(columns, zip(*parts))}
        count = _count(self._user_of_row)
        self._ends: Int64s = np.cumsum(np.bincount(self._user_of_row[at - since], minlength=count))

    def distinct(self, name: str) -> int:
        """Return how many different values the events of a column have."""
        return _count(_numbered(self._columns[name]))

    def times_of(self, name: str) -> tuple[Column, NDArray[np.float64] | None]:
        """Return a column of all events, and their times; None for a log without times."""
        return self._columns[name], self._times

    def events_before(self, row: int, name: str) -> tuple[Column, NDArray[np.bool_]]:
        """Return a column of the events before a row, user by user, and which of them are their user's first."""
        columns, first, _ = self.whole_before(row)
        return columns[name], first

    def whole_before(self, row: int) -> tuple[dict[str, Column], NDArray[np.bool_], Int64s]:
        """Return all columns of the events before a row, user by user, which are their user's first, and their rows."""
        events = np.flatnonzero(self._rows < row)
        users = np.searchsorted(self._ends, events, side="right")
        first = np.append(True, users[1:] != users[:-1])[: len(events)]
        return {name: take_rows(c, events) for name, c in self._columns.items()}, first, self._rows[events]

    def batches(self, histories: int, first: int, start: int, seed: Sequence[int] | None = None) -> Iterator[Batch]:
        """Yield the histories of rows from `first` on; of a pass that is resumed at `start`, only the rest.

        Args:
            histories: Histories of a batch.
            start: `first`, or the end of a batch.
            seed: Seed of the order of users; None: in the order of their keys.
        """
        rows_of = np.bincount(self._user_of_row[first - self._since :], minlength=len(self._ends))
        users = np.flatnonzero(rows_of)
        if seed is not None:
            users = np.random.default_rng([*seed, first]).permutation(users)
        places = first + np.cumsum(rows_of[users])
        begin = int(np.searchsorted(places, start, side="right")) if start > first else 0
        for at in range(begin, len(users), histories):
            chosen = users[at : at + histories]
            place = int(places[at - 1]) if at else first
            yield self._batch(chosen, first, place, int(places[at + len(chosen) - 1]) - place)

    def cases(
        self, cases: int, first: int, item: str, last_only: bool = False
    ) -> Iterator[tuple[dict[str, Column], Column]]:
        """Yield the histories before some events, as requests have them, and these events' items.

        Args:
            cases: Events of a batch.
            first: First row whose event counts.
            last_only: True if only each user's last event counts.
        """
        counts, events_of = self._rows >= first, np.diff(self._ends, prepend=0)
        if last_only:
            last = np.zeros(len(counts), bool)
            last[self._ends[events_of > 0] - 1] = True
            counts &= last
        firsts = np.repeat(self._ends - events_of, events_of)
        which = np.flatnonzero(counts)
        for at in range(0, len(which), cases):
            stops = which[at : at + cases]
            begins = np.maximum(firsts[stops], stops - self._config.max_length)
            yield self._between(begins, stops)[0], take_rows(self._columns[item], stops)

    def _batch(self, users: Int64s, first: int, start: int, rows: int) -> Batch:
        stops = self._ends[users]
        begins = np.where(users > 0, self._ends[users - 1], 0)
        begins = np.maximum(begins, stops - self._config.max_length - 1)
        columns, at = self._between(begins, stops)
        ends = np.cumsum(stops - begins)
        # The place after the last event that is no target.
        earlier = np.append(np.where(self._rows[at] < first, np.arange(1, len(at) + 1), 0), 0)
        after = np.maximum.reduceat(earlier, ends - (stops - begins))
        targets = np.clip(ends - after, 0, stops - begins)
        return Batch(columns, targets.astype(np.float32), None, start, covers=rows)

    def _between(self, begins: Int64s, stops: Int64s) -> tuple[dict[str, Column], Int64s]:
        """Return events [begins[i], stops[i]) as lists by column, and the events' numbers."""
        counts = stops - begins
        splits = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(begins - splits[:-1], counts) + np.arange(splits[-1])
        return {name: Ragged(take_rows(c, at), splits) for name, c in self._columns.items()}, at


def count_distinct(source: Source, names: Sequence[str], until: int) -> list[int]:
    """Return how many different values columns have in the first `until` rows of an event log."""
    parts = [[batch.columns[name] for name in names] for batch in rows_between(source, READ_ROWS, 0, until)]
    return [_count(_numbered(join_columns(values))) for values in zip(*parts)] if parts else [0] * len(names)


def newest_histories(
    batch: Batch, config: SequenceConfig, columns: Sequence[SequenceFeature], labels: tuple[str, ...]
) -> Batch:
    """Return histories that end with rows of the log, whose events are the targets: one for most of the users.

    Args:
        batch: Rows with the sequence's columns, each with the events before it.
    """
    enters = np.asarray(entering(batch, config, labels), bool)
    whole = [join_columns([_ragged(batch, f).values, event_values(f, batch, labels)]) for f in columns]
    splits = _ragged(batch, columns[0]).row_splits
    users = _numbered(batch.columns[config.from_events])
    order = np.argsort(users, kind="stable")
    begins = np.append(True, users[order][1:] != users[order][:-1])[: len(order)]
    begins[1:] |= ~_continued(order[:-1], order[1:], enters, splits, whole, config.max_length)
    # No more targets than a history has events before its last one.
    begins = _cut(begins, enters[order], config.max_length)
    firsts = np.flatnonzero(begins)
    last = order[np.append(firsts[1:], len(order))[: len(firsts)] - 1]
    targets = np.add.reduceat(enters[order].astype(np.int64), firsts) if len(firsts) else np.empty(0, np.int64)
    lengths, new = np.diff(splits)[last], enters[last]
    ends = np.concatenate([[0], np.cumsum(lengths + new)])
    at = np.repeat(splits[last] - ends[:-1], lengths + new) + np.arange(ends[-1])
    at[ends[1:][new] - 1] = splits[-1] + last[new]
    lists: dict[str, Column] = {f.name: Ragged(take_rows(values, at), ends) for f, values in zip(columns, whole)}
    return Batch(lists, targets.astype(np.float32), batch.time, batch.start, covers=len(batch))


def _ragged(batch: Batch, f: SequenceFeature) -> Ragged:
    column = batch.columns[f.name]
    assert isinstance(column, Ragged)
    return column


def _continued(
    before: Int64s, after: Int64s, enters: NDArray[np.bool_], splits: Int64s, columns: Sequence[Any], most: int
) -> NDArray[np.bool_]:
    """Return of pairs of rows whether the second sees what the first sees, then the first, and nothing else.

    Row i sees events [splits[i], splits[i + 1]) of `columns`, which end with the values of the rows themselves.
    """
    lengths, seen = np.diff(splits), np.diff(splits)[before]
    dropped = np.maximum(seen + enters[before] - most, 0)
    same: NDArray[np.bool_] = lengths[after] == seen + enters[before] - dropped
    candidates = np.flatnonzero(same)
    counts = lengths[after[candidates]]
    pair, ends = np.repeat(candidates, counts), np.cumsum(counts)
    place = np.arange(len(pair)) - np.repeat(ends - counts, counts)
    of_first = place + dropped[pair]
    event = np.where(of_first < seen[pair], splits[before[pair]] + of_first, splits[-1] + before[pair])
    for values in columns:
        words = values.view(np.int32) if getattr(values, "dtype", None) == np.float32 else ids_of(values)
        same[pair[words[event] != words[splits[after[pair]] + place]]] = False
    return same


def _cut(begins: NDArray[np.bool_], enters: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Return where histories of at most `most` targets begin, given where they have to."""
    counted: Int64s = np.cumsum(enters) - enters
    number = counted - np.repeat(counted[begins], np.diff(np.append(np.flatnonzero(begins), len(begins))))
    cut: NDArray[np.bool_] = begins | (enters & (number > 0) & (number % most == 0))
    return cut


def _count(numbers: Int64s) -> int:
    return int(numbers.max(initial=-1)) + 1


def _numbered(column: Any) -> Int64s:
    """Return each value's number among the distinct ones, in ascending order."""
    keys = np.array(column.tolist(), object) if isinstance(column, Strings) else column
    numbers: Int64s = np.unique(keys, return_inverse=True)[1].reshape(-1)
    return numbers
