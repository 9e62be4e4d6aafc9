"""The gradient kernel against plain numpy, in the same order and so to the bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.embedding.kernels import accumulate, clip_rows, forget
from processor.package.manifest import COMBINERS

TABLE_ROWS, DIM = 9, 3
NO_SPLITS = np.zeros(1, np.int64)

rows_of_one = st.lists(st.integers(0, TABLE_ROWS - 1), min_size=1, max_size=8)
ragged = st.lists(st.lists(st.integers(0, TABLE_ROWS - 1), max_size=6), min_size=1, max_size=8)
feature = st.one_of(
    st.tuples(st.just("one"), rows_of_one, st.just("sum"), st.just(0)),
    st.tuples(st.just("many"), ragged, st.sampled_from(["sum", "mean", "sqrtn"]), st.integers(0, 4)),
    st.tuples(st.just("many"), ragged, st.just("none"), st.integers(1, 4)),
)


def run(features, seed):
    """The kernel over features of one table -> (touched, sums, place afterwards)."""
    most = sum(len(rows) if kind == "one" else sum(map(len, rows)) for kind, rows, _, _ in features)
    place = np.full(TABLE_ROWS, -1, np.int32)
    touched, sums = np.empty(most, np.int64), np.full((most, DIM), np.nan, np.float32)
    count = 0
    for (kind, rows, combiner, max_length), grad in zip(features, make_gradients(features, seed)):
        splits = NO_SPLITS if kind == "one" else np.cumsum([0] + [len(r) for r in rows])
        refs = np.array(rows if kind == "one" else [v for row in rows for v in row], np.int64)
        count = accumulate(refs, splits, COMBINERS[combiner], max_length, grad, place, touched, sums, count)
    return touched[:count], sums[:count], place


def make_gradients(features, seed):
    """One float32 [n, width] a feature, each a slice of a wider matrix as the trainer's are."""
    random = np.random.default_rng(seed)
    widths = [(DIM + 1) * most if combiner == "none" else DIM for _, _, combiner, most in features]
    return [
        random.standard_normal((len(rows), width + 4)).astype(np.float32)[:, 2 : 2 + width]
        for (_, rows, _, _), width in zip(features, widths)
    ]


def by_hand(features, seed):
    """{row: gradient}, in the order in which the kernel meets the rows."""
    sums = {}
    for (kind, rows, combiner, max_length), grad in zip(features, make_gradients(features, seed)):
        for row, g in zip([[v] for v in rows] if kind == "one" else rows, grad):
            chosen = row[:max_length] if max_length else row
            share = {"sum": 1, "none": 1, "mean": len(chosen), "sqrtn": np.sqrt(np.float32(len(chosen)))}[combiner]
            for place, v in enumerate(chosen):
                part = g[place * DIM :][:DIM] if combiner == "none" else g
                sums[v] = sums.get(v, np.zeros(DIM, np.float32)) + part / np.float32(share)
    return sums


@settings(deadline=None, max_examples=300)
@given(features=st.lists(feature, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_gradients_add_up_as_by_hand_for_every_combiner_length_and_repetition(features, seed):
    touched, sums, _ = run(features, seed)
    wanted = by_hand(features, seed)
    assert touched.tolist() == list(wanted)
    for ref, total in zip(touched.tolist(), sums):
        assert total.tobytes() == wanted[ref].tobytes()


@settings(deadline=None)
@given(features=st.lists(feature, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_forgetting_leaves_no_trace_for_the_next_batch(features, seed):
    touched, _, place = run(features, seed)
    assert sorted(touched.tolist()) == np.flatnonzero(place >= 0).tolist()
    forget(place, touched)
    assert (place == -1).all()


def test_the_gradient_is_the_transpose_of_pooling():
    """For combiners of the pooling kernel: <pool(rows), grad> = <rows, accumulated grad>."""
    random = np.random.default_rng(3)
    table = random.standard_normal((TABLE_ROWS, DIM)).astype(np.float32)
    rows = [[1, 1, 4], [], [2], [8, 7, 6, 5, 4, 3]]
    for name in ("sum", "mean", "sqrtn"):
        features = [("many", rows, name, 4)]
        touched, sums, _ = run(features, 5)
        (grad,) = make_gradients(features, 5)
        pooled = np.zeros((len(rows), DIM))
        for i, row in enumerate(rows):
            chosen = row[:4]
            share = {"sum": 1, "mean": max(1, len(chosen)), "sqrtn": max(1, len(chosen)) ** 0.5}[name]
            pooled[i] = table[chosen].sum(axis=0) / share
        np.testing.assert_allclose((pooled * grad).sum(), (table[touched] * sums).sum(), rtol=1e-5)


def test_gradients_longer_than_a_norm_are_made_as_long_as_that():
    random = np.random.default_rng(0)
    sums = (random.standard_normal((50, 6)) * random.lognormal(0, 2, (50, 1))).astype(np.float32)
    sums[7] = 0
    wanted = sums.astype(np.float64)
    norms = np.linalg.norm(wanted, axis=1, keepdims=True)
    wanted = np.where(norms > 0.7, wanted * 0.7 / np.maximum(norms, 1e-30), wanted)
    assert 5 < (norms > 0.7).sum() < 45
    clip_rows(sums, 0.7)
    np.testing.assert_allclose(sums, wanted, rtol=1e-6)
