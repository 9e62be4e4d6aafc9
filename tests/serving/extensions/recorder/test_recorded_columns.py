"""Requests as columns of a recording and back: any inputs, sent once or for every row, of any layout in memory."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="recording needs pyarrow")

from freshet_serving.processor.columns import Ragged, Strings  # noqa: E402
from freshet_serving.processor.errors import Corrupt  # noqa: E402
from freshet_serving.processor.generation import Generation  # noqa: E402
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output  # noqa: E402
from freshet_serving.processor.sessions.request import PredictReply  # noqa: E402
from freshet_serving.serving.extensions.recorder.recorded_columns import RecordedColumns, request_of  # noqa: E402
from tests.support.packages import manifest  # noqa: E402

INPUTS = [
    Input("user", "int64"),
    Input("ids", "int64", 2),
    Input("raw", "float32", 3),
    Input("word", "string"),
    Input("words", "string", 2),
    Input("seen", "int64", ragged=True),
    Input("tags", "string", ragged=True),
    Input("spent", "float32", ragged=True),
]
MADE = replace(
    manifest(),
    inputs=INPUTS,
    features=[
        Feature("u", "id", "user", table="user", width=4),
        # Two features of one column: its values are recorded twice.
        Feature("t", "strings", "tags", table="tag", width=4),
        Feature("t2", "strings", "tags", table="tag", width=4),
    ],
    outputs=[Output("score", 1), Output("parts", 3)],
)


@st.composite
def requests(draw):
    """(inputs, rows)"""
    rows = draw(st.integers(1, 5))
    made = {}
    for spec in INPUTS:
        n = draw(st.sampled_from((1, rows)))
        width = spec.columns or 1
        lengths = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)) if spec.ragged else [width] * n
        count = sum(lengths)
        if spec.dtype == "string":
            texts = draw(st.lists(st.binary(max_size=4), min_size=count + 1, max_size=count + 1))
            # A slice of a larger buffer.
            whole = Strings.of(texts)
            values = Strings(whole.data, whole.offsets[1:])
        elif spec.dtype == "float32":
            numbers = st.floats(width=32, allow_nan=True)
            values = np.array(draw(st.lists(numbers, min_size=count, max_size=count)), np.float32)
        else:
            numbers = st.integers(-(2**63), 2**63 - 1)
            values = np.array(draw(st.lists(numbers, min_size=count, max_size=count)), np.int64)
        if spec.ragged:
            values = Ragged(values, np.cumsum([0, *lengths], dtype=np.int64))
        elif spec.columns and spec.dtype != "string":
            values = values.reshape(n, width)
        made[spec.name] = values
    return made, rows


def batch_of(inputs, rows):
    scores = {
        "score": np.ones((rows, 1), np.float32),
        "parts": np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3),
    }
    reply = PredictReply(scores, Generation(1, 0), "small")
    return RecordedColumns(MADE).batch(inputs, rows, "abc", reply, 1.5)


def same(one, other):
    """Equal in type, shape and bits; NaN equals NaN."""
    if isinstance(one, Ragged):
        return one.row_splits.tolist() == other.row_splits.tolist() and same(one.values, other.values)
    if isinstance(one, Strings):
        return one.tolist() == other.tolist()
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def about():
    return json.loads(RecordedColumns(MADE).schema.metadata[b"freshet"])


@settings(max_examples=50)
@given(requests())
def test_recorded_request_round_trips(made):
    inputs, rows = made
    table = pa.Table.from_batches([batch_of(inputs, rows)])
    found = request_of(table, about()["features"], INPUTS)
    assert all(same(inputs[name], found[name]) for name in inputs)


@settings(max_examples=50)
@given(requests())
def test_recorded_batch_uses_at_most_the_counted_bytes(made):
    inputs, rows = made
    held = RecordedColumns(MADE).held_nbytes(inputs, rows, len("abc") + len("1.0"))
    assert batch_of(inputs, rows).nbytes <= held


def test_multi_column_outputs_are_lists():
    inputs = {spec.name: column for spec, column in zip(INPUTS, plain_columns(2))}
    batch = batch_of(inputs, 2)
    assert batch["freshet.output.parts"].to_pylist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["freshet.output.score"].to_pylist() == [1, 1]


def plain_columns(rows):
    yield np.arange(rows)
    yield np.zeros((rows, 2), np.int64)
    yield np.zeros((rows, 3), np.float32)
    yield Strings.of(["a"] * rows)
    yield Strings.of(["a"] * 2 * rows)
    yield Ragged(np.arange(rows), np.arange(rows + 1))
    yield Ragged(Strings.of(["a"] * rows), np.arange(rows + 1))
    yield Ragged(np.zeros(rows, np.float32), np.arange(rows + 1))


def test_older_recordings_with_repeated_columns_are_read_equally():
    inputs = {spec.name: column for spec, column in zip(INPUTS, plain_columns(3))}
    inputs["seen"] = Ragged(np.array([5, 6]), np.array([0, 2]))
    table = pa.Table.from_batches([batch_of(inputs, 3)])
    at = table.schema.get_field_index("freshet.input.seen")
    table = table.set_column(at, table.schema.field(at), pa.array([[5, 6]] * 3, pa.list_(pa.int64())))
    found = request_of(table, about()["features"], INPUTS)
    assert (found["seen"].values.tolist(), found["seen"].row_splits.tolist()) == ([5, 6] * 3, [0, 2, 4, 6])


@pytest.mark.parametrize("values", [[None, 1, 2], [1, None, 2], [None, None, None], [None, 1, None]])
def test_unexpected_nulls_are_corruption(values):
    inputs = {spec.name: column for spec, column in zip(INPUTS, plain_columns(3))}
    table = pa.Table.from_batches([batch_of(inputs, 3)])
    at = table.schema.get_field_index("u")
    table = table.set_column(at, table.schema.field(at), pa.array(values, pa.int64()))
    with pytest.raises(Corrupt, match="null"):
        request_of(table, about()["features"], INPUTS)
