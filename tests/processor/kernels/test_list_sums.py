"""Lists added up block by block, beside the same sums one row after another in numpy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.list_sums import KEYS, LISTS
from freshet_serving.processor.package.manifest import Feature, Input, Manifest, Output, TableEntry
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
    seed=st.integers(0, 2**32 - 1),
)
def test_lists_of_any_length_add_up_as_their_rows_do_one_after_another(lengths, dim, dtype, combiner, broadcast, seed):
    random = np.random.default_rng(seed)
    default = random.normal(size=dim).astype(F32)
    rows = random.normal(size=(KNOWN, dim)).astype(F32)
    entry = TableEntry("t", dim, KNOWN, dtype, default=default.tolist())
    table = ServedTable(entry, packed(np.arange(KNOWN), rows, dtype))
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
    plan.fill(np.array([table.descriptor()], np.int64), 0, [bound], np.array([[0, len(lengths)]]), out, counts)

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
