"""Lists of events of a request: three forms of one sequence, cut to its length, refused where they do not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import (
    Feature,
    Input,
    Manifest,
    Output,
    SequenceEntry,
    TableEntry,
)
from freshet_serving.processor.package.sequences import SequenceColumn

LENGTH = 4


def plan(keep="newest"):
    columns = [
        SequenceColumn("h.item", "ids", "h.item", "item", 0, 3 * LENGTH),
        SequenceColumn("h.kind", "strings", "h.kind", "kind", 3 * LENGTH, 3 * LENGTH),
    ]
    entry = SequenceEntry("h", columns, LENGTH, 6 * LENGTH, ["h.item", "h.kind"], keep)
    inputs = [Input("item", "int64"), Input("h.item", "int64", ragged=True), Input("h.kind", "string", ragged=True)]
    tables = [TableEntry("item", 2, 0), TableEntry("kind", 2, 0)]
    feature = Feature("item", "id", "item", table="item", width=2)
    return SparsePlan(
        Manifest("m", 1, "a", 0.0, inputs, [feature], tables, [Output("score")], 2, {}, {}, sequences=[entry])
    )


def lists(rows):
    """The same sequence as a request sends it in each form."""
    kinds = [[str(i % 3) for i in row] for row in rows]
    items, texts = Ragged.of(rows), Ragged(Strings.of([k for row in kinds for k in row]), Ragged.of(rows).row_splits)
    longest = max(map(len, rows))
    counts = np.array([len(row) for row in rows])
    padded = np.array([row + [7] * (longest - len(row)) for row in rows], np.int64)
    flat = Strings.of([k for row in kinds for k in row + ["?"] * (longest - len(row))])
    return [
        {"h.item": items, "h.kind": texts},
        {"h.item": items.values, "h.kind": texts.values, "h.row_splits": items.row_splits},
        {"h.item": padded, "h.kind": flat, "h.lengths": counts},
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
    (items, splits), _ = found[0][0]
    assert [items[a:b] for a, b in zip(splits, splits[1:])] == [row[-LENGTH:] for row in rows]
    assert found[0][0][1][1] == splits


def test_oldest_events_are_kept_and_cuts_counted():
    made = plan("oldest")
    ((items, splits), _), rows = read(made, lists([[1, 2, 3, 4, 5, 6], [7]])[0], 2)
    assert (items, splits, rows) == ([1, 2, 3, 4, 7], [0, 4, 5], 2)
    assert made._events.cut == 1


def test_one_users_sequence_counts_for_all_candidates():
    _, rows = read(plan(), lists([[1, 2]])[0], 5)
    assert rows == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h.kind": Ragged.of([["a"], []])}, "'h.kind': expected lists as long as those of 'h.item'"),
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
