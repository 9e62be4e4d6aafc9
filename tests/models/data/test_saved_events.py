"""Saved parts of users' events: read piece by piece, and without users who are to be forgotten."""

import numpy as np
import pytest

from freshet_serving.models.data import saved_events
from freshet_serving.models.data.keyed_rows import ids_of
from freshet_serving.models.data.saved_events import pieces_of, without_users
from freshet_serving.models.data.user_events import EventRules, UserEvents
from freshet_serving.processor.columns import Strings


@pytest.fixture
def parts():
    """A whole part and the one after it."""
    events = UserEvents(EventRules(5), ["ids"], stored="strings")
    events.add(0, Strings.of(["ann", "bob", "ann"]), np.arange(3.0), np.ones(3, bool), [np.arange(3)])
    whole = events.full(3)
    events.add(3, Strings.of(["eve", "ann"]), np.arange(3.0, 5.0), np.ones(2, bool), [np.array([3, 4])])
    return [whole, events.increment(5)]


def test_pieces_have_whole_users(monkeypatch, parts):
    monkeypatch.setattr(saved_events, "READ_EVENTS", 1)
    whole, since = parts
    pieces = list(pieces_of(whole))
    assert sorted(len(keys) for keys, _ in pieces) == [1, 2]
    assert np.array_equal(np.concatenate([events for _, events in pieces]), whole["events"])
    assert [len(keys) for keys, _ in pieces_of(since)] == [2]


def test_forgotten_users_leave_the_others_as_they_were(parts):
    (ann,) = ids_of(Strings.of(["ann"]))
    assert [without_users(part, np.array([5])) for part in parts] == [None, None]
    less = [without_users(part, np.array([ann, 5])) for part in parts]
    assert not any(b"ann" in array.tobytes() or ann in array for part in less for array in part.values())
    again = UserEvents(EventRules(5), ["ids"], stored="strings")
    again.restore(less)
    keys, splits, _, (items,) = again.histories(again.users(), 5, 9.0)
    assert dict(zip(keys.tolist(), np.split(items, splits[1:-1]))) == {b"bob": [1], b"eve": [3]}
