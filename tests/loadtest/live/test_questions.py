import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.live.questions import MAX_IDS, draw, is_json, requests, zipf_ids
from loadtest.load.encoding import InputTensor, Signature

EVERY = Signature(
    "m",
    (
        InputTensor("ids", "INT64", 3),
        InputTensor("user", "INT64"),
        InputTensor("price", "FP32"),
        InputTensor("words", "BYTES", 2),
        InputTensor("tags", "BYTES", ragged=True),
        InputTensor("seen", "INT64", ragged=True),
    ),
    ("score",),
)


@given(st.integers(1, MAX_IDS - 1), st.integers(0, 40))
def test_ids_lie_in_their_range(ids, column):
    drawn = zipf_ids(np.random.default_rng(0), ids, 200, column)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < ids


def test_few_ids_receive_most_requests():
    drawn = zipf_ids(np.random.default_rng(0), 100_000, 100_000)
    _, counts = np.unique(drawn, return_counts=True)
    top = np.sort(counts)[::-1]
    assert top[:100].sum() > 0.35 * len(drawn)
    assert 1.6 < top[0] / top[1] < 2.8
    assert len(counts) > 10_000


def test_popular_ids_differ_between_columns():
    most = [
        np.bincount(zipf_ids(np.random.default_rng(0), 1000, 5000, column), minlength=1000).argmax()
        for column in range(5)
    ]
    assert len(set(most)) == 5


def test_ids_outside_the_range_are_refused():
    for ids in (0, MAX_IDS):
        with pytest.raises(ValueError, match="ids"):
            zipf_ids(np.random.default_rng(0), ids, 1)


def test_every_kind_of_input_is_drawn():
    columns = draw(EVERY, 4, 50, np.random.default_rng(0))
    assert columns["ids"].shape == (4, 3)
    assert columns["user"].shape == (4,)
    assert columns["price"].dtype == np.float32
    assert [len(row) for row in columns["words"]] == [2, 2, 2, 2]
    assert len(columns["tags"]) == len(columns["seen"]) == 4
    assert all(isinstance(tag, str) for row in columns["tags"] for tag in row)


def test_requests_have_the_configured_share_of_json():
    kinds = [r.protocol for r in requests(EVERY, 2, 50, 40, 0.25)]
    assert kinds.count("tfs") == 10
    assert [r.protocol for r in requests(EVERY, 2, 50, 5, 0.0)] == ["kserve"] * 5
    assert all(is_json(at, 1.0) for at in range(5))
