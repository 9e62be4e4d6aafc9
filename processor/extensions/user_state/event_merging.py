"""Change the events of one sequence of a user: add some, correct some, take some back.

All take and return the columns of one sequence, one value an event each, newest last. With times, what is added goes
to its place by time, behind events of the same instant; without, to the end.

Repeating a change changes nothing, with times: an event is told by its time and all of its values, and as many of one
kind are added as are not there yet. So two equal events that one request sends are two, and the same request sent
again adds none. Without times an event sent again is a further event: a client that repeats its requests names the
version that it expects (processor.features.user_calls.UserCall.expected).

Costs: one pass over the sequence; the events of a request are compared one by one with those of the same times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Strings, join_columns, take_rows
from freshet_serving.processor.features.user_calls import REMOVE, REPLACE
from freshet_serving.processor.package import SequenceEntry

Int64s = NDArray[np.int64]
Events = Mapping[str, Any]
"""Columns of a sequence by input: int64 or float32 [n], or Strings."""


def changed(change: str, events_kept: Events, sent: Events, sequence: SequenceEntry) -> dict[str, Any]:
    """Return the events after a change, cut to what the sequence keeps; `sent` has the columns of `events_kept`.

    REPLACE: the events that are sent take the place of those of the same times; without times, of all. REMOVE: they
    are taken back; what is not there is not missed. Any other change adds them.
    """
    time = sequence.time if sequence.time in events_kept else ""
    if change == REPLACE:
        if time:
            others = np.flatnonzero(~np.isin(events_kept[time], sent[time]))
            events_kept = {name: take_rows(column, others) for name, column in events_kept.items()}
        else:
            events_kept = {name: take_rows(column, np.empty(0, np.int64)) for name, column in events_kept.items()}
    elif change == REMOVE:
        left = _without(events_kept, sent, time)
        return {name: take_rows(column, left) for name, column in events_kept.items()}
    elif time:
        new = _unknown(events_kept, sent, time)
        sent = {name: take_rows(sent[name], new) for name in events_kept}
    events = {name: join_columns([column, sent[name]]) for name, column in events_kept.items()}
    if time:
        order = np.argsort(events[time], kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            events = {name: take_rows(column, order) for name, column in events.items()}
    return cut(events, sequence)


def cut(events: Events, sequence: SequenceEntry) -> dict[str, Any]:
    count = max(map(len, events.values()), default=0)
    if count <= sequence.max_length:
        return dict(events)
    first = count - sequence.max_length if sequence.keep == "newest" else 0
    places = np.arange(first, first + sequence.max_length)
    return {name: take_rows(column, places) for name, column in events.items()}


def _unknown(events_kept: Events, sent: Events, time: str) -> Int64s:
    counts = Counter(_keys(events_kept, np.flatnonzero(np.isin(events_kept[time], sent[time]))))
    new = []
    for number, key in enumerate(_keys({name: sent[name] for name in events_kept}, np.arange(len(sent[time])))):
        if counts[key] > 0:
            counts[key] -= 1
        else:
            new.append(number)
    return np.array(new, np.int64)


def _without(events_kept: Events, sent: Events, time: str) -> Int64s:
    """Return numbers of the events that stay if those that are sent are taken back, newest of equal ones first."""
    count = max(map(len, sent.values()), default=0)
    gone = Counter(_keys({name: sent[name] for name in events_kept}, np.arange(count)))
    total = max(map(len, events_kept.values()), default=0)
    looked_at = np.flatnonzero(np.isin(events_kept[time], sent[time])) if time else np.arange(total)
    stays = np.ones(total, np.bool_)
    for number, key in zip(looked_at[::-1].tolist(), reversed(_keys(events_kept, looked_at))):
        if gone[key] > 0:
            gone[key] -= 1
            stays[number] = False
    return np.flatnonzero(stays)


def _keys(events: Events, places: Int64s) -> list[tuple[Any, ...]]:
    """Return what tells each of some events from others: all of its values, floats by their bits."""
    columns = [take_rows(column, places) for column in events.values()]
    values = [
        column.tolist()
        if isinstance(column, Strings) or column.dtype.kind != "f"
        else np.ascontiguousarray(column).view(np.int32).tolist()
        for column in columns
    ]
    return list(zip(*values))
