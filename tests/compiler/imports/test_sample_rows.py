"""Rows of samples: given ones are repeated, some of many are taken from every kind of column."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.feeds import DENSE, FeedSpec
from freshet_serving.compiler.imports.sample_rows import given_samples, rows_of
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput


def test_given_rows_are_repeated_to_every_size():
    first, second = given_samples([FeedSpec("i", DENSE, np.dtype(np.int64))], {"i": [4, 5]}, (3, 1))
    assert (first["i"].tolist(), second["i"].tolist()) == ([4, 5, 4], [4])
    with pytest.raises(BadInput, match="samples: expected a list of rows for input 'i'"):
        given_samples([FeedSpec("i", DENSE, np.dtype(np.int64))], {}, (3,))


def test_rows_are_taken_in_the_order_that_is_asked_for():
    rows = np.array([2, 0])
    lists = rows_of(Ragged(np.arange(6), np.array([0, 1, 1, 6])), rows, 3)
    assert (lists.values.tolist(), lists.row_splits.tolist()) == ([1, 2, 3, 4, 5, 0], [0, 5, 6])
    assert rows_of(Strings.of([b"a", b"b", b"c", b"d", b"e", b"f"]), rows, 3).tolist() == [b"e", b"f", b"a", b"b"]
    assert rows_of(np.arange(6).reshape(3, 2), rows, 3).tolist() == [[4, 5], [0, 1]]
    assert rows_of(np.arange(3), rows, 3).tolist() == [2, 0]
