"""A request's columns as a model's tensors."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.feeds import DENSE, PADDED, RAGGED, SPARSE, FeedSpec, feeds_of, repeated_rows
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import Input

INT64, OBJECT = np.dtype(np.int64), np.dtype(object)


@pytest.mark.parametrize(
    ("fed", "wanted"),
    [
        (FeedSpec("a", DENSE, INT64), Input("a", "int64")),
        (FeedSpec("a", DENSE, np.dtype(bool), (1,)), Input("a", "int64", declared="bool", dims=[1])),
        (FeedSpec("a", DENSE, np.dtype(np.float64), (2, 3)), Input("a", "float32", 6, declared="float64", dims=[2, 3])),
        (FeedSpec("a", DENSE, OBJECT, (4,)), Input("a", "string", columns=4)),
        (FeedSpec("a", SPARSE, OBJECT), Input("a", "string", ragged=True)),
        (FeedSpec("a", PADDED, np.dtype(np.int32)), Input("a", "int64", ragged=True, declared="int32")),
    ],
)
def test_package_input_is_the_nearest_type_that_requests_can_send(fed, wanted):
    assert fed.input == wanted


def test_rows_get_the_model_shape_and_single_rows_repeat():
    fed = FeedSpec("a", DENSE, np.dtype(np.float64), (2, 3))
    column = np.arange(6, dtype=np.float32).reshape(1, 6)
    got = fed.feeds(column, 3)["input/a"]
    assert (got.shape, got.dtype) == ((3, 2, 3), np.float64)
    words = FeedSpec("w", DENSE, OBJECT, (2,)).feeds(Strings.of(["a", "b", "c", "d"]), 2)["input/w"]
    assert words.tolist() == [[b"a", b"b"], [b"c", b"d"]]


def test_ragged_rows_are_fed_as_splits_sparse_or_matrix():
    rows = Ragged.of([[1, 2], [], [3]])
    assert FeedSpec("a", RAGGED, INT64).feeds(rows, 3)["input/a/row_splits"].tolist() == [0, 2, 2, 3]
    sparse = FeedSpec("a", SPARSE, INT64).feeds(rows, 3)
    assert sparse["input/a/indices"].tolist() == [[0, 0], [0, 1], [2, 0]]
    assert sparse["input/a/values"].tolist() == [1, 2, 3]
    assert sparse["input/a/shape"].tolist() == [3, 2]
    padded = FeedSpec("a", PADDED, INT64).feeds(Ragged.of([[1, 2], [3, 4]]), 2)["input/a"]
    assert padded.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(BadInput, match="expected rows of equal length"):
        FeedSpec("a", PADDED, INT64).feeds(rows, 3)


def test_single_ragged_row_is_repeated():
    got = FeedSpec("a", RAGGED, OBJECT).feeds(Ragged.of([["x", "y"]]), 3)
    assert got["input/a/values"].tolist() == [b"x", b"y"] * 3
    assert got["input/a/row_splits"].tolist() == [0, 2, 4, 6]


def test_number_that_the_model_type_cannot_represent_is_refused():
    with pytest.raises(BadInput, match="input 'a': expected values of int8"):
        feeds_of({"a": FeedSpec("a", DENSE, np.dtype(np.int8))}, {"a": np.array([1, 200])}, 2)


def test_bits_of_uint64_are_fed_without_sign():
    ids = [5, 2**63, 2**64 - 1]
    carried = np.array(ids, np.uint64).view(np.int64)
    fed = FeedSpec("a", DENSE, np.dtype(np.uint64))
    fed.check(carried)
    assert fed.feeds(carried, 3)["input/a"].tolist() == ids
    lists = FeedSpec("b", RAGGED, np.dtype(np.uint64))
    assert lists.feeds(Ragged(carried, np.array([0, 2, 3])), 2)["input/b/values"].tolist() == ids


def test_samples_of_uint64_carry_its_bits():
    fed = FeedSpec("a", DENSE, np.dtype(np.uint64))
    assert repeated_rows(fed, [2**63, 5], 3).tolist() == [-(2**63), 5, -(2**63)]
    lists = repeated_rows(FeedSpec("b", RAGGED, np.dtype(np.uint64)), [[2**64 - 1], []], 2)
    assert (lists.values.tolist(), lists.row_splits.tolist()) == ([-1], [0, 1, 1])
    for refused in (-1, 2**64):
        with pytest.raises(BadInput, match="samples: expected uint64 values for input 'a'"):
            repeated_rows(fed, [refused], 1)
