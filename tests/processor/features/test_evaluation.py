"""Transforms give what TensorFlow gives, to the bit, and refuse what would grow beyond bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="TensorFlow is what is compared with")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features import crosses, evaluation, flat_columns
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.package import MAX_CROSSED, Input, Manifest, Transform

pytestmark = pytest.mark.tensorflow

INT64 = st.integers(-(2**63), 2**63 - 1)
WORDS = st.lists(st.binary(max_size=90) | st.text(max_size=40).map(str.encode), min_size=1, max_size=12)
FLOATS = [
    0.0, -0.0, 1.0, -1.5, 1e-30, 123456.789, 1e10, -3.4e38, 1e-45, -1e-40, np.inf, -np.inf, np.nan, 0.1, 2.5, 1e-5,
    99999.995,
]  # fmt: skip
BUCKETS = 2**61 + 12345
few = settings(max_examples=25, deadline=None)


def shape(name, column):
    values = column.values if isinstance(column, Ragged) else column
    dtype = "string" if isinstance(values, Strings) else values.dtype.name
    columns = 0 if isinstance(values, Strings) or values.ndim == 1 else values.shape[1]
    return Input(name, dtype, columns, isinstance(column, Ragged))


def made(inputs, *transforms, wide=()):
    """The column of the last transform. inputs: by name; wide: string inputs of two columns."""
    specs = [Input(n, "string", 2) if n in wide else shape(n, c) for n, c in inputs.items()]
    manifest = Manifest("m", 1, "", 0.0, specs, [], [], [], 1, {}, {}, transforms=list(transforms))
    return Transforms(manifest).run(inputs)[transforms[-1].name]


def strings(column):
    return column.tolist()


@pytest.mark.parametrize(
    ("op", "numbers", "reference"),
    [
        ("farm", [BUCKETS], lambda s: tf.strings.to_hash_bucket_fast(s, BUCKETS)),
        ("murmur", [BUCKETS], lambda s: tf.strings.to_hash_bucket(s, BUCKETS)),
        ("sip", [BUCKETS, 2**63 - 5, 77], lambda s: tf.strings.to_hash_bucket_strong(s, BUCKETS, [2**63 - 5, 77])),
    ],
)
def test_hashes_of_every_length_equal_tensorflow(op, numbers, reference):
    random = np.random.default_rng(len(op))
    words = [random.bytes(length) for length in range(301)] + [random.bytes(5000)]
    found = made({"s": Strings.of(words)}, Transform("t", op, ["s"], numbers))
    np.testing.assert_array_equal(found, reference(words).numpy())


@few
@given(WORDS, st.integers(1, 2**63 - 1), st.data())
def test_hashes_of_any_strings_at_any_offset_equal_tensorflow(words, buckets, data):
    first = data.draw(st.integers(0, len(words) - 1))
    whole = Strings.of(words)
    part = Strings(whole.data, whole.offsets[first:])
    for op, function in (("farm", tf.strings.to_hash_bucket_fast), ("murmur", tf.strings.to_hash_bucket)):
        found = made({"s": part}, Transform("t", op, ["s"], [buckets]))
        np.testing.assert_array_equal(found, function(words[first:], buckets).numpy())


@few
@given(st.lists(INT64, min_size=1, max_size=20))
def test_integers_are_formatted_like_tensorflow(numbers):
    values = np.array(numbers, np.int64)
    assert strings(made({"i": values}, Transform("t", "text", ["i"], texts=["%d"]))) == (
        tf.strings.as_string(values).numpy().tolist()
    )


@pytest.mark.parametrize("options", [{}, {"precision": 2}, {"scientific": True}, {"shortest": True}, {"width": 14}])
@few
@given(st.lists(st.floats(width=32) | st.sampled_from(FLOATS), min_size=1, max_size=20))
def test_floats_are_formatted_like_tensorflow(options, numbers):
    values = np.array(numbers, np.float32)
    letter = "e" if "scientific" in options else "g" if "shortest" in options else "f"
    form = f"%{options.get('width', '')}{'.2' if 'precision' in options else ''}{letter}"
    got = strings(made({"x": values}, Transform("t", "text", ["x"], texts=[form])))
    assert got == tf.strings.as_string(values, **options).numpy().tolist()


@few
@given(WORDS, st.binary(max_size=20), st.sampled_from(["", "_x_", "ä"]))
def test_joins_equal_tensorflow_and_broadcast_a_single_row(words, one, separator):
    inputs = {"a": Strings.of(words), "b": Strings.of([one])}
    found = made(inputs, Transform("t", "join", ["a", "b"], texts=["<", separator, ">"]))
    wanted = tf.strings.join(["<", words, separator, [one] * len(words), ">"]).numpy().tolist()
    assert strings(found) == wanted


@few
@given(WORDS)
def test_case_and_white_space_changes_equal_tensorflow(words):
    words = [*words, b" \t a B\xc3\xa4\n\x0b\x0c\r "]
    for op, function in (("lower", tf.strings.lower), ("upper", tf.strings.upper), ("strip", tf.strings.strip)):
        found = made({"s": Strings.of(words)}, Transform("t", op, ["s"]))
        assert strings(found) == function(words).numpy().tolist()


def test_float_buckets_equal_tensorflow():
    values, limits = np.array([*FLOATS, 0.5, -0.5], np.float32), [-1.5, -0.5, 0.0, 0.1, 0.5]
    found = made({"x": values}, Transform("t", "bucketize", ["x"], floats=limits))
    np.testing.assert_array_equal(found, tf.raw_ops.Bucketize(input=values, boundaries=limits).numpy())


@few
@given(st.lists(INT64, min_size=1, max_size=12), st.integers(-50, 50).filter(lambda n: n not in (0, -1)))
def test_arithmetic_wraps_and_floors_like_tensorflow(numbers, other):
    a, b = np.array(numbers, np.int64), np.int64(other)
    for op, function in (
        ("add", tf.add),
        ("multiply", tf.multiply),
        ("floor_modulo", tf.math.floormod),
        ("floor_divide", tf.math.floordiv),
    ):
        found = made({"a": a}, Transform("t", op, ["a"], [other]))
        np.testing.assert_array_equal(found, function(a, b).numpy())
    narrow = made({"a": a}, Transform("t", "int32", ["a"]))
    np.testing.assert_array_equal(narrow, tf.cast(a, tf.int32).numpy())


@few
@given(st.data(), st.integers(1, 2**40), st.sampled_from([0, 7, 1000]))
def test_crosses_of_ragged_strings_and_integers_equal_tensorflow(data, key, buckets):
    rows = data.draw(st.integers(1, 5))
    words = data.draw(st.lists(st.lists(st.binary(max_size=40), max_size=4), min_size=rows, max_size=rows))
    ids = data.draw(st.lists(st.lists(INT64, max_size=3), min_size=rows, max_size=rows))
    plain = np.array(data.draw(st.lists(INT64, min_size=rows, max_size=rows)), np.int64)
    ragged = Ragged(Strings.of([w for row in words for w in row]), splits(words))
    numbers = Ragged(np.array([i for row in ids for i in row], np.int64), splits(ids))
    sparse = [
        tf.RaggedTensor.from_row_splits(tf.constant(ragged.values.tolist(), tf.string), ragged.row_splits).to_sparse(),
        tf.RaggedTensor.from_row_splits(numbers.values, numbers.row_splits).to_sparse(),
    ]
    wanted = tf.sparse.cross_hashed([*sparse, tf.constant(plain[:, None])], num_buckets=buckets, hash_key=key)
    cross = Transform("t", "cross", ["w", "i", "p"], [buckets or 2**63 - 1, key])
    found = made({"w": ragged, "i": numbers, "p": plain}, cross)

    assert found.values.tolist() == wanted.values.numpy().tolist()
    np.testing.assert_array_equal(np.repeat(np.arange(rows), np.diff(found.row_splits)), wanted.indices.numpy()[:, 0])


def splits(rows):
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


def test_crosses_of_plain_columns_equal_tensorflow_and_broadcast_one_row():
    user, item = Strings.of(["ann"]), np.array([1, -2, 3], np.int64)
    found = made({"u": user, "i": item}, Transform("t", "cross", ["u", "i"], [100, 0xDECAFCAFFE]))
    wanted = tf.sparse.cross_hashed([tf.constant([["ann"]] * 3), tf.constant(item[:, None])], 100)
    np.testing.assert_array_equal(found, wanted.values.numpy())


def test_drop_fill_and_empty_transforms_handle_ragged_rows():
    rows = Ragged(np.array([5, -1, -1, 0, 7], np.int64), np.array([0, 2, 3, 5], np.int64))
    drop, below = Transform("d", "drop", ["r"], [-1]), Transform("d", "drop_below", ["r"], [1])
    assert made({"r": rows}, drop).row_splits.tolist() == [0, 1, 1, 3]
    assert made({"r": rows}, below).values.tolist() == [5, 7]
    filled = made({"r": rows}, drop, Transform("f", "fill", ["d"], [9]))
    assert (filled.values.tolist(), filled.row_splits.tolist()) == ([5, 9, 0, 7], [0, 1, 2, 4])
    assert made({"r": rows}, drop, Transform("e", "empty", ["d"])).tolist() == [0.0, 1.0, 0.0]
    words = Strings.of(["a", "", "aa"])
    dropped = made({"s": words}, Transform("d", "drop", ["s"], texts=["a"]))
    assert (strings(dropped.values), dropped.row_splits.tolist()) == ([b"", b"aa"], [0, 0, 1, 2])


def test_newest_takes_the_last_events_and_where_the_chosen():
    random = np.random.default_rng(3)
    rows = [random.integers(0, 99, n).tolist() for n in (0, 1, 2, 7, 20, 0)]
    items, actions = Ragged.of(rows), Ragged.of([[n % 3 for n in row] for row in rows])
    words = Ragged(Strings.of([f"{n % 3}" for row in rows for n in row]), items.row_splits)
    for skip, most in ((0, 1), (0, 3), (1, 1), (2, 4), (30, 5)):
        newest = made({"r": items}, Transform("t", "newest", ["r"], [skip, most]))
        kept = [row[: len(row) - skip][-most:] if len(row) > skip else [] for row in rows]
        assert [list(newest.values[a:b]) for a, b in zip(newest.row_splits, newest.row_splits[1:])] == kept
    chosen = [[n for n in row if n % 3 == 1] for row in rows]
    for tested, how in ((actions, {"integers": [1]}), (words, {"texts": ["1"]})):
        found = made({"r": items, "a": tested}, Transform("t", "where", ["r", "a"], **how))
        assert [list(found.values[a:b]) for a, b in zip(found.row_splits, found.row_splits[1:])] == chosen
    with pytest.raises(BadInput, match="inputs r, a: expected lists of equal lengths"):
        made({"r": items, "a": Ragged.of([[1], [], [], [], [], []])}, Transform("t", "where", ["r", "a"], [1]))


def test_pairs_beyond_the_limit_on_ids_are_refused_before_they_are_made(monkeypatch):
    inputs = {"h": Ragged.of([list(range(20))]), "i": np.arange(50, dtype=np.int64)}
    cross = Transform("t", "cross", ["h", "i"], [1000, 1])
    specs = [shape(n, c) for n, c in inputs.items()]
    transforms = Transforms(Manifest("m", 1, "", 0.0, specs, [], [], [], 1, {}, {}, transforms=[cross]))
    assert len(transforms.run(inputs, limits=RequestLimits(max_ids=1000))["t"].values) == 1000
    monkeypatch.setattr(crosses, "FlatColumn", None)
    with pytest.raises(
        TooLarge, match=r"max_ids: expected at most 999 crossed ids per request, got 1000.* inputs h, i"
    ):
        transforms.run(inputs, limits=RequestLimits(max_ids=999))


def test_pick_concat_mask_limit_and_count_transforms_work_on_columns():
    matrix = np.array([[3, 1], [4, 4]], np.int64)
    pick = Transform("p", "pick", ["m"], [1])
    assert made({"m": matrix}, pick).tolist() == [1, 4]
    assert made({"m": matrix}, pick, Transform("b", "side_by_side", ["p", "m"])).tolist() == [[1, 3, 1], [4, 4, 4]]
    words = Strings.of(["a", "b", "c", "d"])
    assert strings(made({"m": words}, Transform("p", "pick", ["m"], [1]), wide=("m",))) == [b"b", b"d"]
    both = made({"m": words}, pick, Transform("b", "side_by_side", ["p", "m"]), wide=("m",))
    assert strings(both) == [b"b", b"a", b"b", b"d", b"c", b"d"]
    ids = np.array([7, 8, -3], np.int64)
    assert made({"i": ids}, Transform("t", "within", ["i"], [0, 8, 5])).tolist() == [7, 5, 5]
    assert made({"i": ids}, Transform("t", "mask", ["i", "i"], [8, 0])).tolist() == [7, 0, -3]
    assert made({"m": matrix}, Transform("t", "tally", ["m"], [5, 0])).tolist() == [[0, 1, 0, 1, 0], [0, 0, 0, 0, 2]]
    assert made({"m": matrix}, Transform("t", "tally", ["m"], [5, 1])).tolist() == [[0, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
    beyond = np.array([[2, 5, 6]], np.int64)
    assert made({"m": beyond}, Transform("t", "tally", ["m"], [5, 0])).tolist() == [[0, 0, 1, 0, 0]]
    assert made({"i": ids}, Transform("t", "one_hot", ["i"], [8])).tolist()[0] == [0.0] * 7 + [1.0]


def test_transforms_exceeding_bounds_are_refused_in_one_line(monkeypatch):
    many = Ragged(np.arange(300, dtype=np.int64), np.array([0, 300], np.int64))
    cross = Transform("t", "cross", ["a", "b"], [10, 1])
    with pytest.raises(BadInput, match=f"inputs a, b: expected at most {MAX_CROSSED} crossed values per row"):
        made({"a": many, "b": many}, cross)
    none = Ragged(np.empty(0, np.int64), np.zeros(2, np.int64))
    assert len(made({"a": many, "b": many, "c": none}, Transform("t", "cross", ["a", "b", "c"], [10, 1])).values) == 0
    monkeypatch.setattr(flat_columns, "MAX_VALUES", 1000)
    with pytest.raises(BadInput, match="inputs a, b: expected a result of at most 1000 values"):
        made({"a": many, "b": np.arange(5, dtype=np.int64)}, cross)
    with pytest.raises(BadInput, match="inputs m: expected whole numbers of 0 or more, got -1"):
        made({"m": np.array([[-1, 0]], np.int64)}, Transform("t", "tally", ["m"], [5, 1]))
    monkeypatch.setattr(evaluation, "MAX_NBYTES", 100)
    join = Transform("t", "join", ["a", "b"], texts=["", "", ""])
    with pytest.raises(BadInput, match="inputs a, b: expected at most 100 bytes of joined strings, got 108"):
        made({"a": Strings.of(["x" * 50]), "b": Strings.of(["yyyy"] * 2)}, join)
    with pytest.raises(
        BadInput, match=r"inputs a, b: expected columns with equal numbers of rows \(or 1\), got 2 and 3"
    ):
        made({"a": Strings.of(["x"] * 2), "b": Strings.of(["y"] * 3)}, join)
