"""The share of rows that are there more than once, whatever their columns are."""

import math

import numpy as np
import pytest

from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.repeated_rows import repeated_share
from freshet_serving.processor.columns import Ragged, Strings

ROWS = 500


def batch(seed=0, **columns):
    random = np.random.default_rng(seed)
    made = {
        "user": random.integers(-(2**60), 2**60, ROWS),
        "city": Strings.of([f"city {n}" for n in random.integers(0, 9, ROWS)]),
        "seen": Ragged.of([random.integers(0, 50, n).tolist() for n in random.integers(1, 5, ROWS)]),
        "price": random.standard_normal((ROWS, 2)).astype(np.float32),
    }
    return Batch({**made, **columns}, (random.random(ROWS) < 0.2).astype(np.float32), None, 0)


def test_different_rows_repeat_nothing():
    assert repeated_share([batch(0), batch(1)]) == 0


def test_rows_delivered_twice_count_once_each():
    assert repeated_share([batch(0), batch(0)]) == 0.5
    assert repeated_share([batch(0), batch(0).slice(100, 200)]) == pytest.approx(100 / 600)


@pytest.mark.parametrize("name", ["user", "city", "seen", "price"])
def test_row_with_one_other_value_is_another_row(name):
    assert repeated_share([batch(0), batch(0, **{name: batch(1).columns[name]})]) < 0.2


def test_order_within_a_list_makes_another_row():
    lists = [Ragged.of([[n, n + 1] for n in range(ROWS)]), Ragged.of([[n + 1, n] for n in range(ROWS)])]
    assert repeated_share([batch(0, seen=one) for one in lists]) == 0


def test_no_rows_have_no_share():
    assert math.isnan(repeated_share([]))
