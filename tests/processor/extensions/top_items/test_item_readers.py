"""The index names every item that reads a row, whatever records items have had."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from freshet_serving.processor.extensions.top_items import item_readers
from freshet_serving.processor.extensions.top_items.item_readers import ItemReaders, ReaderPairs
from freshet_serving.processor.extensions.top_items.item_tower import ItemTower
from tests.support.towers import CATALOGUE, manifest, note, records

PAIRS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 20)), max_size=30)


def readers():
    return ItemReaders(ItemTower.of(manifest(True), note()), {"category": -1})


def added(index, kept):
    index.add(np.array(list(kept), np.int64), records(manifest(True), [(c, 0.0) for c in kept.values()]))
    return index


def ints(*numbers):
    return np.array(numbers, np.int64)


def touched(index, most=100, **changes):
    found = index.touched({name: [np.array(keys, np.int64)] for name, keys in changes.items()}, most)
    return None if found is None else found.tolist()


def test_items_are_touched_by_their_own_rows_and_by_those_that_they_read():
    index = added(readers(), {3: (1, 2), 5: (2,), 7: ()})
    assert touched(index, item=[9, 4]) == [4, 9]
    assert touched(index, category=[2]) == [3, 5]
    assert touched(index, category=[1], item=[7, 3]) == [3, 7]
    assert touched(index, category=[8], user=[3]) == []
    assert touched(index, **{CATALOGUE: [7]}) == [7]


def test_changed_records_read_their_new_rows_too():
    index = added(added(readers(), {3: (1,)}), {3: (2,), 4: (2, 2)})
    assert touched(index, category=[2]) == [3, 4]
    # A pair that is no more stays.
    assert touched(index, category=[1]) == [3]


def test_too_many_or_any_items_are_none():
    index = added(readers(), dict.fromkeys(range(10), (1,)))
    index.merge()
    assert touched(index, 9, category=[1]) is None
    assert touched(index, 10, category=[1]) == list(range(10))
    assert touched(index, 3, item=[1, 2, 3, 4]) is None
    # The row of all keys without one.
    assert touched(index, category=[-1]) is None


@given(st.lists(PAIRS, max_size=4), st.lists(st.integers(0, 9), max_size=4), st.booleans())
def test_readers_are_those_of_a_scan(parts, rows, merges):
    pairs = ReaderPairs()
    for part in parts:
        pairs.add(ints(*(row for row, _ in part)), ints(*(item for _, item in part)))
        if merges:
            pairs.merge()
    wanted = sorted({item for part in parts for row, item in part if row in rows})
    assert sorted(set(pairs.readers(ints(*rows), 10**6).tolist())) == wanted
    assert pairs.nbytes == 16 * sum(map(len, parts))


def test_new_pairs_are_merged_once_they_are_many(monkeypatch):
    monkeypatch.setattr(item_readers, "FEWEST_NEW", 2)
    pairs = ReaderPairs()
    for n in range(6):
        pairs.add(ints(n), ints(10 + n))
        assert pairs.readers(ints(n), 9).tolist() == [10 + n]
    assert len(pairs._rows) >= 3
