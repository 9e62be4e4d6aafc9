"""Inputs that have moved, and inputs that have not."""

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.guard.input_drift import LEAST_VALUES, input_shifts

RANDOM = np.random.default_rng(2)


def requests(make, count=40):
    return [{"x": make()} for _ in range(count)]


def ages(mean=40.0):
    return lambda: RANDOM.normal(mean, 10, 8).astype(np.float32)


def shops(count=5):
    return lambda: RANDOM.integers(0, count, 8)


def words(*names):
    return lambda: Ragged(Strings.of(list(RANDOM.choice(names, 6))), np.array([0, 2, 2, 6]))


@pytest.mark.parametrize("make", [ages(), shops(), words("a", "b", "c"), lambda: RANDOM.integers(0, 1 << 40, 8)])
def test_equal_inputs_do_not_drift(make):
    assert input_shifts(requests(make), requests(make))["x"] < 0.15


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ages(), ages(55.0)),
        (ages(), lambda: ages()() * np.float32(100)),
        (ages(), lambda: np.full(8, np.nan, np.float32)),
        (shops(5), shops(2)),
        (words("a", "b"), words("c", "d")),
    ],
)
def test_moved_inputs_drift(before, after):
    assert input_shifts(requests(before), requests(after))["x"] > 0.25


def test_few_values_and_other_types_are_not_compared():
    assert input_shifts(requests(ages()), requests(ages(), LEAST_VALUES // 8 - 1)) == {}
    assert input_shifts(requests(ages()), requests(shops())) == {}
    assert input_shifts([{"y": np.arange(100)}], requests(shops())) == {}
    assert input_shifts([], []) == {}
