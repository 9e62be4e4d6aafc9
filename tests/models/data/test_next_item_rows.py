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


@settings(deadline=None, max_examples=40)
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


LATE = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(0, 12)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=40)
@given(LATE, st.integers(1, 9), st.sampled_from([0.0, 6.0]), st.booleans())
def test_each_streamed_event_is_a_target_once_after_what_its_row_sees(events, rows, ttl_s, in_order):
    users, clicked, times = zip(*sorted(events, key=lambda e: e[2]) if in_order else events)
    log = Log(list(users), [str(n) for n in range(len(events))], list(clicked), list(times))
    most, config = 4, config_of(where="clicked", max_length=4, ttl_s=ttl_s)

    def seen(row):
        own = [n for n in range(row) if users[n] == users[row] and clicked[n]]
        newest = sorted(own, key=lambda n: (times[n], n))[-most:]
        newest = [n for n in newest if times[n] <= times[row]]
        return [n for n in newest if not ttl_s or times[n] > times[row] - ttl_s]

    learned, histories = [], 0
    for batch in SequenceSource(log, [*config.features, Field("seconds", "float")]).batches(rows):
        made = newest_histories(batch, *parts(config), ("clicked",))
        assert (made.start, made.end) == (batch.start, batch.end)
        histories += len(made)
        for own, when, watched, count in zip(
            lists(made.columns["h.i"]),
            lists(made.columns["h.time"]),
            lists(made.columns["h.watched"]),
            made.label.astype(int).tolist(),
        ):
            numbers = [int(name) for name in own]
            assert [times[n] for n in numbers] == when
            assert [n / 2 for n in numbers] == watched
            for place in range(len(numbers) - count, len(numbers)):
                row, before = numbers[place], numbers[:place]
                assert before == seen(row)[len(seen(row)) - len(before) :]
                # A list ends with what the user's newest row of the batch sees, and with that row if it is an event.
                assert len(before) >= min(len(seen(row)), most - count)
                learned.append(row)
    assert sorted(learned) == [n for n in range(len(events)) if clicked[n]]
    if in_order and not ttl_s and rows <= most:
        assert histories == sum(len(set(users[a : a + rows])) for a in range(0, len(events), rows))


@settings(deadline=None, max_examples=40)
@given(LATE, st.data())
def test_pass_has_events_in_the_order_of_their_times(events, data):
    users, clicked, times = zip(*events)
    log, first = Log(list(users), [str(n) for n in range(len(events))], list(clicked), list(times)), 0
    first = data.draw(st.integers(0, len(events) - 1))
    learned = []
    for batch in rows_of(log, len(events), max_length=50).batches(2, first, first):
        for own, count in zip(lists(batch.columns["h.i"]), batch.label.astype(int).tolist()):
            numbers = [int(name) for name in own]
            assert numbers == sorted(numbers, key=lambda n: (times[n], n))
            learned += numbers[len(numbers) - count :]
    # All but what came late, before an event that is no target.
    after = {user: max((times[n] for n in range(first) if users[n] == user), default=-1) for user in users}
    assert sorted(learned) == [n for n in range(first, len(events)) if times[n] >= after[users[n]]]


class Gaps(Log):
    """A log of which some rows were invalid, and left out."""

    def batches(self, rows, start=0):
        for batch in super().batches(1, start):
            if batch.start % 5 not in (0, 3):
                yield batch


@pytest.mark.parametrize("since", [0, 11])
def test_positions_are_those_of_a_log_with_invalid_rows(since):
    random = np.random.default_rng(5)
    users = random.integers(1, 6, 60)
    log = Gaps(users.tolist(), [str(n) for n in range(60)], [1] * 60, list(range(60)))
    rows = NextItemRows(log, *parts(config_of(max_length=50)), 58, since)
    found = list(rows.batches(2, 31, 31))
    assert [31, *(batch.end for batch in found)] == [*(batch.start for batch in found), 58]
    learned = []
    for batch in found:
        for own, count in zip(lists(batch.columns["h.i"]), batch.label.astype(int).tolist()):
            numbers = [int(name) for name in own]
            assert len({users[n] for n in numbers}) == 1
            assert min(numbers) >= since
            learned += numbers[len(numbers) - count :]
    assert sorted(learned) == [n for n in range(31, 58) if n % 5 not in (0, 3)]
