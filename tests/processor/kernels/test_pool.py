"""The fused kernel against the same words in plain numpy: every kind, combiner and shape of request."""

import threading
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.features.bound_request import BatchView, NonFiniteInput
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Feature, Input, Manifest, Output, TableDelta, TableEntry
from freshet_serving.processor.tables.quantise import dequantise, quantise
from freshet_serving.processor.tables.table import ServedTable, packed
from tests.support.waiting import at_once

F32 = np.float32
DIM = {"wide": 19, "narrow": 2, "bare": 8}
SEED = {"wide": 0, "narrow": 9, "bare": 0}
DEFAULT = {"wide": [n / 4 - 1 for n in range(19)], "narrow": [], "bare": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}
ROWS = {
    "wide": {k: np.linspace(k, k + 1, 19, dtype=F32) for k in (0, 1, -1, 7, 2**63 - 1, -(2**63))},
    "narrow": {int(hash_strings(Strings.of([s]), 9)[0]): F32([n, -n]) for n, s in enumerate(["a", "bc", ""], 1)},
    "bare": {},
}

FEATURES = [
    ("price", "float", "price", {}),
    ("p0", "float", "packed", {"column": 0, "log1p": True}),
    ("p2", "float", "packed", {"column": 2, "mean": 0.75, "scale": -3.0, "log1p": True}),
    ("p1", "float", "packed", {"column": 1, "mean": 0.1, "scale": 1 / 3}),
    ("user", "id", "user", {"table": "wide"}),
    ("c1", "id", "context", {"table": "narrow", "column": 1}),
    ("c0", "id", "context", {"table": "bare", "column": 0}),
    ("word", "string", "word", {"table": "narrow"}),
    ("pair1", "string", "pairs", {"table": "wide", "column": 1}),
    ("pair0", "string", "pairs", {"table": "narrow", "column": 0}),
    ("sum", "ids", "history", {"table": "wide", "combiner": "sum"}),
    ("mean", "ids", "history", {"table": "wide", "combiner": "mean", "max_length": 2}),
    ("sqrtn", "ids", "history", {"table": "wide", "combiner": "sqrtn", "max_length": 3}),
    ("tags", "strings", "tags", {"table": "narrow", "combiner": "mean"}),
    ("first", "strings", "tags", {"table": "narrow", "combiner": "sqrtn", "max_length": 1}),
    ("nowhere", "ids", "history", {"table": "bare", "combiner": "mean"}),
    ("sequence", "ids", "history", {"table": "wide", "combiner": "none", "max_length": 3}),
    ("spelled", "strings", "tags", {"table": "narrow", "combiner": "none", "max_length": 1}),
]
INPUTS = [
    Input("price", "float32"),
    Input("packed", "float32", columns=3),
    Input("user", "int64"),
    Input("context", "int64", columns=2),
    Input("word", "string"),
    Input("pairs", "string", columns=2),
    Input("history", "int64", ragged=True),
    Input("tags", "string", ragged=True),
]


def make_manifest():
    features, offset = [], 0
    for name, kind, source, rest in FEATURES:
        width = DIM[rest["table"]] if "table" in rest else 1
        if rest.get("combiner") == "none":
            width = (width + 1) * rest["max_length"]
        features.append(Feature(name, kind, source, offset=offset, width=width, **rest))
        offset += width
    tables = [TableEntry(n, DIM[n], len(ROWS[n]), default=DEFAULT[n], hash_seed=SEED[n]) for n in DIM]
    return Manifest("m", 1, "a", 0.0, INPUTS, features, tables, [Output("score")], offset, {}, {})


MANIFEST = make_manifest()
PLAN = SparsePlan(MANIFEST)


def serve(table):
    keys = np.array(sorted(ROWS[table.name]), np.int64)
    rows = np.array([ROWS[table.name][k] for k in keys.tolist()], F32).reshape(len(keys), table.dim)
    return ServedTable(table, packed(keys, rows))


