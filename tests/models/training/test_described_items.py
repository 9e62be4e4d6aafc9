"""Vectors of items that no event had, by what columns say of them, as a plain loop has them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.training.described_items import SHRINK, described_vectors
from freshet_serving.processor.columns import Ragged, Strings


def by_loop(kinds, tags, learned, missing, mean):
    made = np.repeat(mean[None].astype(np.float64), len(kinds), axis=0)
    for values in ([[kind] for kind in kinds], tags):
        before, apart = made.copy(), {}
        for value in {v for row in values for v in row}:
            rows = [n for n, row in enumerate(values) for v in row if v == value and not missing[n]]
            apart[value] = sum((learned[n] - before[n] for n in rows), np.zeros(len(mean))) / (len(rows) + SHRINK)
        for n, row in enumerate(values):
            made[n] += sum((apart[v] for v in row), np.zeros(len(mean))) / max(1, len(row))
    return made


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), max_size=3), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 99),
)
def test_vectors_are_those_of_a_plain_loop(items, seed):
    kinds, tags, missing = zip(*items)
    learned = np.random.default_rng(seed).normal(size=(len(items), 3)).astype(np.float32)
    mean = learned.mean(axis=0)
    columns = [
        Strings.of(list(kinds)),
        Ragged.of([np.array(row, np.int64) for row in tags]),
        np.ones(len(items), np.float32),
    ]
    made = described_vectors(columns, learned, np.array(missing), mean)
    assert np.allclose(made, by_loop(kinds, tags, learned, missing, mean), atol=1e-5)


def test_an_item_of_a_known_kind_is_like_its_kind():
    learned = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [9, 9]], np.float32)
    missing = np.array([False] * 4 + [True])
    made = described_vectors([np.array([1, 1, 2, 2, 2])], learned, missing, learned[:4].mean(axis=0))
    assert made[4, 1] > made[4, 0] > 0
