"""The items chosen last, beside a plain list of events, through checkpoints."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.training.recent_items import RecentItems
from freshet_serving.processor.columns import Ragged, Strings

NAMES = ["item", "tags", "words"]
MOST, HALF_LIFE = 6, 20.0

batches = st.lists(st.lists(st.integers(-9, 9), max_size=8), max_size=12)


def columns_of(keys, turn):
    """Columns of items, which say in which turn they came."""
    lengths = np.abs(keys) % 3
    splits = np.concatenate([[0], np.cumsum(lengths)])
    return {
        "item": np.stack([keys, np.full(len(keys), turn)], 1),
        "tags": Ragged(np.repeat(keys, lengths), splits),
        "words": Strings.of([f"{key} in {turn}" for key in keys.tolist()]),
    }


def plain(turns):
    """By key of the items that stay: share of the events and turn of the newest one."""
    events, last, counts, turn_of = 0, {}, {}, {}
    total = 0.0
    for turn, keys in enumerate(turns):
        events += len(keys)
        total = total * 0.5 ** (len(keys) / HALF_LIFE) + len(keys)
        for key in set(keys):
            old = counts[key] * 0.5 ** ((events - last[key]) / HALF_LIFE) if key in counts else 0.0
            counts[key], last[key], turn_of[key] = old + keys.count(key), events, turn
        stay = sorted(last, key=lambda key: (-last[key], -key))[:MOST]
        last = {key: last[key] for key in stay}
        counts = {key: counts[key] for key in stay}
    return {
        key: (counts[key] * 0.5 ** ((events - last[key]) / HALF_LIFE) / total, turn_of[key]) for key in sorted(last)
    }


@given(batches, st.data())
def test_items_shares_and_columns_are_those_of_the_events(turns, data):
    whole, copy, saved = RecentItems(NAMES, MOST, HALF_LIFE), RecentItems(NAMES, MOST, HALF_LIFE), False
    for turn, keys in enumerate(turns):
        array = np.array(keys, np.int64)
        whole.add(array, columns_of(array, turn))
        if data.draw(st.booleans()):
            copy.restore({name: np.array(a) for name, a in whole.changes(not saved).items()})
            saved = True
    copy.restore(whole.changes(not saved))
    expected = plain(turns)
    for items in (whole, copy):
        assert items.keys.tolist() == list(expected)
        np.testing.assert_allclose(items.shares(items.keys), [share for share, _ in expected.values()], rtol=1e-12)
        assert not items.shares(np.array([77, 78])).any()
        places = np.array(data.draw(st.permutations(range(len(items)))), np.int64)
        columns = items.columns_of(places)
        if len(items):
            keys = [list(expected)[place] for place in places]
            turn = [expected[key][1] for key in keys]
            assert columns["item"].tolist() == [list(pair) for pair in zip(keys, turn)]
            assert columns["words"].tolist() == [f"{key} in {at}".encode() for key, at in zip(keys, turn)]
            assert np.diff(columns["tags"].row_splits).tolist() == [abs(key) % 3 for key in keys]
    assert np.array_equal(whole.shares(whole.keys), copy.shares(copy.keys))


def test_no_checkpoint_has_more_than_what_was_chosen_since_the_one_before():
    items = RecentItems(NAMES)
    items.add(np.arange(100), columns_of(np.arange(100), 0))
    items.changes(True)
    items.add(np.array([3, 3, 200]), columns_of(np.array([3, 3, 200]), 1))
    assert items.changes(False)["keys"].tolist() == [3, 200]
    assert len(items.changes(True)["keys"]) == 101


def test_cleared_items_are_forgotten():
    items = RecentItems(NAMES)
    items.add(np.arange(5), columns_of(np.arange(5), 0))
    items.clear()
    assert len(items) == 0
    assert items.columns_of(np.arange(0)) == {}