TABLES = [serve(table) for table in MANIFEST.tables]
DESCRIPTORS = np.array([t.descriptor() for t in TABLES], np.int64)


def run(requests, spans=None, plan=PLAN, tables=DESCRIPTORS, epoch=0):
    """(out, counts) of the requests by the kernel; by default all rows of each."""
    bound = [plan.bind_inputs(r) for r in requests]
    spans = [(0, b.rows) for b in bound] if spans is None else spans
    out = np.full((sum(rows for _, rows in spans) + 2, plan.width), 77, F32)
    counts = np.zeros((len(tables), 2), np.int64)
    with suppress(NonFiniteInput):
        plan.fill(BatchView(tables, epoch, bound, np.array(spans, np.int64), counts), out)
    assert (out[-2:] == 77).all()
    return out[:-2], counts


def reference(request, rows):
    """The dense input [rows, width] of one request, feature by feature."""
    out = np.zeros((rows, MANIFEST.width), F32)
    for feature in MANIFEST.features:
        for i in range(rows):
            span = slice(feature.offset, feature.offset + feature.width)
            out[i, span] = value(feature, request[feature.input], i)
    return out


def value(feature, column, row):
    count = len(column) // (2 if feature.input == "pairs" else 1)
    row = 0 if count == 1 else row
    if feature.kind == "float":
        x = column[row] if feature.column < 0 else column[row, feature.column]
        if np.isnan(x):
            return 0.0
        if feature.log1p:
            x = F32(np.sign(x)) * F32(np.log1p(np.float64(abs(x))))
        return (F32(x) - F32(feature.mean)) * F32(feature.scale)
    if isinstance(column, Ragged):
        values, splits = column.values, column.row_splits
        ids = keys_of(values, feature.table)[splits[row] : splits[row + 1]]
        ids = ids[: feature.max_length or None]
        if feature.combiner == "none":
            dim, most = DIM[feature.table], feature.max_length
            absent = most - len(ids)
            present = [look_up(feature.table, key) for key in ids]
            return np.concatenate([*present, np.zeros(absent * dim), np.ones(len(ids)), np.zeros(absent)])
        total = np.zeros(feature.width, F32)
        for key in ids:
            total += look_up(feature.table, key)
        if len(ids) > 1 and feature.combiner == "mean":
            total /= F32(len(ids))
        if len(ids) > 1 and feature.combiner == "sqrtn":
            total /= np.sqrt(F32(len(ids)))
        return total
    keys = keys_of(column, feature.table)
    if feature.column >= 0:
        return look_up(feature.table, np.reshape(keys, (count, -1))[row][feature.column])
    return look_up(feature.table, keys[row])


def keys_of(column, table):
    return hash_strings(column, SEED[table]).tolist() if isinstance(column, Strings) else np.asarray(column).tolist()


def look_up(table, key):
    default = F32(DEFAULT[table] or [0] * DIM[table])
    return ROWS[table].get(key, default)


ids = st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63), 2, 1234567]) | st.integers(-(2**63), 2**63 - 1)
words = st.sampled_from(["a", "bc", "", "unseen", "ü"])
floats = st.floats(width=32, allow_infinity=False, allow_subnormal=False, min_value=-(2.0**100), max_value=2.0**100)
floats |= st.just(float("nan"))


