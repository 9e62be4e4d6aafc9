"""Effects of events, by a network whose parts are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.explaining import event_effects as module
from freshet_serving.processor.extensions.explaining.event_effects import event_effects, without_event
from freshet_serving.processor.package import SequenceColumn, SequenceEntry

DIMS = {"h.item": 3, "h.action": 2}


def sequence(places, timed=True):
    columns, at = [], 0
    for name, dim in DIMS.items():
        columns.append(SequenceColumn(name, "ids", name, name, at, (dim + 1) * places))
        at += (dim + 1) * places
    columns.append(SequenceColumn("h.paid", "floats", "h.paid", "", at, places))
    at += places
    time = "h.time" if timed else ""
    return SequenceEntry("h", columns, places, at + timed * places, [*DIMS, "h.paid", "h.time"], time=time)


def history(events, places, timed=True):
    """The input of events (item row, action row, time), as a request of them fills it."""
    found = []
    for n, dim in enumerate(DIMS.values()):
        rows, mask = np.zeros((places, dim), np.float32), np.zeros(places, np.float32)
        for at, event in enumerate(events):
            rows[at], mask[at] = event[n] + np.arange(dim), 1
        found += [rows.reshape(-1), mask]
    paid, seconds = np.zeros(places, np.float32), np.zeros(places, np.float32)
    paid[: len(events)] = [event[2] / 8 for event in events]
    found.append(paid)
    seconds[: len(events)] = [events[-1][2] - event[2] for event in events]
    return np.concatenate([*found, seconds] if timed else found)


EVENTS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 999)), min_size=1, max_size=6)


@given(EVENTS, st.data())
def test_history_without_an_event_is_that_of_the_others(events, data):
    places, event = data.draw(st.integers(len(events), 7)), data.draw(st.integers(0, len(events) - 1))
    timed = data.draw(st.booleans())
    got = without_event(sequence(places, timed), history(events, places, timed), len(events), event)
    np.testing.assert_array_equal(got, history(events[:event] + events[event + 1 :], places, timed))


def effects(count, row_s=1e-6):
    """The score is the sum of all actions' first numbers."""
    entry, given = sequence(8, timed=False), history([(0, n + 1, 0) for n in range(count)], 8, timed=False)
    first = entry.columns[1].offset

    def score(rows):
        return {"score": rows[:, first : first + 16 : 2].sum(axis=1, keepdims=True)}

    scores = {name: values[0] for name, values in score(given[None]).items()}
    return [float(one["score_change"]) for one in event_effects(entry, given, count, scores, score, row_s)]


def test_score_falls_by_the_share_of_each_event():
    assert effects(5) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert effects(0) == []


def test_newest_events_are_explained_where_all_take_too_long(monkeypatch):
    monkeypatch.setattr(module, "LEAST_EVENTS", 2)
    assert effects(5, row_s=module.BUDGET_S / 3) == [3.0, 4.0, 5.0]
    assert effects(5, row_s=60.0) == [4.0, 5.0]
    monkeypatch.setattr(module, "MOST_EVENTS", 1)
    assert effects(5) == [5.0]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_scores_have_nan_effects():
    entry, given = sequence(8), history([(0, np.nan, 1)], 8)
    nan = {"score": np.array([np.nan], np.float32)}
    (one,) = event_effects(entry, given, 1, nan, lambda rows: {"score": np.full((len(rows), 1), np.nan)}, 0.0)
    assert np.isnan(one["score_change"])
