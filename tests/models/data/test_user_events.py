"""Events of users: what a plain loop over all earlier rows finds, from any row, in any batches, saved and restored."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data import event_heap, saved_events, user_events
from freshet_serving.models.data.keyed_rows import ids_of
from freshet_serving.models.data.user_events import EventRules, UserEvents, ordered
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.memory import SharedMap, _owner

KINDS = ["ids", "strings", "floats"]


def seen_by(rows, row, rules):
    """Numbers of the rows whose events a row sees, as UserEvents' rules say it."""
    user, time, _ = rows[row]
    before = [(when, n) for n, (other, when, enters) in enumerate(rows[:row]) if other == user and enters]
    if rules.newest:
        before.sort()
        if rules.exclude and before and time <= before[-1][0]:
            before = [event for event in before if event[0] < before[-1][0]]
        before = before[-rules.most :]
    else:
        before = sorted(before[: rules.most])
    before = [(when, n) for when, n in before if when < time or (when == time and not rules.exclude)]
    return [n for when, n in before if not rules.ttl_s or when > time - rules.ttl_s]


def arrays(rows, first, stop):
    users, times, enters = (np.array([row[n] for row in rows[first:stop]]) for n in range(3))
    numbers = np.arange(first, stop)
    values = numbers * 3, Strings.of([f"t{n % 5}" for n in numbers]), (numbers / 2).astype(np.float32)
    return users.astype(np.int64), times.astype(np.float64), enters.astype(bool), values


def add(events, rows, first, stop):
    if first < stop:
        users, times, enters, values = arrays(rows, first, stop)
        events.add(first, users, times, enters, values)


def lists(events, rows, first, stop):
    """What rows see, as row numbers; values of all columns must agree."""
    users, times, _, _ = arrays(rows, first, stop)
    splits, seconds, (ids, texts, floats) = events.seen(first, users, times)
    numbers = ids // 3
    assert texts.tolist() == [f"t{n % 5}".encode() for n in numbers]
    assert floats.tolist() == (numbers / 2).tolist()
    assert seconds.tolist() == [int(np.floor(rows[n][1])) for n in numbers]
    return [numbers[a:b].tolist() for a, b in zip(splits, splits[1:])]


@st.composite
def logs(draw):
    steps = st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 6))
    drawn = draw(st.lists(steps, min_size=1, max_size=50))
    late = draw(st.booleans())
    times = np.cumsum([step for _, step, _, _ in drawn])
    return [
        (user, float(time - back * late), enters) for (user, _, enters, back), time in zip(drawn, times.tolist())
    ], late


RULES = st.builds(EventRules, st.integers(1, 5), st.booleans(), st.booleans())


@settings(deadline=None, max_examples=60)
@given(logs(), RULES, st.sampled_from([0, 4, 1000]), st.sampled_from([0.0, 4.0]), st.data())
def test_rows_see_what_a_plain_loop_finds(log, rules, kept_rows, ttl_s, data):
    rows, late = log
    if rules.newest and not late:
        rules = EventRules(rules.most, rules.newest, rules.exclude, ttl_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_events, "KEPT_ROWS", kept_rows)
        patch.setattr(event_heap, "FIRST_WORDS", 512)
        patch.setattr(event_heap, "BORDERS", 1 << 14)
        patch.setattr(event_heap, "LEAST_BLOCKS", 3)
        patch.setattr(saved_events, "READ_EVENTS", 4)
        # The table of users takes all of a budget of 0; of the other, all but some words that the test chooses.
        budget_nbytes = data.draw(st.sampled_from([0, 1 << 20]))
        events, parts, first = UserEvents(rules, KINDS, budget_nbytes=budget_nbytes), [], 0
        events._heap.fit(4096)
        while first < len(rows):
            stop = min(len(rows), first + data.draw(st.integers(1, 9)))
            add(events, rows, first, stop)
            events._heap.fit(data.draw(st.integers(0, 4096)))
            since = max(events.floor, first - data.draw(st.integers(0, 20)))
            expected = [seen_by(rows, row, rules) for row in range(since, stop)]
            assert lists(events, rows, since, stop) == expected
            first = stop
            if data.draw(st.booleans()):
                # A run that goes back saves a state behind one that it has saved.
                row = data.draw(st.integers(events.floor, stop))
                part = events.increment(row)
                parts = [events.full(row)] if part is None else [*parts, part]
                other = UserEvents(rules, KINDS, budget_nbytes=0)
                other.restore(parts)
                assert other.position == row
                add(other, rows, row, stop)
                since = max(events.floor, other.floor)
                assert lists(other, rows, since, stop) == lists(events, rows, since, stop)


