"""Successors of the newest events: read as of an epoch, scored as candidates are, and merged in order."""

import numpy as np

from freshet_serving.processor.extensions.top_items.row_ranking import RankedRows
from freshet_serving.processor.extensions.top_items.successors import merged, score_successors
from freshet_serving.processor.package.delta import TableDelta
from freshet_serving.processor.package.item_rows import ItemRows
from tests.processor.extensions.top_items.test_row_ranking import served
from tests.processor.package.test_item_rows import row

LAYOUT = ItemRows.around(2, {"successors": 3})
MIXTURE = np.array([32.0, 0.5, 0.2], np.float32)


def table():
    rows = np.concatenate([row(LAYOUT, (10, 5), [(2, 4, 0), (3, 2, 0)]), *[row(LAYOUT, (0, 0), [])] * 2])
    rows[:, :3] = [[1, 2, 0.4], [3, 4, 0.5], [5, 6, 0.6]]
    return served([1, 2, 3], LAYOUT.width, rows)


def scored(found, history, seen, epoch=0):
    vector = np.zeros(LAYOUT.width, np.float32)
    vector[:3] = 0.5, -1, 32
    keys = np.array(history, np.int64)
    given = (keys, np.array(seen, np.int64), vector, MIXTURE)
    result = score_successors(np.array(found.descriptor()), epoch, LAYOUT, *given)
    return dict(zip(result.keys.tolist(), result.scores.tolist()))


def test_successors_have_products_and_counts():
    found = scored(table(), [1], [1])
    assert found.keys() == {2, 3}
    for key, share, popularity, product in ((2, 4 / 30, 0.5, -2.5), (3, 2 / 30, 0.6, -3.5)):
        wanted = product + np.log(np.exp(32 * popularity - 20) + np.exp(0.5) * share) + 20
        np.testing.assert_allclose(found[key], wanted, rtol=1e-5)


def test_seen_items_unknown_items_and_no_history_have_none():
    assert scored(table(), [1], [1, 2]).keys() == {3}
    assert not scored(table(), [77], [])
    assert not scored(table(), [], [])


def test_removed_successor_is_none_from_its_epoch_on():
    found = table()
    nothing = np.empty((0, LAYOUT.width), np.float32)
    found.apply(TableDelta(np.empty(0, np.int64), nothing, np.array([3])), 1)
    assert scored(found, [1], [1], 0).keys() == {2, 3}
    assert scored(found, [1], [1], 1).keys() == {2}


def test_best_of_both_are_in_order():
    one = RankedRows(np.array([5, 6]), np.array([3.0, 1.0], np.float32))
    other = RankedRows(np.array([2, 9]), np.array([3.0, 2.0], np.float32))
    assert merged(one, other, 3).keys.tolist() == [2, 5, 9]
