"""What bind_inputs() accepts, what it refuses and how it says so; the kernel itself is tested in
kernels/test_pool.py."""

import ctypes
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freshet_serving.processor.columns import BufferLayout, ColumnLayout, PackedColumns, Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features import binding, input_reader
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.kernels.pool import INPUT_FIELDS, SENT, SOURCE
from freshet_serving.processor.package import Feature, Input, TableEntry, Transform
from tests.support import looked_up
from tests.support.packages import make_inputs, manifest

SMALL = manifest()
PLAN = SparsePlan(SMALL)
I64, F32 = np.int64, np.float32


def with_features(inputs, features, tables=()):
    """SMALL with other inputs and features; offsets and widths as they fall."""
    dims = {t.name: t.dim for t in tables}
    placed, offset = [], 0
    for f in features:
        width = dims.get(f.table, 1)
        placed.append(dataclasses.replace(f, offset=offset, width=width))
        offset += width
    return dataclasses.replace(
        SMALL, inputs=list(inputs), features=placed, tables=list(tables), width=offset, dense={}, executables=[]
    )


def splits(*at):
    return np.array(at, I64)


ONE, FIVE = make_inputs([1]), make_inputs(range(5))
accepted = {
    "one row": (ONE, 1),
    "several rows": (FIVE, 5),
    "another order": (dict(reversed(FIVE.items())), 5),
    **{f"one row of {name}": (FIVE | {name: ONE[name]}, 5) for name in ONE},
    "a plain input as a column": (FIVE | {"user": np.arange(5).reshape(5, 1)}, 5),
    "no strings, as integers": (FIVE | {"tags": Ragged.of([[]] * 5)}, 5),
    "blank inputs": (input_reader.blank_inputs(SMALL), 1),
}


@pytest.mark.parametrize(("inputs", "rows"), accepted.values(), ids=accepted.keys())
def test_request_has_the_row_count_of_its_inputs(inputs, rows):
    assert PLAN.bind_inputs(inputs).rows == rows


def test_strided_and_transposed_arrays_are_bound_by_their_values():
    inputs = make_inputs(range(4))
    wide = np.arange(8, dtype=I64)
    bound = PLAN.bind_inputs(inputs | {"user": wide[::2], "floats": np.asfortranarray(inputs["floats"])})
    user, _, floats = bound.keep
    assert user.values.tolist() == [0, 2, 4, 6]
    assert floats.values.flags.c_contiguous
    np.testing.assert_array_equal(floats.values, inputs["floats"])


def test_bound_addresses_are_kept_alive():
    bound = PLAN.bind_inputs(make_inputs(range(4)))
    words = np.frombuffer(bound.words, I64).reshape(-1, INPUT_FIELDS).tolist()
    for slot, (values, rows, stride, at, filled_by) in zip(bound.keep, words, strict=True):
        assert (slot.values.ctypes.data, slot.rows, slot.stride, SENT) == (values, rows, stride, filled_by)
        assert at == (0 if slot.splits is None else slot.splits.ctypes.data)


refused = {
    "floats for ids": ("user", F32([1, 2, 3]), "expected int64, got float32"),
    "int32 for ids": ("user", np.array([1, 2, 3], np.int32), "expected int64, got int32"),
    "unsigned ids": ("user", np.array([1, 2, 3], np.uint64), "expected int64, got uint64"),
    "truth values for ids": ("user", np.array([True] * 3), "expected int64, got bool"),
    "objects for ids": ("user", np.array([1, None, "x"], object), "expected int64, got object"),
    "strings for ids": ("user", Strings.of(["1", "2", "3"]), "expected int64, got strings"),
    "lists where one is expected": ("user", Ragged.of([[1], [2], [3]]), "expected one value per row"),
    "doubles": ("floats", np.zeros((3, 4)), "expected float32, got float64"),
    "too few columns": ("floats", np.zeros((3, 3), F32), r"expected shape \[n, 4\], got \[3, 3\]"),
    "too many columns": ("floats", np.zeros((3, 5), F32), r"expected shape \[n, 4\], got \[3, 5\]"),
    "no columns": ("floats", np.zeros(12, F32), r"expected shape \[n, 4\], got \[12\]"),
    "a third dimension": ("floats", np.zeros((3, 4, 1), F32), r"expected shape \[n, 4\], got \[3, 4, 1\]"),
    "a scalar": ("user", np.array(1, I64), r"expected shape \[n, 1\], got \[\]"),
    "two columns of a plain input": ("user", np.zeros((3, 2), I64), r"expected shape \[n, 1\], got \[3, 2\]"),
    "no rows": ("user", np.empty(0, I64), r"expected shape \[n, 1\], got \[0\]"),
    "other rows": ("floats", np.zeros((2, 4), F32), r"expected 3 rows \(or 1\), got 2"),
    "other ragged rows": ("tags", Ragged(Strings.of([]), splits(0, 0, 0)), r"expected 3 rows \(or 1\), got 2"),
    "an array for ragged": ("tags", np.zeros(3, I64), r"expected ragged rows, got int64 of shape \[3\]"),
    "strings for ragged": ("tags", Strings.of(["a"] * 3), "expected ragged rows, got strings"),
    "ragged ids for strings": ("tags", Ragged.of([[1], [], [2]]), "expected strings, got int64"),
}


