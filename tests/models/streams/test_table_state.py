"""States of a table that changes, against a list of everything that it was told."""

from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data.keyed_rows import KeyedRows
from freshet_serving.models.data.source import Field
from freshet_serving.models.streams import table_state
from freshet_serving.models.streams.table_state import TableState
from freshet_serving.processor.columns import Ragged, Strings

KEY, FIELDS = Field("item", "string"), [Field("price", "float"), Field("tags", "strings")]
ITEMS = st.integers(0, 5)


def tags_of(price):
    return ["t"] * int(price % 3)


def rows_of(rows, timed=False, first=None):
    """rows: (item, time, price); from number `first` on they have marks."""
    items, times, prices = zip(*rows)
    tags = [tags_of(price) for price in prices]
    lists = Ragged(Strings.of([tag for row in tags for tag in row]), np.cumsum([0, *map(len, tags)]))
    columns = {"price": np.float32(prices), "tags": lists}
    marks = None if first is None else np.arange(first + 1, first + 1 + len(rows))
    keys = Strings.of([f"item {item}" for item in items])
    return KeyedRows(FIELDS, keys, columns, np.float64(times) if timed else None, marks)


def empty(timed):
    none = KeyedRows.none(KEY, FIELDS, timed)
    return TableState(none, none)


def keys_of(items):
    return Strings.of([f"item {item}" for item in items])


def said(changed):
    """Price by item of changed rows, None for those removed; tags are those of the price."""
    prices, tags = changed.columns["price"].tolist(), changed.columns["tags"]
    assert np.diff(tags.row_splits).tolist() == [len(tags_of(price)) for price in prices]
    names = [int(key.split()[1]) for key in changed.keys.tolist()]
    return dict(zip(names, prices)) | {int(key.split()[1]): None for key in changed.removed.tolist()}


@settings(max_examples=50, deadline=None)
@given(timed=st.booleans(), data=st.data())
def test_records_are_found_and_told_as_a_list_of_them_says(timed, data):
    """With and without times, whatever parts the rows are in."""
    state, told, since = empty(timed), [], 0
    known = {}
    with patch.object(table_state, "RECENT_ROWS", data.draw(st.sampled_from([0, 3, 1024]))):
        for _ in range(data.draw(st.integers(1, 6))):
            rows = data.draw(st.lists(st.tuples(ITEMS, st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=6))
            state = state.added(rows_of(rows, timed, len(told)), len(told) + len(rows))
            told += rows
            for item, at, price in rows:
                if not timed or item not in known or at >= known[item][0]:
                    known[item] = at, price
            assert said(state.all()) == {item: price for item, (_, price) in known.items()}
            items = [*range(7), 3]
            at = data.draw(st.integers(-1, 9))
            found = state.columns(keys_of(items), np.full(len(items), float(at)))["price"]
            for item, price in zip(items, found.tolist()):
                mine = [(n, row) for n, row in enumerate(told) if row[0] == item and (not timed or row[1] <= at)]
                best = max(mine, key=lambda one: (one[1][1] if timed else 0, one[0]), default=None)
                assert price == best[1][2] if best else np.isnan(price)
            assert state.has(keys_of(items)).tolist() == [item in known for item in items]
            if data.draw(st.booleans()):
                # What has changed since then is what makes the older state the newer one.
                changed = said(state.changed(since))
                assert {item for item, price in changed.items() if known[item][1] != price} == set()
                newer = {row[0] for row in told[since:] if not timed or known[row[0]] == (row[1], row[2])}
                assert changed.keys() <= {row[0] for row in told[since:]}
                assert newer <= changed.keys()
                since = state.mark


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(ITEMS, st.integers(0, 3), min_size=1), min_size=2, max_size=6), st.booleans())
def test_replaced_contents_differ_by_what_is_told(contents, timed):
    state, states = empty(timed), []
    for content in contents:
        before, state = state, state.replaced(rows_of([(item, 1, price) for item, price in content.items()], timed))
        states.append((state.mark, content))
        assert said(state.all()) == content
        assert (state.mark == before.mark) == (len(states) > 1 and states[-2][1] == content)
        assert state.has(keys_of(range(6))).tolist() == [item in content for item in range(6)]
        found = state.columns(keys_of(range(6)), np.ones(6))["price"]
        np.testing.assert_array_equal(found, np.float32([content.get(item, np.nan) for item in range(6)]))
    for mark, content in states:
        after = content | said(state.changed(mark))
        assert {item: price for item, price in after.items() if price is not None} == contents[-1]
    assert said(state.changed(state.mark)) == {}


def test_keys_that_every_reader_knows_to_be_gone_are_dropped():
    state = empty(False).replaced(rows_of([(1, 0, 1), (2, 0, 1)])).replaced(rows_of([(2, 0, 1)]))
    assert said(state.changed(1)) == {1: None}
    assert said(state.without_gone(1).changed(1)) == {1: None}
    assert said(state.without_gone(2).changed(1)) == {}
    assert said(state.without_gone(2).all()) == {2: 1}


def test_records_that_no_event_can_see_any_more_are_dropped():
    state = empty(True)
    with patch.object(table_state, "RECENT_ROWS", 0):
        for at in range(6):
            state = state.added(rows_of([(1, at, at), (2, 0, at)], True, 2 * at), 2 * at + 2, horizon_s=3.0)
    assert sorted(state.base.times.tolist()) == [0.0, 3.0, 4.0, 5.0]
    assert said(state.all()) == {1: 5, 2: 5}
