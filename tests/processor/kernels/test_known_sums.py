"""Lists of a table with a filter have the sums of the same table without one, to the bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.known_sums import AHEAD, NOTES
from freshet_serving.processor.package import Feature, Input, Manifest, Output, TableDelta, TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed

F32 = np.float32
KNOWN = 90
lengths = st.lists(
    st.one_of(st.integers(0, 3), st.integers(0, 40), st.sampled_from([AHEAD - 1, AHEAD, AHEAD + 1, 2 * NOTES + 1])),
    min_size=1,
    max_size=12,
)


def rows_of(random, count, dim):
    """Rows in which many numbers are zeros of either sign, which a sum must keep."""
    rows = random.normal(size=(count, dim)).astype(F32)
    return np.where(random.random((count, dim)) < 0.4, np.where(random.random((count, dim)) < 0.7, -0.0, 0.0), rows)


@settings(deadline=None, max_examples=80)
@given(
    lengths=lengths,
    dim=st.sampled_from([1, 2, 7, 8, 19, 64]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "int8"]),
    combiner=st.sampled_from(["sum", "mean", "sqrtn"]),
    share=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    max_length=st.sampled_from([0, 1, 5]),
    broadcast=st.booleans(),
    deltas=st.lists(st.sets(st.integers(1, KNOWN * 2)), max_size=3),
    span=st.tuples(st.integers(0, 11), st.integers(0, 11)),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_are_those_without_a_filter_to_the_bit(
    lengths, dim, dtype, combiner, share, max_length, broadcast, deltas, span, seed
):
    random = np.random.default_rng(seed)
    entry, keys = TableEntry("t", dim, KNOWN, dtype), random.permutation(np.arange(1, KNOWN + 1)) * 7919
    arrays = packed(keys, rows_of(random, KNOWN, dim).astype(F32), dtype)
    tables = [ServedTable(entry, arrays, filtered=filtered) for filtered in (True, False)]
    assert ["filter" in table.arrays for table in tables] == [True, False]
    for epoch, changed in enumerate(map(sorted, deltas), start=1):
        cut = len(changed) * 2 // 3
        delta = TableDelta(
            np.array(changed[:cut], np.int64) * 7919,
            rows_of(random, cut, dim).astype(F32),
            np.array(changed[cut:], np.int64) * 7919,
        )
        for table in tables:
            table.apply(delta, epoch)
    feature = Feature("a", "ids", "a", table="t", combiner=combiner, max_length=max_length, width=dim, offset=0)
    other = Feature("b", "ids", "b", table="t", combiner=combiner, width=dim, offset=dim)
    inputs = [Input("a", "int64", ragged=True), Input("b", "int64", ragged=True)]
    manifest = Manifest("m", 1, "", 0.0, inputs, [feature, other], [entry], [Output("score")], 2 * dim, {}, {})
    plan, columns = SparsePlan(manifest), {}
    for name, each in (("a", lengths[:1] if broadcast else lengths), ("b", lengths[::-1])):
        ids = np.where(
            random.random(sum(each)) < share, random.choice(keys, sum(each)), random.integers(KNOWN, 10**6, sum(each))
        )
        columns[name] = Ragged(ids, np.cumsum([0, *each]))
    bound = plan.bind_inputs(columns)
    first = span[0] % len(lengths)
    last = first + 1 + span[1] % (len(lengths) - first)
    for epoch in range(len(deltas) + 1):
        results = []
        for table in tables:
            out, counts = np.full((last - first, 2 * dim), 77, F32), np.zeros((1, 2), np.int64)
            described = np.array([table.descriptor()], np.int64)
            plan.fill(BatchView(described, epoch, [bound], np.array([[first, last - first]]), counts), out)
            results.append((out.tobytes(), counts.tolist()))
        assert results[0] == results[1]