@pytest.mark.parametrize(("name", "column", "message"), refused.values(), ids=refused.keys())
def test_mismatched_input_is_refused_by_name(name, column, message):
    with pytest.raises(BadInput, match=f"input '{name}': {message}"):
        PLAN.bind_inputs(make_inputs(range(3)) | {name: column})


def test_stray_input_is_refused_with_those_of_the_model():
    with pytest.raises(BadInput, match="input 'colour' is not one of the model's: user, tags, floats"):
        PLAN.bind_inputs(make_inputs(range(3)) | {"colour": np.array([1])})


refused_splits = {
    "none": (0, splits()),
    "of no row": (0, splits(0)),
    "that start late": (1, splits(1, 1, 1, 1)),
    "that go back": (2, splits(0, 2, 1, 2)),
    "negative": (1, splits(0, -1, 0, 1)),
    "beyond the values": (1, splits(0, 0, 0, 2)),
    "short of the values": (9, splits(0, 0, 0, 2)),
    "that overflow": (1, splits(0, 2**63 - 1, -(2**63), 1)),
    "whose differences wrap around": (1, splits(0, 2**63 - 1, -2, 1)),
    "of rank 2": (1, splits(0, 0, 0, 1).reshape(4, 1)),
    "of two columns": (1, np.zeros((4, 2), I64)),
    "that are a number": (1, np.array(3)),
    "of floats": (1, np.array([0, 0, 0.5, 1])),
    "of NaN": (1, np.array([0, np.nan, 0, 1])),
}


@pytest.mark.parametrize(("values", "row_splits"), refused_splits.values(), ids=refused_splits.keys())
def test_row_splits_that_do_not_divide_the_values_are_refused(values, row_splits):
    tags = Ragged(Strings.of(["a"] * values), row_splits)
    message = f"'tags': expected row_splits ascending from 0 to {values} for at least one row"
    with pytest.raises(BadInput, match=message):
        PLAN.bind_inputs(make_inputs(range(3)) | {"tags": tags})


@pytest.mark.parametrize("name", ["user", "tags", "floats"])
def test_missing_input_is_refused_by_name(name):
    inputs = make_inputs(range(3))
    del inputs[name]
    with pytest.raises(BadInput, match=f"input {name!r} is missing"):
        PLAN.bind_inputs(inputs)


ragged = SparsePlan(
    with_features(
        [Input("ids", "int64", ragged=True)], [Feature("ids", "ids", "ids", table="t")], [TableEntry("t", 2, 0)]
    )
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3, np.int32), r"expected int64 values, got int32 of shape \[3\]"),
        (np.zeros((3, 1), I64), r"expected int64 values, got int64 of shape \[3, 1\]"),
        (np.array(3, I64), r"expected int64 values, got int64 of shape \[\]"),
        (Strings.of(["a", "b", "c"]), "expected int64, got strings"),
    ],
)
def test_values_of_a_ragged_input_have_their_dtype_and_rank(values, message):
    with pytest.raises(BadInput, match=message):
        ragged.bind_inputs({"ids": Ragged(values, splits(0, 3))})


def test_packed_strings_arrive_row_by_row():
    plan = SparsePlan(
        with_features(
            [Input("pair", "string", columns=2)],
            [Feature("a", "string", "pair", column=0, table="t"), Feature("b", "string", "pair", column=1, table="t")],
            [TableEntry("t", 2, 0, hash_seed=3)],
        )
    )
    assert plan.bind_inputs({"pair": Strings.of(["a", "b", "c", "d"])}).rows == 2
    for count in (0, 3):
        with pytest.raises(BadInput, match=f"expected a multiple of 2 strings, got {count}"):
            plan.bind_inputs({"pair": Strings.of(["a"] * count)})
    with pytest.raises(BadInput, match="expected strings, got int64"):
        plan.bind_inputs({"pair": np.zeros((2, 2), I64)})


