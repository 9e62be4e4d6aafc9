"""Canonical columns: what text and typed cells are read as, and how arrays become a batch."""

import numpy as np
import pyarrow as pa
import pytest

from freshet_serving.models.data.canonical import TEXT_TYPES, CanonicalColumns, join_parts
from freshet_serving.models.data.source import Field, Schema
from freshet_serving.processor.errors import BadInput

SCHEMA = Schema((Field("user", "id"), Field("tags", "ids")), ("clicked", "bought"), "ts", "weight")


def test_text_columns_are_converted_to_their_kind_and_booleans_stay():
    types = {"user": pa.string(), "tags": pa.string(), "clicked": pa.bool_(), "bought": pa.string()}
    types |= {"ts": pa.timestamp("s"), "weight": pa.string()}
    read = CanonicalColumns(SCHEMA, text=True).check(types)
    assert read == {
        "user": TEXT_TYPES["id"],
        "tags": pa.string(),
        "clicked": pa.bool_(),
        "bought": pa.float64(),
        "weight": pa.float64(),
        "ts": pa.timestamp("s"),
    }


def test_typed_columns_keep_their_types_and_unusable_ones_are_refused():
    types = dict.fromkeys(("user", "clicked", "bought", "ts", "weight"), pa.int32()) | {"tags": pa.list_(pa.int8())}
    columns = CanonicalColumns(SCHEMA, text=False)
    assert columns.check(types) == types
    with pytest.raises(BadInput, match=r"features.user: expected integers for kind 'id', got a column of type string"):
        columns.check(types | {"user": pa.string()})

    assert columns.check(types | {"tags": pa.string()})["tags"] == pa.string()


def test_typed_columns_have_lists_as_text_too():
    columns = CanonicalColumns(Schema((Field("tags", "ids"),), "y", list_separator=";"), text=False)
    table = pa.RecordBatch.from_pydict({"tags": ["3;4", None, ""], "y": [0, 1, 0]})
    assert columns.arrays(table, str)[0].to_pylist() == [[3, 4], [], []]
    with pytest.raises(BadInput, match=r"between ';', got '3,4' at 0; data.list_separator names another separator"):
        columns.arrays(pa.RecordBatch.from_pydict({"tags": ["3,4"], "y": [0]}), str)


def test_parts_become_one_batch_with_labels_weight_and_time():
    columns = CanonicalColumns(SCHEMA, text=True)
    chunk = {"user": [1, 2], "tags": ["3|4", ""], "clicked": [1.0, 0.0], "bought": [0.0, 1.0]}
    chunk |= {"weight": [2.0, 1.0], "ts": [5.0, 6.0]}
    arrays = columns.arrays(pa.RecordBatch.from_pydict(chunk), lambda row: f"row {row}")
    batch = columns.batch(join_parts([arrays, arrays]), 10)
    assert (batch.start, len(batch)) == (10, 4)
    assert batch.columns["user"].tolist() == [1, 2, 1, 2]
    assert batch.columns["tags"].row_splits.tolist() == [0, 2, 2, 4, 4]
    assert np.array_equal(batch.label, [[1, 0], [0, 1], [1, 0], [0, 1]])
    assert (batch.weight.tolist(), batch.time.tolist()) == ([2, 1, 2, 1], [5, 6, 5, 6])
