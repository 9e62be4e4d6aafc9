"""Hashes that tell the values of a column apart."""

import numpy as np
import pytest

from freshet_serving.models.data.value_hashes import mixed, value_hashes
from freshet_serving.processor.columns import Ragged, Strings

NUMBERS = np.arange(-500, 500)


@pytest.mark.parametrize(
    "column",
    [
        NUMBERS,
        NUMBERS.astype(np.uint64),
        NUMBERS.astype(np.float32),
        Strings.of([f"v{n}" for n in NUMBERS]),
        Ragged.of([[n, n + 1] for n in NUMBERS.tolist()]),
        np.stack([NUMBERS, NUMBERS[::-1]], 1),
    ],
)
def test_different_values_have_different_hashes(column):
    assert len(np.unique(value_hashes(column))) == 1000


def test_equal_values_have_one_hash_whatever_is_beside_them():
    column = Strings.of(["a", "b", "a"])
    first, _, third = value_hashes(column)
    assert first == third == value_hashes(Strings.of(["a"]))[0]
    lists = Ragged.of([[1, 2], [], [1, 2]])
    assert value_hashes(lists)[0] == value_hashes(lists)[2]


def test_mixed_numbers_do_not_cancel_in_sums():
    a, b, c, d = mixed(np.arange(4, dtype=np.uint64))
    assert a + d != b + c


def test_lists_without_any_value_have_a_hash_each():
    empty = Ragged(np.zeros(0, np.int64), np.zeros(4, np.int64))
    hashes = value_hashes(empty)
    assert len(hashes) == 3
    assert len(set(hashes.tolist())) == 1
