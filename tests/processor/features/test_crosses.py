"""Crosses made by one call have the ids of crosses that are made one by one, to the bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.features.crosses import cross, equal
from freshet_serving.processor.features.evaluation import OPS, Transforms
from freshet_serving.processor.features.flat_columns import FlatColumn
from freshet_serving.processor.package import Input, Manifest, Transform

ROWS = st.integers(1, 5)
VALUES = st.integers(-(2**63), 2**63 - 1)
WINDOWS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=4)
BUCKETS = st.sampled_from([1, 2, 3, 7, 1000, 1_000_000, 2**20, 2**40 + 7, 2**62, 2**63 - 1]) | st.integers(1, 2**63 - 1)


@st.composite
def columns(draw, rows):
    """A column of `rows` rows or of one, as lists or with one or two values a row, of numbers or strings."""
    rows = draw(st.sampled_from([1, rows]))
    width = draw(st.sampled_from([0, 1, 2]))
    lengths = [width] * rows if width else draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows))
    numbers = draw(st.lists(VALUES, min_size=sum(lengths), max_size=sum(lengths)))
    words = draw(st.booleans())
    values = Strings.of([str(n) for n in numbers]) if words else np.array(numbers, np.int64)
    if not width:
        return Ragged(values, np.cumsum([0, *lengths])), ("string" if words else "int64", 0, True)
    shaped = values if words or width == 1 else values.reshape(rows, width)
    return shaped, ("string" if words else "int64", 0 if width == 1 else width, False)


def flat(column, shape):
    values = column.values if isinstance(column, Ragged) else column
    width = shape[1] or 1
    if shape[2]:
        return FlatColumn(values, len(column), 1, np.asarray(column.row_splits))
    values = values if isinstance(values, Strings) else values.reshape(-1)
    return FlatColumn(values, len(values) // width, width)


@settings(max_examples=100, deadline=None)
@given(st.data(), ROWS, WINDOWS, BUCKETS, st.integers(0, 2**63 - 1), st.booleans())
def test_windows_of_a_column_cross_as_lists_of_their_own(data, rows, windows, buckets, key, swapped):
    (history, of_history), (other, of_other) = data.draw(columns(rows)), data.draw(columns(rows))
    if not of_history[2]:
        windows = []
    inputs, sides = {"h": history, "o": other}, ["o", "h"] if swapped else ["h", "o"]
    transforms = [Transform("whole", "cross", sides, [buckets, key])]
    for n, window in enumerate(windows):
        transforms.append(Transform(f"e{n}", "newest", ["h"], list(window)))
        read = [f"e{n}" if side == "h" else side for side in sides]
        transforms.append(Transform(f"c{n}", "cross", read, [buckets, key]))
    specs = [Input(name, *shape) for name, shape in (("h", of_history), ("o", of_other))]
    made = Transforms(Manifest("m", 1, "", 0.0, specs, [], [], [], 1, {}, {}, transforms=transforms)).run(inputs)

    known = {"h": flat(history, of_history), "o": flat(other, of_other)}
    for t in transforms:
        given_columns = [known[name] for name in t.inputs]
        known[t.name] = cross(t, given_columns) if t.op == "cross" else OPS[t.op](t, given_columns)
        if t.op == "cross":
            column = made[t.name]
            ids = column.values if isinstance(column, Ragged) else column
            assert ids.reshape(-1).tolist() == known[t.name].values.tolist()
            if isinstance(column, Ragged):
                assert column.row_splits.tolist() == known[t.name].bounds.tolist()
    assert not any(name.startswith("e") for name in made)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 5), st.booleans(), st.booleans(), st.booleans())
def test_equal_events_are_those_of_a_plain_loop(data, rows, one_history, one_value, words):
    def drawn(n):
        return data.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))

    def column(numbers):
        # As requests have them: memory that nobody may write to, at any address.
        plain = np.frombuffer(b"-" + np.array(numbers, np.int64).tobytes(), np.int64, offset=1)
        return Strings.of([str(n) for n in numbers]) if words else plain

    lists = [drawn(data.draw(st.integers(0, 6))) for _ in range(1 if one_history else rows)]
    values = drawn(1 if one_value else rows)
    splits = np.cumsum([0, *map(len, lists)])
    listed = FlatColumn(column([n for each in lists for n in each]), len(lists), 1, splits)
    made = equal(Transform("t", "equal", ["h", "i"]), [listed, FlatColumn(column(values), len(values))])
    rows = max(len(lists), len(values))
    counts = [sum(n == values[r % len(values)] for n in lists[r % len(lists)]) for r in range(rows)]
    expected = [count.bit_length() for count in counts]
    assert made.values.tolist() == expected[: made.rows]
    assert made.rows in (1, rows)


def test_events_that_something_else_reads_stay_a_column():
    history, item = Ragged.of([[1, 2, 3]]), np.array([7, 8], np.int64)
    transforms = [
        Transform("e", "newest", ["h"], [0, 2]),
        Transform("c", "cross", ["e", "i"], [1000, 1]),
        Transform("none", "empty", ["e"]),
    ]
    specs = [Input("h", "int64", 0, True), Input("i", "int64")]
    made = Transforms(Manifest("m", 1, "", 0.0, specs, [], [], [], 1, {}, {}, transforms=transforms)).run(
        {"h": history, "i": item}
    )
    assert made["e"].values.tolist() == [2, 3]
    assert len(made["c"].values) == 4
    assert made["none"].tolist() == [0.0]