@st.composite
def requests(draw):
    rows = draw(st.integers(1, 5))

    def flat(values, columns=1):
        n = draw(st.sampled_from([1, rows])) * columns
        return draw(st.lists(values, min_size=n, max_size=n))

    def lists(values):
        n = draw(st.sampled_from([1, rows]))
        return draw(st.lists(st.lists(values, max_size=5), min_size=n, max_size=n))

    request = {
        "price": np.array(flat(floats), F32),
        "packed": np.array(flat(floats, 3), F32).reshape(-1, 3),
        "user": np.array(flat(ids), np.int64),
        "context": np.array(flat(ids, 2), np.int64).reshape(-1, 2),
        "word": Strings.of(flat(words)),
        "pairs": Strings.of(flat(words, 2)),
        "history": Ragged.of(lists(ids)),
        "tags": ragged_strings(lists(words)),
    }
    counts = [len(c) // (2 if n == "pairs" else 1) for n, c in request.items()]
    return request, max(counts)


def ragged_strings(rows):
    return Ragged(Strings.of([s for row in rows for s in row]), np.cumsum([0, *map(len, rows)]).astype(np.int64))


def assert_equal(got, wanted):
    """Equal to the bit, but for log1p, whose last bit is the library's."""
    exact = [f for f in MANIFEST.features if not f.log1p]
    for f in exact:
        span = slice(f.offset, f.offset + f.width)
        np.testing.assert_array_equal(got[:, span], wanted[:, span], err_msg=f.name)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(batch=st.lists(requests(), min_size=1, max_size=4))
def test_batch_of_requests_equals_plain_numpy(batch):
    got, _ = run([r for r, _ in batch])
    assert_equal(got, np.concatenate([reference(r, n) for r, n in batch]))


@settings(max_examples=40, deadline=None)
@given(batch=st.lists(requests(), min_size=1, max_size=3), data=st.data())
def test_spans_of_requests_equal_the_same_rows_of_the_whole(batch, data):
    spans = []
    for _, rows in batch:
        first = data.draw(st.integers(0, rows - 1))
        spans.append((first, data.draw(st.integers(1, rows - first))))
    got, _ = run([r for r, _ in batch], spans)
    whole = [run([r])[0][first : first + n] for (r, _), (first, n) in zip(batch, spans)]
    np.testing.assert_array_equal(got, np.concatenate(whole))


@settings(max_examples=60, deadline=None)
@given(request=requests(), max_ids=st.integers(1, 6))
def test_row_invariant_features_are_bitwise_equal_in_any_parts(request, max_ids):
    bound = PLAN.bind_inputs(request[0])
    wanted, counts = run([request[0]])
    row_invariants = PLAN.row_invariants(bound, max_ids)
    if row_invariants is None:
        assert 1 not in [source.rows for source in bound.keep]
        return
    row, own = np.zeros((1, PLAN.width), F32), np.zeros_like(counts)
    for part in row_invariants.parts:
        before = own[:, 0].sum()
        part.fill(DESCRIPTORS, 0, row, own)
        # Lists that are laid out side by side are short, and stay whole.
        assert own[:, 0].sum() - before <= max(max_ids, 3)
    out = np.repeat(row, bound.rows, 0)
    row_invariants.varying.fill(BatchView(DESCRIPTORS, 0, [bound], np.array([[0, bound.rows]]), own), out)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(own, counts)
    assert row_invariants.ids <= bound.ids
    assert bound.rows > 1 or row_invariants.ids == bound.ids


@settings(max_examples=40, deadline=None)
@given(batch=st.lists(requests(), min_size=1, max_size=3))
def test_lookups_and_misses_are_counted_once_per_value(batch):
    _, counts = run([r for r, _ in batch])
    wanted = np.zeros_like(counts)
    for request, _ in batch:
        for feature in MANIFEST.features:
            if feature.table:
                table = list(DIM).index(feature.table)
                read = reads(feature, request[feature.input])
                wanted[table] += len(read), sum(key not in ROWS[feature.table] for key in read)
    np.testing.assert_array_equal(counts, wanted)


def reads(feature, column):
    """Ids that one feature looks up for a request: a broadcast row only once."""
    if isinstance(column, Ragged):
        keys, splits = keys_of(column.values, feature.table), column.row_splits.tolist()
        lists = [keys[a:b][: feature.max_length or None] for a, b in zip(splits, splits[1:])]
        return [key for row in lists for key in row]
    keys = keys_of(column, feature.table)
    if feature.column < 0:
        return keys
    return np.array(keys, object).reshape(-1, 2)[:, feature.column].tolist()


def one_row(**changes):
    return {
        "price": F32([0]),
        "packed": F32([[0, 0, 0]]),
        "user": np.array([0]),
        "context": np.array([[0, 0]]),
        "word": Strings.of(["a"]),
        "pairs": Strings.of(["a", "a"]),
        "history": Ragged.of([[]]),
        "tags": ragged_strings([[]]),
        **changes,
    }


def column_of(out, name):
    feature = next(f for f in MANIFEST.features if f.name == name)
    return out[:, feature.offset : feature.offset + feature.width]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(np.nan, 0), (0.0, 0), (-0.0, 0), (np.e - 1, 1), (1 - np.e, -1), (np.inf, np.inf), (-np.inf, -np.inf)],
)
def test_log1p_keeps_the_sign_and_missing_is_zero(value, wanted):
    got, _ = run([one_row(packed=F32([[value, 0, 0]]))])
    np.testing.assert_allclose(column_of(got, "p0"), [[wanted]], rtol=1e-6)


