"""The gradient kernel against plain numpy, in the same order and so to the bit."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.kernels import accumulate, clip_rows, forget, norms
from freshet_serving.processor.package import COMBINERS

TABLE_ROWS, DIM, COLUMN = 9, 3, 2
NO_SPLITS = np.zeros(1, np.int64)

rows_of_one = st.lists(st.integers(0, TABLE_ROWS - 1), min_size=1, max_size=8)
ragged = st.lists(st.lists(st.integers(0, TABLE_ROWS - 1), max_size=6), min_size=1, max_size=8)
feature = st.one_of(
    st.tuples(st.just("one"), rows_of_one, st.just("sum"), st.just(0)),
    st.tuples(st.just("many"), ragged, st.sampled_from(["sum", "mean", "sqrtn"]), st.integers(0, 4)),
    st.tuples(st.just("many"), ragged, st.just("none"), st.integers(1, 4)),
)


def run(features, seed):
    """The kernel over features of one table -> (touched, sums, met, place afterwards)."""
    most = sum(len(rows) if kind == "one" else sum(map(len, rows)) for kind, rows, _, _ in features)
    place = np.full(TABLE_ROWS, -1, np.int32)
    touched, sums = np.empty(most, np.int64), np.full((most, DIM), np.nan, np.float32)
    met, count = np.empty(most, np.int64), 0
    for (kind, rows, combiner, max_length), grad in zip(features, make_gradients(features, seed)):
        splits = NO_SPLITS if kind == "one" else np.cumsum([0] + [len(r) for r in rows])
        refs = np.array(rows if kind == "one" else [v for row in rows for v in row], np.int64)
        each = np.arange(len(rows)), np.ones(len(rows), np.int64)
        what = (refs, splits, *each, COMBINERS[combiner].code, max_length, 1, grad, COLUMN, 0, 1)
        count = accumulate(*what, place, touched, sums, met, count)
    return touched[:count], sums[:count], met[:count], place


def make_gradients(features, seed):
    """One float32 [n, _] a feature, whose columns begin at COLUMN."""
    random = np.random.default_rng(seed)
    widths = [(DIM + 1) * most if combiner == "none" else DIM for _, _, combiner, most in features]
    return [
        random.standard_normal((len(rows), width + 4)).astype(np.float32)
        for (_, rows, _, _), width in zip(features, widths)
    ]


@settings(deadline=None, max_examples=50)
@given(
    lists=st.lists(st.lists(st.integers(0, TABLE_ROWS - 1), max_size=5), min_size=1, max_size=6),
    codes=st.integers(1, 3),
    combiner=st.sampled_from(["sum", "mean", "sqrtn", "none"]),
    most=st.integers(1, 3),
)
def test_every_key_of_a_value_gets_its_gradient(lists, codes, combiner, most):
    """As if there was a table of values, each the sum of its keys' rows."""
    values = [("many", lists, combiner, most)]
    (grad,) = make_gradients(values, 7)
    keys = [[(v + j) % TABLE_ROWS for v in row for j in range(codes)] for row in lists]
    splits = np.cumsum([0] + [len(row) for row in keys])
    refs = np.array([k for row in keys for k in row], np.int64)
    place, touched, met = (
        np.full(TABLE_ROWS, -1, np.int32),
        np.empty(len(refs), np.int64),
        np.empty(len(refs), np.int64),
    )
    sums = np.empty((len(refs), DIM), np.float32)
    each = np.arange(len(lists)), np.ones(len(lists), np.int64)
    what = (refs, splits, *each, COMBINERS[combiner].code, most * codes, codes, grad, COLUMN, 0, 1)
    count = accumulate(*what, place, touched, sums, met, 0)
    wanted = np.zeros((TABLE_ROWS, DIM), np.float64)
    for v, gradient in by_hand(values, 7).items():
        for j in range(codes):
            wanted[(v + j) % TABLE_ROWS] += gradient
    got = np.zeros_like(wanted)
    got[touched[:count]] = sums[:count]
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def by_hand(features, seed):
    """{row: gradient}, in the order in which the kernel meets the rows."""
    sums = {}
    for (kind, rows, combiner, max_length), grad in zip(features, make_gradients(features, seed)):
        for row, g in zip([[v] for v in rows] if kind == "one" else rows, grad):
            chosen = row[:max_length] if max_length else row
            share = {"sum": 1, "none": 1, "mean": len(chosen), "sqrtn": np.sqrt(np.float32(len(chosen)))}[combiner]
            for place, v in enumerate(chosen):
                part = g[COLUMN + (place if combiner == "none" else 0) * DIM :][:DIM]
                sums[v] = sums.get(v, np.zeros(DIM, np.float32)) + part / np.float32(share)
    return sums


@settings(deadline=None, max_examples=100)
@given(features=st.lists(feature, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_gradients_equal_the_manual_sum_for_every_combiner(features, seed):
    touched, sums, met, place = run(features, seed)
    wanted = by_hand(features, seed)
    assert touched.tolist() == list(wanted)
    assert sorted(touched.tolist()) == np.flatnonzero(place >= 0).tolist()
    forget(place, touched)
    assert (place == -1).all()
    for ref, total in zip(touched.tolist(), sums):
        assert total.tobytes() == wanted[ref].tobytes()
    read = Counter(
        v
        for _, rows, _, most in features
        for row in rows
        for v in (row[: most or None] if isinstance(row, list) else [row])
    )
    assert dict(zip(touched.tolist(), met.tolist())) == read


def test_norms_equal_numpy_for_any_rows():
    rows = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32) * 1e30
    rows[3], rows[4, 2], rows[5, 0] = 0.0, np.nan, np.inf
    refs = np.array([3, 4, 5, 9, 9, 49])
    found = np.empty(len(refs))
    norms(rows[:, ::2], refs, found)
    np.testing.assert_allclose(found, np.linalg.norm(rows[refs, ::2].astype(np.float64), axis=1), rtol=1e-12)


def test_gradients_longer_than_the_norm_are_clipped():
    random = np.random.default_rng(0)
    sums = (random.standard_normal((50, 6)) * random.lognormal(0, 2, (50, 1))).astype(np.float32)
    sums[7] = 0
    wanted = sums.astype(np.float64)
    lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
    wanted = np.where(lengths > 0.7, wanted * 0.7 / np.maximum(lengths, 1e-30), wanted)
    assert 5 < (lengths > 0.7).sum() < 45
    clip_rows(sums, 0.7)
    np.testing.assert_allclose(sums, wanted, rtol=1e-6)
