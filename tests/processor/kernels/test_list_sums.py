"""Lists added up block by block, beside the same sums one row after another in numpy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.list_sums import KEYS, LISTS
from freshet_serving.processor.kernels.rows import NUMBERED
from freshet_serving.processor.package import Feature, Input, Manifest, Output, TableDelta, TableEntry
from freshet_serving.processor.tables.quantise import dequantise, quantise
from freshet_serving.processor.tables.table import ServedTable, packed

F32 = np.float32
KNOWN = 50
COMBINERS = ("sum", "mean", "sqrtn")
lengths = st.lists(
    st.one_of(st.integers(0, 3), st.integers(0, 40), st.sampled_from([KEYS - 1, KEYS, KEYS + 1, 2 * KEYS + 1])),
    min_size=1,
    max_size=LISTS + 3,
)


@settings(deadline=None, max_examples=60)
@given(
    lengths=lengths,
    dim=st.sampled_from([1, 8, 19, 64, 130]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "int8"]),
    combiner=st.sampled_from(COMBINERS),
    broadcast=st.booleans(),
    shared=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_lists_of_any_length_sum_like_row_by_row_addition(lengths, dim, dtype, combiner, broadcast, shared, seed):
    random = np.random.default_rng(seed)
    default = random.normal(size=dim).astype(F32)
    rows = random.normal(size=(KNOWN, dim)).astype(F32)
    entry = TableEntry("t", dim, KNOWN, dtype, default=default.tolist(), unknown_key=-9 if shared else None)
    table = ServedTable(entry, packed(np.arange(KNOWN), rows, dtype))
    if shared:
        brought = random.normal(size=(1, dim)).astype(F32)
        table.apply(TableDelta(np.array([-9]), brought, np.empty(0, np.int64)), 1)
        default = dequantise(quantise(brought, dtype), dtype)[0]
    features = [
        Feature(n, "ids", n, table="t", combiner=combiner, offset=o, width=dim) for n, o in (("a", 0), ("b", dim))
    ]
    inputs = [Input("a", "int64", ragged=True), Input("b", "int64", ragged=True)]
    plan = SparsePlan(Manifest("m", 1, "", 0.0, inputs, features, [entry], [Output("score")], 2 * dim, {}, {}))
    columns = {"a": lengths, "b": lengths[:1] if broadcast else lengths[::-1]}
    # Two of three ids are known.
    sent = {n: random.integers(0, KNOWN * 3 // 2, sum(each)) for n, each in columns.items()}
    bound = plan.bind_inputs({n: Ragged(sent[n], np.cumsum([0, *each])) for n, each in columns.items()})
    out, counts = np.full((len(lengths), 2 * dim), 77, F32), np.zeros((1, 2), np.int64)
    epoch = int(shared)
    plan.fill(
        BatchView(np.array([table.descriptor()], np.int64), epoch, [bound], np.array([[0, len(lengths)]]), counts), out
    )

    stored = dequantise(quantise(rows, dtype), dtype)
    wanted, looked = np.zeros_like(out), 0
    for f, (name, each) in enumerate(columns.items()):
        lists = np.split(sent[name], np.cumsum(each)[:-1])
        looked += len(sent[name])
        for i in range(len(lengths)):
            ids = lists[0 if len(lists) == 1 else i]
            place = wanted[i, f * dim : (f + 1) * dim]
            for key in ids:
                place += stored[key] if key < KNOWN else default
            if len(ids) > 1 and combiner != "sum":
                place /= F32(len(ids)) if combiner == "mean" else np.sqrt(F32(len(ids)))
    assert (out == wanted).all()
    assert counts[0].tolist() == [looked, sum(int((ids >= KNOWN).sum()) for ids in sent.values())]


@settings(deadline=None, max_examples=60)
@given(
    lengths=lengths,
    dim=st.sampled_from([1, 8, 31, 64, 130]),
    dtype=st.sampled_from(["float32", "float16", "int8"]),
    combiner=st.sampled_from((*COMBINERS, "none", "one")),
    deltas=st.lists(st.sets(st.integers(-2, KNOWN * 3 // 2)), max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_by_number_are_those_that_the_index_leads_to(lengths, dim, dtype, combiner, deltas, seed):
    random = np.random.default_rng(seed)
    entry = TableEntry("t", dim, KNOWN, dtype, default=[0.5] * dim)
    table = ServedTable(entry, packed(np.arange(KNOWN), random.normal(size=(KNOWN, dim)).astype(F32), dtype))
    for epoch, keys in enumerate(map(sorted, deltas), start=1):
        cut = len(keys) * 2 // 3
        rows = random.normal(size=(cut, dim)).astype(F32)
        versions = table.apply(TableDelta(np.array(keys[:cut], np.int64), rows, np.array(keys[cut:], np.int64)), epoch)
        if epoch < len(deltas):
            table.retire(versions, epoch)
            table.reclaim(epoch, epoch + 1)
    lists = combiner != "one"
    width = (dim + 1) * 3 if combiner == "none" else dim
    spec = {"combiner": combiner} if lists else {}
    if combiner == "none":
        spec["max_length"] = 3
    feature = Feature("a", "ids" if lists else "id", "a", table="t", width=width, **spec)
    source = Input("a", "int64", ragged=lists)
    plan = SparsePlan(Manifest("m", 1, "", 0.0, [source], [feature], [entry], [Output("score")], width, {}, {}))
    ids = random.integers(-2, KNOWN * 3 // 2, sum(lengths) if lists else len(lengths))
    bound = plan.bind_inputs({"a": Ragged(ids, np.cumsum([0, *lengths])) if lists else ids})
    found = []
    for numbered in (KNOWN, 0):
        described = np.array([table.descriptor()], np.int64)
        assert described[0, NUMBERED // 8] == KNOWN
        described[0, NUMBERED // 8] = numbered
        out, counts = np.full((len(lengths), width), 77, F32), np.zeros((1, 2), np.int64)
        for epoch in range(max(0, len(deltas) - 1), len(deltas) + 1):
            plan.fill(BatchView(described, epoch, [bound], np.array([[0, len(lengths)]]), counts), out)
            found.append((out.tobytes(), counts.tolist()))
    assert found[: len(found) // 2] == found[len(found) // 2 :]


def test_keys_without_a_row_read_the_unknown_row_of_their_epoch():
    entry = TableEntry("t", 2, KNOWN, default=[1.0, 2.0], unknown_key=-9)
    table = ServedTable(entry, packed(np.arange(KNOWN), np.zeros((KNOWN, 2), F32)))
    table.apply(TableDelta(np.array([-9]), np.array([[3, 4]], F32), np.empty(0, np.int64)), 1)
    table.apply(TableDelta(np.empty(0, np.int64), np.empty((0, 2), F32), np.array([-9])), 2)
    feature = Feature("a", "id", "a", table="t", width=2)
    manifest = Manifest("m", 1, "", 0.0, [Input("a", "int64")], [feature], [entry], [Output("score")], 2, {}, {})
    plan = SparsePlan(manifest)
    out, counts = np.zeros((2, 2), F32), np.zeros((1, 2), np.int64)
    read = []
    for epoch in range(3):
        bound = plan.bind_inputs({"a": np.array([KNOWN + 7, 3])})
        plan.fill(BatchView(np.array([table.descriptor()], np.int64), epoch, [bound], np.array([[0, 2]]), counts), out)
        read.append((out.tolist(), table.unknown_row(epoch).tolist()))
    known = [0.0, 0.0]
    assert read == [([row, known], row) for row in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0])]
    assert counts.tolist() == [[6, 3]]