@given(hnp.arrays(F32, (3, 3), elements=st.floats(width=32)), st.integers(0, 2), st.integers(1, 3))
def test_out_of_range_float_error_names_its_row(values, first, rows):
    rows = min(rows, 3 - first)
    bound = PLAN.bind_inputs(one_row(packed=values))
    out, counts = np.zeros((rows, PLAN.width), F32), np.zeros((len(DESCRIPTORS), 2), np.int64)
    told = []
    try:
        PLAN.fill(BatchView(DESCRIPTORS, 0, [bound], np.array([[first, rows]]), counts), out)
    except NonFiniteInput as error:
        told.append(str(error))
    # NaN is a missing value, and 0 by now; whatever was to be filled is.
    assert told == ([] if np.isfinite(out).all() else [str(PLAN.non_finite_error(bound))])
    whole, non_finite_error = run([one_row(packed=values)])[0], PLAN.non_finite_error(bound)
    assert (non_finite_error is None) == np.isfinite(whole).all()
    if non_finite_error is not None:
        assert str(non_finite_error).startswith("input 'packed': ")
    floats = np.concatenate([column_of(whole, name) for name, kind, *_ in FEATURES if kind == "float"])
    if np.isfinite(whole).all():
        assert PLAN.largest(bound) == np.abs(floats).max()


@pytest.mark.parametrize("lengths", [(0, 1, 2, 40, 130), (64,), (63, 1, 0)])
@pytest.mark.parametrize("dim", [1, 8, 67])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_rows_of_every_type_pool_as_their_float32_values(dtype, dim, lengths):
    random = np.random.default_rng(dim)
    keys, rows = np.arange(50, dtype=np.int64), random.standard_normal((50, dim)).astype(F32)
    default = random.standard_normal(dim).astype(F32)
    served = ServedTable(TableEntry("t", dim, 50, dtype, default.tolist()), packed(keys, rows, dtype))
    rows[10:30] *= 3
    served.apply(TableDelta(keys[10:30], rows[10:30], np.empty(0, np.int64)), 1)
    values = [*dequantise(quantise(rows, dtype), dtype), default]
    inputs = [Input("one", "int64"), Input("many", "int64", ragged=True)]
    features = [Feature("one", "id", "one", table="t", width=dim)]
    for n, combiner in enumerate(("sum", "mean", "sqrtn"), 1):
        features.append(Feature(combiner, "ids", "many", table="t", combiner=combiner, offset=n * dim, width=dim))
    plan = SparsePlan(
        Manifest("typed", 1, "deepfm", 0.0, inputs, features, [served.spec], [Output("score")], 4 * dim, {}, {})
    )
    lists = [random.integers(0, 51, n).tolist() for n in lengths]
    one = random.integers(0, 51, len(lists))
    bound = plan.bind_inputs({"one": one, "many": Ragged.of(lists)})
    out = np.empty((len(lists), 4 * dim), F32)
    tables = np.array([served.descriptor()], np.int64)
    plan.fill(BatchView(tables, 1, [bound], np.array([[0, len(lists)]]), np.zeros((1, 2), np.int64)), out)
    for i, ids in enumerate(lists):
        total = np.zeros(dim, F32)
        for n in ids:
            total = total + values[n]
        count = F32(max(1, len(ids)))
        wanted = np.concatenate([values[one[i]], total, total / count, total / np.sqrt(count)])
        np.testing.assert_array_equal(out[i], wanted)


