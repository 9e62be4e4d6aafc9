"""Rows of items: keys without loss, one place for each successor, and shares by the rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.package.item_rows import ItemRows, joined_keys, split_keys


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_keys_come_back_from_float32(keys):
    assert joined_keys(split_keys(np.array(keys, np.int64))).tolist() == keys


@pytest.mark.parametrize(
    ("options", "width", "dense"),
    [({"popularity": False}, 8, 8), ({"successors": 0}, 9, 9), ({"successors": 4}, 34, 9), ({}, 94, 9)],
)
def test_widths_follow_from_the_options(options, width, dense):
    layout = ItemRows.around(8, options)
    assert (layout.width, layout.dim, layout.dense) == (width, 8, dense)
    assert ItemRows.of(width, options) == layout


def row(layout, totals, successors):
    made = np.zeros((1, layout.width), np.float32)
    made[0, layout.totals] = totals
    for place, (key, once, twice) in enumerate(successors):
        made[0, layout.keys].reshape(3, -1)[:, place] = split_keys(np.array([key]))[0]
        made[0, layout.times(0).start + place], made[0, layout.times(1).start + place] = once, twice
    return made


def test_item_that_follows_both_events_has_one_place():
    layout = ItemRows.around(2, {"successors": 3})
    last, before = row(layout, (10, 5), [(7, 4, 1), (8, 6, 0)]), row(layout, (3, 20), [(9, 1, 5), (7, 0, 15)])
    keys, shares = layout.followed(last, before)
    found = {key: share for key, share in zip(keys[0].tolist(), shares[0].tolist()) if any(share)}
    wanted = {7: (4 / 30, 15 / 40), 8: (6 / 30, 0.0), 9: (0.0, 5 / 40)}
    assert found.keys() == wanted.keys()
    for key, share in wanted.items():
        np.testing.assert_allclose(found[key], share, rtol=1e-6)
    without = layout.followed(last, before, np.array([7]))[1][0][keys[0].tolist().index(7)]
    np.testing.assert_allclose(without, (3 / 29, 14 / 39), rtol=1e-6)


def test_lifted_product_is_a_mixture_of_probabilities():
    layout = ItemRows.around(2, {"successors": 1})
    lift = layout.lifts(np.array([0.2, 0.1]), np.float32((np.log(0.05) + 20) / 32), np.array([32.0, 0.3, -0.5]))
    np.testing.assert_allclose(np.exp(np.log(0.05) + lift), 0.05 + np.exp(0.3) * 0.2 + np.exp(-0.5) * 0.1, rtol=1e-5)
    assert layout.lifts(np.array([0.2, 0.1]), np.float32(0), np.array([32.0, 0.3, -0.5])) == 0