def test_string_input_of_two_tables_is_hashed_with_both_seeds():
    plan = SparsePlan(
        with_features(
            [Input("word", "string")],
            [Feature(f"f{n}", "string", "word", table=f"t{n}") for n in range(3)],
            [TableEntry(f"t{n}", 2, 0, hash_seed=seed) for n, seed in enumerate([5, 9, 5])],
        )
    )
    words = Strings.of(["a", "b"])
    bound = plan.bind_inputs({"word": words})
    assert len(bound.keep) == 2, "tables with the same seed share the hashed values"
    sources = plan.plan[:, SOURCE]
    for feature, seed in enumerate([5, 9, 5]):
        assert bound.keep[sources[feature]].values.tolist() == hash_strings(words, seed).tolist()


@settings(max_examples=100, deadline=None)
@given(
    column=hnp.arrays(
        st.sampled_from([np.int64, np.float32, np.int32, np.float64, np.bool_, "U2", ">i8"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    name=st.sampled_from(["user", "tags", "floats", "stray"]),
)
def test_arbitrary_array_raises_only_bad_input(column, name):
    try:
        bound = PLAN.bind_inputs(make_inputs([1]) | {name: column})
    except BadInput:
        return
    assert column.dtype in (np.int64, np.float32)
    assert bound.rows == len(column)


# Inputs as they lie in a body

PLAIN = SparsePlan(
    with_features(
        [Input("ids", "int64", columns=3), Input("age", "float32")],
        [Feature(f"c{i}", "id", "ids", column=i, table="t") for i in range(3)] + [Feature("age", "float", "age")],
        [TableEntry("t", 2, 0)],
    )
)


def packed(start, ids, age):
    """Both inputs in one buffer, behind `start` bytes of something else."""
    places = BufferLayout(
        (
            ColumnLayout("ids", np.dtype(I64), len(ids), 3, 0),
            ColumnLayout("age", np.dtype(F32), len(age), 0, ids.nbytes),
        ),
        ids.nbytes + age.nbytes,
    )
    return PackedColumns(b"x" * start + ids.tobytes() + age.tobytes(), start, places)


@given(start=st.integers(0, 70), ids=hnp.arrays(I64, st.tuples(st.integers(1, 5), st.just(3))), one_age=st.booleans())
def test_packed_inputs_bind_like_columns_at_any_alignment(start, ids, one_age):
    age = np.arange(1 if one_age else len(ids), dtype=F32)
    inputs = packed(start, ids, age)
    np.testing.assert_array_equal(inputs["ids"], ids)
    np.testing.assert_array_equal(inputs["age"], age)
    for _ in range(2):
        bound = PLAIN.bind_inputs(inputs)
        assert bound.rows == len(ids)
        words = np.frombuffer(bound.words, I64).reshape(2, INPUT_FIELDS)
        assert words[:, 1:].tolist() == [[len(ids), 3, 0, SENT], [len(age), 1, 0, SENT]]
        assert ctypes.string_at(int(words[0, 0]), ids.nbytes) == ids.tobytes()
        assert ctypes.string_at(int(words[1, 0]), age.nbytes) == age.tobytes()
        assert bound.keep == (inputs.buffer,)


def test_mismatched_packed_inputs_are_refused_like_columns_every_time():
    inputs = packed(0, np.zeros((2, 3), I64), np.zeros(3, F32))
    for _ in range(2):
        with pytest.raises(BadInput, match=r"expected 2 rows \(or 1\), got 3"):
            PLAIN.bind_inputs(inputs)


def test_plan_that_reads_values_takes_packed_inputs_as_columns():
    plan = SparsePlan(
        with_features([Input("tag", "string")], [Feature("tag", "string", "tag", table="t")], [TableEntry("t", 2, 0)])
    )
    with pytest.raises(BadInput, match="expected strings"):
        plan.bind_inputs(PackedColumns(b"\0" * 8, 0, BufferLayout((ColumnLayout("tag", np.dtype(I64), 1, 0, 0),), 8)))


LIMITS = RequestLimits(max_rows=5, max_ids=16)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (make_inputs(range(6)), "max_rows: expected at most 5 rows per request, got 6"),
        (make_inputs([1], tags=[["a"] * 16]), "max_ids: expected at most 16 ids and strings per request, got 17"),
        (make_inputs(range(5), tags=[["a"] * 12, [], [], [], []]), "max_ids: .* got 17"),
    ],
)
def test_request_over_its_limits_is_refused_before_reading_values(inputs, message, monkeypatch):
    PLAN.bind_inputs(inputs)
    monkeypatch.setattr(input_reader, "hash_strings", None)
    with pytest.raises(TooLarge, match=message):
        PLAN.bind_inputs(inputs, LIMITS)


def test_limits_do_not_change_how_an_allowed_request_binds():
    inputs = make_inputs(range(5), tags=[["a"] * 11, [], [], [], []])
    bound, row_invariants = PLAN.bind_inputs(inputs), PLAN.bind_inputs(inputs, LIMITS)
    assert (row_invariants.rows, row_invariants.ids) == (bound.rows, bound.ids)


def test_plain_and_packed_requests_are_checked_against_limits_every_time():
    ids, age = np.zeros((6, 3), I64), np.zeros(6, F32)
    for inputs in [packed(0, ids, age)] * 2 + [{"ids": ids, "age": age}]:
        with pytest.raises(TooLarge, match="max_rows: expected at most 5 rows per request, got 6"):
            PLAIN.bind_inputs(inputs, LIMITS)
        with pytest.raises(TooLarge, match=r"max_ids: .* got 18"):
            PLAIN.bind_inputs(inputs, RequestLimits(max_ids=17))
        assert PLAIN.bind_inputs(inputs, RequestLimits(max_ids=18)).rows == 6


def test_ids_of_a_broadcast_row_count_once_per_row_block():
    inputs = {"ids": np.zeros((1, 3), I64), "age": np.zeros(600, F32)}
    assert PLAIN.bind_inputs(inputs, RequestLimits(max_ids=9)).rows == 600
    with pytest.raises(TooLarge, match="got 3, 3 of them in one row for 600 rows, counted 3 times"):
        PLAIN.bind_inputs(inputs, RequestLimits(max_ids=8))


def test_layout_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(binding, "MAX_LAYOUTS", 3)
    for rows in range(1, 9):
        PLAIN.bind_inputs(packed(0, np.zeros((rows, 3), I64), np.zeros(rows, F32)))
        assert len(PLAIN._binder._layouts) <= 3


def test_infinite_numbers_read_only_by_a_transform_are_refused():
    inputs, bucket = (
        [Input("price", "float32", columns=2)],
        Transform("bucket", "bucketize", ["price"], floats=[1.0, 2.0]),
    )
    features = [Feature("b", "id", "bucket", column=1, table="t")]
    made = dataclasses.replace(with_features(inputs, features, [TableEntry("t", 4, 3)]), transforms=[bucket])
    plan = SparsePlan(made)
    assert plan.bind_inputs({"price": np.array([[0, np.nan], [3e38, -3e38]], F32)}).rows == 2
    with pytest.raises(
        BadInput, match=r"input 'price': expected finite numbers \(or NaN\), got -inf in row 1, column 0"
    ):
        plan.bind_inputs({"price": np.array([[0, 1], [-np.inf, 2]], F32)})


LOOKED_UP = SparsePlan(looked_up.manifest())
SENT_ALL = {f"f{j}": np.zeros(2, F32) for j in range(4)} | {"user": np.array([1, 2]), "tags": Ragged.of([["a"], ["b"]])}


def test_request_with_and_without_an_unread_key_is_bound_alike():
    """Inputs are filled by keys before a request is bound; here only a key that the model does not read is absent."""
    for inputs in (SENT_ALL, SENT_ALL | {"user_id": np.array([7])}):
        bound = LOOKED_UP.bind_inputs(inputs, RequestLimits())
        assert (bound.rows, bound.ids) == (2, 4)


def test_missing_input_is_named_with_its_key():
    left_out = {name: column for name, column in SENT_ALL.items() if name != "f0"}
    with pytest.raises(BadInput, match=r"input 'f0' is missing: expected it, or 'user_id', by which online feat"):
        LOOKED_UP.bind_inputs(left_out)


@pytest.mark.parametrize("key", [np.zeros(1, F32), np.array([1, 2, 3])])
def test_key_of_another_type_or_row_count_is_refused(key):
    with pytest.raises(BadInput, match=r"input 'user_id': expected"):
        LOOKED_UP.bind_inputs(SENT_ALL | {"user_id": key})