@settings(deadline=None, max_examples=50)
@given(logs(), RULES, st.sampled_from([0, 4, 1000]), st.sampled_from([0.0, 4.0]), st.data())
def test_histories_are_what_a_later_row_sees(log, rules, kept_rows, ttl_s, data):
    rows, late = log
    if rules.newest and not late:
        rules = EventRules(rules.most, rules.newest, rules.exclude, ttl_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_events, "KEPT_ROWS", kept_rows)
        patch.setattr(user_events, "MERGED_USERS", 3)
        events, first, settled = UserEvents(rules, KINDS, budget_nbytes=0, stored="ids"), 0, 0
        while first < len(rows):
            stop = min(len(rows), first + data.draw(st.integers(1, 9)))
            add(events, rows, first, stop)
            row = data.draw(st.integers(max(events.floor, settled), stop))
            now_s = max((time for _, time, _ in rows[:row]), default=0.0)
            users, splits, _, (ids, *_) = events.histories(events.users(), row, now_s)
            forever = EventRules(rules.most, rules.newest, rules.exclude)
            for user, a, b in zip(users.tolist(), splits, splits[1:]):
                seen = seen_by([*rows[:row], (user, np.inf, False)], row, forever)
                seen = [n for n in seen if not rules.ttl_s or rows[n][1] > now_s - rules.ttl_s]
                assert (ids[a:b] // 3).tolist() == seen
            known = {user for user, _, enters in rows[:row] if enters}
            assert known <= set(users.tolist())
            # Perhaps more: parts of rows are kept until all of them are settled.
            changed = {user for user, _, enters in rows[settled:row] if enters}
            assert changed <= set(events.changed(row).tolist()) <= {user for user, _, enters in rows[:stop] if enters}
            if data.draw(st.booleans()):
                events.settle(row)
                settled = row
                assert not len(events.changed(settled)) or settled < stop
            first = stop


def test_a_store_has_the_keys_of_users_of_strings():
    events = UserEvents(EventRules(5), ["ids"], stored="strings")
    names = ["ann", "bob", "ann", "ünal"]
    events.add(0, Strings.of(names[:3]), np.arange(3.0), np.ones(3, bool), [np.arange(3)])
    parts = [events.full(3)]
    events.add(3, Strings.of(names[3:]), np.array([3.0]), np.ones(1, bool), [np.array([3])])
    parts.append(events.increment(4))
    again = UserEvents(EventRules(5), ["ids"], stored="strings")
    again.restore(parts)
    for one in (events, again):
        keys, splits, seconds, (ids,) = one.histories(one.users(), 4, 9.0)
        lists = {key: ids[a:b].tolist() for key, a, b in zip(keys.tolist(), splits, splits[1:])}
        assert lists == {b"ann": [0, 2], b"bob": [1], "ünal".encode(): [3]}
        assert sorted(seconds.tolist()) == [0, 1, 2, 3]
    splits, _, (ids,) = again.seen(4, Strings.of(["bob", "ann", "eve"]), np.full(3, 9.0))
    assert (ids.tolist(), splits.tolist()) == ([1, 0, 2], [0, 1, 3, 3])
    assert again.newest_time(again.users()) == 3.0
    assert again.newest_time(np.array([77])) == -np.inf
    assert (len(again.changed(4)), len(events.changed(4))) == (0, 3)


def test_the_key_of_an_erased_user_is_gone():
    events = UserEvents(EventRules(5), ["ids"], stored="strings")
    events.add(0, Strings.of(["ann", "bob"]), np.arange(2.0), np.ones(2, bool), [np.arange(2)])
    events.erase(ids_of(Strings.of(["ann"])))
    assert b"ann" not in events._names._data.tobytes()
    keys, *_ = events.histories(events.users(), 2, 9.0)
    assert keys.tolist() == [b"bob"]
    assert events.full(2)["names"].tobytes() == b"bob"


def test_rows_read_ahead_do_not_bring_an_erased_user_back():
    events = UserEvents(EventRules(5), ["ids"], stored="strings")
    names = Strings.of(["ann", "bob", "ann", "bob", "ann"])
    events.add(0, names, np.arange(5.0), np.ones(5, bool), [np.arange(5)])
    events.erase(ids_of(Strings.of(["ann"])))
    parts = [events.full(2)]
    events.add(5, Strings.of(["bob", "ann"]), np.arange(5.0, 7.0), np.ones(2, bool), [np.arange(5, 7)])
    parts += [events.increment(4), events.increment(7)]
    again = UserEvents(EventRules(5), ["ids"], stored="strings")
    again.restore(parts)
    for one in (events, again):
        keys, splits, _, (ids,) = one.histories(one.users(), 7, 9.0)
        lists = {key: ids[a:b].tolist() for key, a, b in zip(keys.tolist(), splits, splits[1:])}
        assert lists == {b"ann": [6], b"bob": [1, 3, 5]}


def test_events_beyond_the_budget_are_in_a_file():
    events = UserEvents(EventRules(50), ["ids"], budget_nbytes=12 << 20)
    users = np.arange(200_000) % 50_000
    for start in range(0, 200_000, 20_000):
        some = users[start : start + 20_000]
        events.add(start, some, start + np.arange(20_000.0), np.ones(20_000, bool), [some])
        assert events.nbytes <= 12 << 20
    assert events.file_nbytes
    splits, _, (ids,) = events.seen(200_000, users[:50_000], np.full(50_000, 3e5))
    assert np.array_equal(np.diff(splits), np.full(50_000, 4))
    assert np.array_equal(ids, np.repeat(users[:50_000], 4))


def test_no_event_is_missing_after_a_state_that_went_back():
    log = [(0, float(n), True) for n in range(6)]
    events = UserEvents(EventRules(5), KINDS)
    add(events, log, 0, 4)
    events.full(2)
    events.increment(4)
    # Rolled back to row 2, learned again until 3, and on.
    parts = [events.full(2)]
    add(events, log, 4, 6)
    for row in (3, 5, 6):
        part = events.increment(row)
        parts = [events.full(row)] if part is None else [*parts, part]
        again = UserEvents(EventRules(5), KINDS)
        again.restore(parts)
        assert lists(again, [*log[:row], (0, 9.0, False)], row, row + 1) == [list(range(row))[-5:]]
    assert len(parts) > 1


def test_event_of_the_future_ends_nobody_elses_history(monkeypatch):
    monkeypatch.setattr(user_events, "KEPT_ROWS", 2)
    monkeypatch.setattr(user_events.time, "time", lambda: 1e9)
    log = [(n % 2, 1e9 + n, True) for n in range(6)] + [(7, 2e9, True)] + [(n % 2, 1e9 + n, True) for n in range(7, 20)]
    rules = EventRules(3, ttl_s=50.0)
    events = UserEvents(rules, KINDS)
    for first in range(0, 20, 2):
        add(events, log, first, first + 2)
        assert lists(events, log, first, first + 2) == [seen_by(log, row, rules) for row in (first, first + 1)]
    assert sorted(events.full(20)["keys"].tolist()) == [0, 1, 7]
    users = np.array([0, 1, 7])
    assert events.newest_time(users) == 1e9 + 19
    assert events.newest_time(users[2:]) == 2e9
    splits = events.histories(users, 20, events.newest_time(users))[1]
    assert np.diff(splits).tolist() == [3, 3, 1]


@pytest.mark.parametrize("order", ["equal", "descending", "mixed"])
def test_many_events_of_one_user_are_seen_in_their_order(order):
    rows = 4_000
    times = {"equal": np.zeros(rows), "descending": -np.arange(rows), "mixed": np.arange(rows) * 7_919 % rows}[order]
    log = [(1, float(time), True) for time in times]
    events = UserEvents(EventRules(3), KINDS)
    for first in range(0, rows, 500):
        add(events, log, first, first + 500)
    chosen = [0, 1, 499, 500, 1234, rows - 1]
    for row in chosen:
        assert lists(events, log, row, row + 1) == [seen_by(log, row, EventRules(3))]


def test_key_of_a_mebibyte_and_many_users_are_restored():
    events = UserEvents(EventRules(5), ["ids"], stored="strings")
    names = ["k" * (1 << 20), *(f"u{n}" for n in range(20_000))]
    events.add(0, Strings.of(names), np.arange(20_001.0), np.ones(20_001, bool), [np.arange(20_001)])
    again = UserEvents(EventRules(5), ["ids"], stored="strings")
    again.restore([events.full(20_001)])
    assert len(again) == 20_001
    long = ids_of(Strings.of(names[:1]))
    assert again.keys_of(long).tolist() == [names[0].encode()]


@pytest.mark.parametrize("operation", ["open", "ftruncate", "posix_fallocate"])
def test_full_disk_is_one_line_and_loses_no_event(tmp_path, monkeypatch, operation):
    monkeypatch.setattr(event_heap, "FIRST_WORDS", 32)
    log = [(n % 17, float(n), True) for n in range(60)]
    empty = UserEvents(EventRules(5), KINDS)
    # What the table of users and texts takes, and some events.
    budget = empty._table_nbytes(17) + 2 * (empty._names.nbytes + empty._texts.nbytes) + 64 * 17 + 1500
    events, parts = UserEvents(EventRules(5), KINDS, tmp_path / "run", budget), []

    def fill():
        for first in range(0, 60, 4):
            add(events, log, first, first + 4)
            parts.append(events.full(first + 4))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr("os." + operation, full)
        with pytest.raises(BadInput, match="histories: no room on disk for more events: No space left on device"):
            fill()
    assert parts
    # Where it ended, and in another process from what was saved.
    again = UserEvents(EventRules(5), KINDS, tmp_path / "run", budget)
    again.restore(parts[-1:])
    saved = again.position
    for one in (events, again):
        assert one.position == saved
        add(one, log, saved, 60)
        assert lists(one, log, saved, 60) == [seen_by(log, row, EventRules(5)) for row in range(saved, 60)]
    assert events.increment(60)["events"].tolist() == again.increment(60)["events"].tolist()


def test_an_erased_user_is_in_no_later_checkpoint():
    events = UserEvents(EventRules(5), ["ids"])
    users = np.array([1, 2, 1, 2])
    events.add(0, users, np.arange(4.0), np.ones(4, bool), [users])
    events.full(4)
    assert (events.erase(np.array([1, 9])), len(events)) == (1, 1)
    assert events.increment(4) is None
    part = events.full(4)
    assert (part["keys"].tolist(), part["counts"].tolist()) == ([2], [2])
    assert events.seen(4, np.array([1]), np.array([9.0]))[0].tolist() == [0, 0]


def test_users_without_events_within_the_time_limit_are_dropped(monkeypatch):
    monkeypatch.setattr(user_events, "KEPT_ROWS", 0)
    events = UserEvents(EventRules(5, ttl_s=10.0), ["ids"])
    for row, (user, time) in enumerate([(1, 0.0), (2, 5.0), (2, 90.0), (2, 95.0)]):
        one = np.array([user])
        events.add(row, one, np.array([time]), np.ones(1, bool), [one])
    assert events.full(4)["keys"].tolist() == [2]


def test_saved_events_of_other_columns_are_refused():
    events = UserEvents(EventRules(5), ["ids"])
    events.add(0, np.array([1]), np.zeros(1), np.ones(1, bool), [np.array([1])])
    with pytest.raises(BadInput, match="expected 4 numbers an event, got 3"):
        UserEvents(EventRules(5), ["ids", "floats"]).restore([events.full(1)])


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_saved_events_of_several_runs_are_refused_or_restored(data):
    """Whatever is put together, no text is read that is not there."""
    parts = {}
    for run in range(2):
        events = UserEvents(EventRules(5), KINDS, stored="strings")
        for number, row in enumerate((0, 3, 6)):
            names = Strings.of([f"u{(n + run) % 3}" for n in range(3)])
            texts = Strings.of([f"{'abcd'[run + number]}{n}" for n in range(3)])
            values = np.arange(3), texts, np.ones(3, np.float32)
            events.add(row, names, np.arange(3.0), np.ones(3, bool), values)
            parts[run, number] = events.increment(row + 3) if number else events.full(3)
    chosen = [dict(parts[data.draw(st.integers(0, 1)), number]) for number in range(data.draw(st.integers(1, 3)))]
    if data.draw(st.booleans()):
        part = data.draw(st.sampled_from(chosen))
        name = data.draw(st.sampled_from(sorted(part)))
        part[name] = parts[data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2))].get(name, part[name])
    again = UserEvents(EventRules(5), KINDS, stored="strings")
    with suppress(BadInput):
        again.restore(chosen)
        _, _, (_, texts, _) = again.seen(again.position, Strings.of(["u0", "u1", "u2"]), np.full(3, 9.0))
        assert all(len(text) <= 6 for text in texts.tolist())
        again.keys_of(again.users()).tolist()


def test_integers_keep_the_order_of_times():
    times = np.array([-np.inf, -8.0, -1.5, -0.0, 0.0, 1e-9, 2.0, 1.7e9, np.inf])
    numbers = ordered(times)
    assert (np.diff(numbers) >= 0).all()
    assert numbers[3] == numbers[4]
    assert np.array_equal(user_events._seconds(numbers), times)


def test_a_saved_part_of_events_in_a_file_takes_no_memory():
    events = UserEvents(EventRules(50), ["ids"], budget_nbytes=0)
    users = np.arange(20_000) % 5_000
    events.add(0, users, np.arange(20_000.0), np.ones(20_000, bool), [users])
    part = events.full(20_000)
    assert isinstance(_owner(part["events"]), SharedMap)
    again = UserEvents(EventRules(50), ["ids"])
    again.restore([part])
    assert again.file_nbytes == 0
    assert np.array_equal(again.full(20_000)["events"], part["events"])