def test_batches_longer_than_a_lookup_block_equal_plain_numpy():
    random = np.random.default_rng(0)
    known = np.array([*ROWS["wide"], 2, 3, 4])
    batch = []
    for rows in (90, 1, 33):
        lists = [random.choice(known, random.integers(0, 70)).tolist() for _ in range(rows)]
        words = [random.choice(["a", "bc", "", "no"], random.integers(0, 40)).tolist() for _ in range(rows)]
        batch.append(
            one_row(
                price=random.standard_normal(rows).astype(F32),
                user=random.choice(known, rows),
                history=Ragged.of(lists),
                tags=ragged_strings(words),
            )
        )
    got, counts = run(batch)
    assert_equal(got, np.concatenate([reference(r, n) for r, n in zip(batch, (90, 1, 33))]))
    assert counts[0, 0] == sum(len(reads(f, r[f.input])) for f in MANIFEST.features for r in batch if f.table == "wide")


def test_counts_are_added_to_existing_counts():
    bound = PLAN.bind_inputs(one_row())
    out, counts = np.empty((1, PLAN.width), F32), np.full((3, 2), 100, np.int64)
    PLAN.fill(BatchView(DESCRIPTORS, 0, [bound], np.array([[0, 1]]), counts), out)
    np.testing.assert_array_equal(counts - 100, run([one_row()])[1])


def test_call_reads_the_epoch_it_is_given():
    table = serve(MANIFEST.tables[0])
    changed = TableDelta(np.array([7, 50]), np.full((2, 19), 9, F32), np.array([1]))
    table.apply(changed, 1)
    tables = DESCRIPTORS.copy()
    tables[0] = table.descriptor()
    before, _ = run([one_row(user=np.array([7, 50, 1]))], tables=tables, epoch=0)
    after, _ = run([one_row(user=np.array([7, 50, 1]))], tables=tables, epoch=1)
    default = F32(DEFAULT["wide"])
    np.testing.assert_array_equal(column_of(before, "user"), [ROWS["wide"][7], default, ROWS["wide"][1]])
    np.testing.assert_array_equal(column_of(after, "user"), [[9] * 19, [9] * 19, default])


def test_columns_at_odd_byte_offsets_give_the_same_rows():
    def odd(array):
        raw = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
        return raw.view(array.dtype).reshape(array.shape)

    plain = one_row(price=F32([1, 2]), user=np.array([7, 1]), history=Ragged.of([[7, 1], [0]]))
    shifted = {n: odd(c) if isinstance(c, np.ndarray) else c for n, c in plain.items()}
    shifted["history"] = Ragged(odd(plain["history"].values), odd(plain["history"].row_splits))
    np.testing.assert_array_equal(run([shifted])[0], run([plain])[0])


def test_kernel_may_run_in_several_threads_at_once():
    batch = [one_row(user=np.array([n]), history=Ragged.of([[n, 7, 1]])) for n in range(40)]
    wanted, _ = run(batch)
    start, results = threading.Barrier(4), []

    def work(_):
        start.wait(timeout=30)
        results.append(all((run(batch)[0] == wanted).all() for _ in range(5)))

    at_once(work, range(4))
    assert results == [True] * 4
