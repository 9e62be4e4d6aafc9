"""Histories of users made of an event log: each event is a target once, whatever the batches and their start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.next_item_rows import NextItemRows, newest_histories
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.data.source import Field
from tests.models.data.test_sequence_columns import Log


def config_of(**section):
    history = {"columns": {"i": "item"}, "tables": {"i": "item"}, "from_events": "user", "time": "ts", "ties": "file"}
    history["floats"] = {"watched": "seconds"}
    return parse_config(
        {
            "model": {"name": "m", "arch": "sasrec_next"},
            "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
            "features": {"user": {"kind": "id", "side": "user"}, "item": {"kind": "string", "side": "item"}},
            "sequences": {"h": history | section},
        }
    )


def parts(config):
    return config.sequences["h"], [f for f in config.features if f.sequence is not None]


def rows_of(log, until, **section):
    return NextItemRows(log, *parts(config_of(**section)), until)


def lists(column):
    values = column.values.tolist()
    return [values[a:b] for a, b in zip(column.row_splits, column.row_splits[1:])]


def log_of(events):
    """events: (user, clicked) in the order of the log; the item is the event's number."""
    users, clicked = zip(*events)
    return Log(list(users), [str(n) for n in range(len(events))], list(clicked), list(range(len(events))))


EVENTS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.data())
def test_histories_are_those_of_a_plain_loop(events, data):
    log, most = log_of(events), data.draw(st.integers(1, 5))
    until = data.draw(st.integers(1, len(events)))
    first = data.draw(st.integers(0, until - 1))
    seed = data.draw(st.sampled_from([None, (1, 2)]))
    found = list(rows_of(log, until, where="clicked", max_length=most).batches(2, first, first, seed))
    wanted = {}
    for user in sorted({user for user, _ in events[first:until]}):
        own = [n for n in range(until) if events[n] == (user, 1)][-most - 1 :]
        wanted[tuple(own)] = wanted.get(tuple(own), 0) + sum(n >= first for n in own)
    got = {}
    for batch in found:
        assert lists(batch.columns["h.i"]) == [[b"%d" % n for n in times] for times in lists(batch.columns["h.time"])]
        assert lists(batch.columns["h.watched"]) == [[n / 2 for n in times] for times in lists(batch.columns["h.time"])]
        for own, count in zip(lists(batch.columns["h.time"]), batch.label.tolist()):
            got[tuple(own)] = got.get(tuple(own), 0) + int(count)
    assert got == wanted
    assert [first, *(batch.end for batch in found)] == [*(batch.start for batch in found), until]


@pytest.mark.parametrize("seed", [None, (7, 0)])
def test_pass_is_resumed_at_the_end_of_any_batch(seed):
    random = np.random.default_rng(5)
    log = log_of([(int(user), 1) for user in random.integers(1, 12, 80)])
    whole = list(rows_of(log, 70).batches(3, 10, 10, seed))
    for n, batch in enumerate(whole):
        rest = list(rows_of(log, 70).batches(3, 10, batch.end, seed))
        assert [lists(b.columns["h.i"]) for b in rest] == [lists(b.columns["h.i"]) for b in whole[n + 1 :]]


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.integers(1, 9))
def test_streamed_rows_become_one_history_a_user(events, rows):
    log, config = log_of(events), config_of(where="clicked", max_length=4)
    for batch in SequenceSource(log, [*config.features, Field("seconds", "float")]).batches(rows):
        made = newest_histories(batch, *parts(config), ("clicked",))
        assert (made.start, made.end) == (batch.start, batch.end)
        users = sorted({user for user, _ in events[batch.start : batch.end]})
        for user, own, count in zip(users, lists(made.columns["h.time"]), made.label.tolist()):
            all_own = [n for n in range(batch.end) if events[n] == (user, 1)]
            assert own == all_own[-len(own) :] if own else not all_own
            assert len(own) >= min(len(all_own), 4)
            assert count == sum(n >= batch.start for n in all_own)
        assert lists(made.columns["h.watched"]) == [[n / 2 for n in times] for times in lists(made.columns["h.time"])]
