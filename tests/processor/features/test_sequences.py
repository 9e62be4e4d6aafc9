"""Lists of events of a request: three forms of one sequence, cut to its length, refused where they do not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.bound_request import BatchView, NonFiniteInput
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.features.sequences import SequenceColumns
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.kernels.rows import TABLE_FIELDS
from freshet_serving.processor.package import Feature, Input, Manifest, Output, SequenceEntry, TableEntry, validate
from freshet_serving.processor.package.sequences import SequenceColumn

LENGTH = 4


def plan(keep="newest"):
    columns = [
        SequenceColumn("h.item", "ids", "h.item", "item", 0, 3 * LENGTH),
        SequenceColumn("h.kind", "strings", "h.kind", "kind", 3 * LENGTH, 3 * LENGTH),
        SequenceColumn("h.price", "floats", "h.price", "", 6 * LENGTH, LENGTH, True, 2.0, 0.25),
    ]
    entry = SequenceEntry("h", columns, LENGTH, 7 * LENGTH, ["h.item", "h.kind", "h.price"], keep)
    inputs = [Input("item", "int64"), Input("h.item", "int64", ragged=True), Input("h.kind", "string", ragged=True)]
    inputs += [Input("h.price", "float32", ragged=True)]
    tables = [TableEntry("item", 2, 0), TableEntry("kind", 2, 0)]
    feature = Feature("item", "id", "item", table="item", width=2)
    return SparsePlan(
        Manifest("m", 1, "a", 0.0, inputs, [feature], tables, [Output("score")], 2, {}, {}, sequences=[entry])
    )


def lists(rows):
    """The same sequence as a request sends it in each form."""
    kinds = [[str(i % 3) for i in row] for row in rows]
    items, texts = Ragged.of(rows), Ragged(Strings.of([k for row in kinds for k in row]), Ragged.of(rows).row_splits)
    prices = Ragged((items.values % 1000).astype(np.float32) / 8, items.row_splits)
    longest = max(map(len, rows))
    counts = np.array([len(row) for row in rows])
    padded = np.array([row + [7] * (longest - len(row)) for row in rows], np.int64)
    flat = Strings.of([k for row in kinds for k in row + ["?"] * (longest - len(row))])
    padded_prices = (padded % 1000).astype(np.float32) / 8
    return [
        {"h.item": items, "h.kind": texts, "h.price": prices},
        {"h.item": items.values, "h.kind": texts.values, "h.price": prices.values, "h.row_splits": items.row_splits},
        {"h.item": padded, "h.kind": flat, "h.price": padded_prices, "h.lengths": counts},
    ]


def read(plan, columns, rows):
    bound = plan.bind_inputs({"item": np.arange(rows), **columns})
    found = [(b.values.tolist(), b.splits.tolist()) for b in bound.keep if b.splits is not None]
    return found, bound.rows


@given(st.lists(st.lists(st.integers(0, 2**62), max_size=9), min_size=1, max_size=6))
def test_three_forms_are_one_sequence(rows):
    made = plan()
    found = [read(made, form, len(rows)) for form in lists(rows)]
    assert found[0] == found[1] == found[2]
    items, splits = found[0][0][0]
    assert [items[a:b] for a, b in zip(splits, splits[1:])] == [row[-LENGTH:] for row in rows]
    assert found[0][0][1][1] == splits
    prices, ends = found[0][0][2]
    assert ends == splits
    assert prices == [np.float32(item % 1000) / 8 for item in items]


def test_oldest_events_are_kept_and_cuts_counted():
    made = plan("oldest")
    ((items, splits), *_), rows = read(made, lists([[1, 2, 3, 4, 5, 6], [7]])[0], 2)
    assert (items, splits, rows) == ([1, 2, 3, 4, 7], [0, 4, 5], 2)
    assert made._binder._events.cut == 1


def test_one_users_sequence_counts_for_all_candidates():
    _, rows = read(plan(), lists([[1, 2]])[0], 5)
    assert rows == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h.kind": Ragged.of([["a"], []])}, "'h.kind': expected lists as long as those of 'h.item'"),
        ({"h.price": Ragged.of([[0.5], [1.5]])}, "'h.price': expected lists as long as those of 'h.item'"),
        ({"h.price": Ragged.of([[1, 2], [3]])}, "'h.price': expected float32 values, got int64"),
        ({"h.price": Ragged.of([["a", "b"], ["c"]])}, "'h.price': expected float32 values, got strings"),
        ({"h.price": np.zeros(2, np.float32)}, "'h.price': expected ragged rows"),
        ({"h.item": Ragged.of([[0.5, 1.5], [2.5]])}, "'h.item': expected int64 values, got float32"),
        ({"h.item": np.zeros(2, np.int64)}, "'h.item': expected ragged rows"),
        (
            {"h.lengths": np.array([1, 1]), "h.row_splits": np.array([0, 1])},
            "'h.row_splits': expected it or 'h.lengths'",
        ),
        ({"h.lengths": np.array([1.0, 1.0])}, "'h.lengths': expected int64 values"),
        ({"h.item": Ragged(np.arange(3), np.array([0, 2, 9]))}, "'h.item': expected row_splits ascending from 0 to 3"),
        (
            {"h.item": Ragged(np.arange(3), np.array([[0, 1], [2, 3]]))},
            "'h.item': expected row_splits ascending from 0",
        ),
    ],
)
def test_columns_that_do_not_belong_together_are_refused(change, message):
    columns = lists([[1, 2], [3]])[0]
    with pytest.raises(BadInput, match=message):
        read(plan(), columns | change, 2)


@pytest.mark.parametrize("lengths", [[3, 1], [-1, 1], [1]])
def test_lengths_beyond_the_padding_are_refused(lengths):
    columns = lists([[1, 2], [3]])[2] | {"h.lengths": np.array(lengths)}
    with pytest.raises(BadInput, match=r"h\.(lengths|item|kind)"):
        read(plan(), columns, 2)


def test_each_row_of_histories_counts_with_all_of_its_places():
    rows = 50
    inputs = {"item": np.arange(rows)} | lists([[1]] * rows)[0]
    plan().bind_inputs(inputs, RequestLimits(max_ids=rows * LENGTH))
    with pytest.raises(TooLarge, match=f"got {rows} rows of histories of {LENGTH} each"):
        plan().bind_inputs(inputs, RequestLimits(max_ids=rows * LENGTH - 1))


NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def filled(made, bound, wide=LENGTH):
    """Return what the kernel writes of the floats of each row of a request, for so many places."""
    pooling = made.pooling(["h.price"])
    pooling.plan[:, [pool.WIDTH, pool.MAX_LENGTH]] = wide
    out = np.full((bound.rows, wide), 9, np.float32)
    spans, counts = np.array([[0, bound.rows]], np.int64), np.zeros((2, 2), np.int64)
    pooling.fill(BatchView(np.zeros((2, TABLE_FIELDS), np.int64), 0, [bound], spans, counts), out)
    return out


@given(st.lists(st.lists(NUMBERS, max_size=6), min_size=1, max_size=4))
def test_floats_are_scaled_as_a_feature_and_infinity_is_named(rows):
    made, ids = plan(), Ragged.of([[1] * len(row) for row in rows])
    prices = Ragged(np.array([v for row in rows for v in row], np.float32), ids.row_splits)
    kinds = Ragged(Strings.of(["a"] * len(prices.values)), ids.row_splits)
    bound = made.bind_inputs({"item": np.arange(len(rows)), "h.item": ids, "h.kind": kinds, "h.price": prices})
    wanted = np.zeros((len(rows), LENGTH), np.float32)
    for row, values in zip(wanted, rows):
        given = np.array(values[-LENGTH:], np.float32)
        logarithm = (np.sign(given) * np.log1p(np.abs(given.astype(np.float64)))).astype(np.float32)
        row[: len(given)] = np.where(np.isnan(given), 0, (logarithm - np.float32(2)) * np.float32(0.25))
    kept = [value for row in rows for value in row[-LENGTH:]]
    if np.isinf(kept).any():
        with pytest.raises(NonFiniteInput):
            filled(made, bound)
        assert str(made.non_finite_error(bound)).startswith("input 'h.price': expected finite numbers (or NaN), got")
        return
    np.testing.assert_allclose(filled(made, bound), wanted, rtol=1e-6)
    assert made.non_finite_error(bound) is None
    assert made.largest(bound) == pytest.approx(np.abs(wanted).max() if kept else 0, rel=1e-6)


def test_infinite_float_is_named_with_its_row_and_event():
    columns = lists([[1], [2, 3, 4]])[0]
    columns["h.price"].values[2] = -np.inf
    made = plan()
    bound = made.bind_inputs({"item": np.arange(2), **columns})
    message = r"input 'h.price': expected finite numbers \(or NaN\), got -inf in row 1, column 1"
    with pytest.raises(NonFiniteInput, match=message):
        raise made.non_finite_error(bound)


def test_one_users_floats_are_those_of_every_row_and_shorter_places():
    made = plan()
    bound = made.bind_inputs({"item": np.arange(3), **lists([[80, 160]])[0]})
    wanted = [(np.log1p(10) - 2) / 4, (np.log1p(20) - 2) / 4]
    np.testing.assert_allclose(filled(made, bound), [[*wanted, 0, 0]] * 3, rtol=1e-6)
    np.testing.assert_allclose(filled(made, bound, 2), [wanted] * 3, rtol=1e-6)


def test_empty_history_has_floats_of_any_type():
    made = plan()
    bound = made.bind_inputs({"item": np.arange(1), **lists([[]])[0], "h.price": Ragged.of([[]])})
    assert filled(made, bound).tolist() == [[0] * LENGTH]


def padded_plan(padding):
    column = SequenceColumn("h.item", "ids", "h.item", "item", 0, 3 * LENGTH)
    price = SequenceColumn("h.price", "floats", "h.price", "", 3 * LENGTH, LENGTH)
    entry = SequenceEntry("h", [column, price], LENGTH, 4 * LENGTH, ["h.item", "h.price"], padding=padding)
    inputs = [Input("item", "int64"), Input("h.item", "int64", ragged=True), Input("h.price", "float32", ragged=True)]
    feature = Feature("item", "id", "item", table="item", width=2)
    tables = [TableEntry("item", 2, 0)]
    return Manifest("m", 1, "a", 0.0, inputs, [feature], tables, [Output("score")], 2, {}, {}, sequences=[entry])


@given(st.lists(st.lists(st.integers(-2, 3), max_size=9), min_size=1, max_size=6), st.sampled_from([0, -1, 3]))
def test_padding_is_left_out_wherever_it_stands(rows, padding):
    items = Ragged.of(rows) if any(rows) else Ragged(np.empty(0, np.int64), np.zeros(len(rows) + 1, np.int64))
    prices = Ragged(np.arange(len(items.values), dtype=np.float32), items.row_splits)
    aligned = SequenceColumns(padded_plan(padding)).aligned({"h.item": items, "h.price": prices})
    at, expected = 0, []
    for row in rows:
        expected.append([(value, at + i) for i, value in enumerate(row) if value != padding][-LENGTH:])
        at += len(row)
    for name, part in (("h.item", 0), ("h.price", 1)):
        ends, values = aligned[name].row_splits, aligned[name].values.tolist()
        assert [values[a:b] for a, b in zip(ends, ends[1:])] == [[event[part] for event in row] for row in expected]


def test_padding_does_not_count_as_a_cut_list():
    columns = SequenceColumns(padded_plan(0))
    columns.aligned({"h.item": Ragged.of([[5, 6, 0, 0, 0, 0, 0]])})
    assert columns.cut == 0


@pytest.mark.parametrize("padding", ["0", "x" * 300, 2**63, -(2**63) - 1])
def test_padding_of_another_type_is_refused(padding):
    with pytest.raises(BadInput, match=r"sequences\[h\].padding: expected a value of its first input, got "):
        validate(padded_plan(padding))


@pytest.mark.parametrize("padding", [None, 0, -5])
def test_padding_survives_the_manifest(padding):
    manifest = padded_plan(padding)
    assert Manifest.from_json(manifest.to_json()).sequences == manifest.sequences
    assert (b'"padding"' in manifest.to_json()) == (padding is not None)
