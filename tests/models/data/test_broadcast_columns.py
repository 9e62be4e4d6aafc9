"""What a request sent once, in every row of it again: by piece, by batch, and never more than asked for at a time."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data import files as module
from freshet_serving.models.data.broadcast_columns import (
    broadcast_columns,
    fill_forward,
    fill_forward_rows,
    filled,
    once_nbytes,
    pick_once,
    row_nbytes,
    shared_rows,
    take_once,
    weighted_ranges,
)
from freshet_serving.models.data.files import ParquetFile

TYPES = {
    "user": pa.int64(),
    "f": pa.float32(),
    "word": pa.binary(),
    "seen": pa.list_(pa.int64()),
    "tags": pa.list_(pa.binary()),
}
ABOUT = {b"freshet": json.dumps({"model": "ctr", "features": [{"name": name} for name in TYPES]}).encode()}
SCHEMA = pa.schema([*TYPES.items(), ("label", pa.float32())], ABOUT)
VALUES = {
    "user": st.integers(0, 9),
    "f": st.floats(0, 1, width=32),
    "word": st.binary(max_size=3),
    "seen": st.lists(st.integers(0, 9), max_size=3),
    "tags": st.lists(st.binary(max_size=3), max_size=2),
}


@st.composite
def recordings(draw):
    """(as recorded, as each row is to be read)"""
    sent, read = [], []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 4))
        request = [{"label": float(n)} for n in range(rows)]
        plain = [dict(row) for row in request]
        for name, values in VALUES.items():
            once = draw(st.booleans())
            for n in range(rows):
                value = plain[0][name] if once and n else draw(values)
                plain[n][name] = value
                request[n][name] = None if once and n else value
        sent += request
        read += plain
    return sent, read


@settings(max_examples=40)
@given(recordings(), st.integers(1, 5), st.sampled_from((1, 40, 1 << 20)))
def test_every_row_gets_its_request_values_for_any_batching(made, batch_rows, nbytes):
    sent, read = made
    batches = pa.Table.from_pylist(sent, SCHEMA).to_batches(batch_rows)
    found = list(fill_forward(batches, broadcast_columns(SCHEMA), nbytes))
    assert [row for batch in found for row in batch.to_pylist()] == read
    assert {batch.schema for batch in found} == {SCHEMA}


@settings(max_examples=40)
@given(recordings(), st.integers(1, 5), st.data())
def test_any_rows_in_any_order_keep_their_values_once(made, batch_rows, data):
    sent, read = made
    table, columns = pa.Table.from_pylist(sent, SCHEMA), broadcast_columns(SCHEMA)
    some = st.lists(st.integers(0, len(sent) - 1), min_size=1, max_size=8)
    ascending, mixed = np.unique(data.draw(some)), np.array(data.draw(some))
    picked = pa.Table.from_batches(pick_once(table.to_batches(batch_rows), columns, ascending), SCHEMA)
    taken = take_once(table, mixed)
    for rows, wanted in ((picked, ascending), (taken, mixed), (take_once(taken, np.arange(len(mixed))), mixed)):
        values = zip(*(filled(rows, name).to_pylist() for name in SCHEMA.names))
        assert [dict(zip(SCHEMA.names, row)) for row in values] == [read[n] for n in wanted]
    assert taken["seen"].null_count == int((np.diff(shared_rows(table, "seen")[mixed]) == 0).sum())
    assert once_nbytes(table, mixed) == sum(
        int(row_nbytes(taken[name].combine_chunks()).sum()) for name in taken.column_names
    )


def test_long_list_is_repeated_in_bounded_parts():
    rows = [{"seen": list(range(1000)) if n == 0 else None, "label": 0.0} for n in range(100)]
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches()
    found = list(fill_forward(batches, broadcast_columns(SCHEMA), 80_000))
    assert max(batch.num_rows for batch in found) < 10
    assert sum(batch.num_rows for batch in found) == 100


def test_file_can_be_read_from_any_row(tmp_path, monkeypatch):
    """Of two row groups, each a request; pieces are row groups, and a start within one is filled all the same."""
    monkeypatch.setattr(module, "PIECE_ROWS", 1)
    rows = [{"user": n // 3, "seen": [n] if n % 3 == 0 else None, "label": 0.0} for n in range(6)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "a.parquet", row_group_size=3)
    file = ParquetFile(tmp_path / "a.parquet")
    for start in range(6):
        batches = [b for piece in file.pieces(file.types(["seen"]), start) for b in piece.read()]
        assert [v for b in batches for v in b["seen"].to_pylist()] == [[0], [0], [0], [3], [3], [3]][start:]


@pytest.mark.parametrize("said", [b"{}", b"{", b"[]", b'{"features": [1]}', b'{"features": [{}]}', b"[" * 9999])
def test_nulls_of_foreign_files_stay_null(said):
    assert broadcast_columns(pa.schema([("seen", TYPES["seen"])], {b"freshet": said})) == frozenset()
    assert broadcast_columns(pa.schema([("seen", TYPES["seen"])])) == frozenset()


def test_position_and_size_of_each_value_are_computed():
    lists = pa.array([[1, 2], None, [], None, [3]], pa.list_(pa.int64()))
    assert fill_forward_rows(lists).tolist() == [0, 0, 2, 2, 4]
    assert row_nbytes(lists).tolist() == [24, 8, 8, 8, 16]
    assert row_nbytes(lists.slice(2)).tolist() == [8, 8, 16]
    assert row_nbytes(pa.array([b"abc", None])).tolist() == [11, 8]
    assert row_nbytes(pa.array([[b"abc", b"d"]])).tolist() == [28]
    assert list(weighted_ranges(np.array([5, 5, 20, 1, 1]), 10)) == [(0, 2), (2, 3), (3, 5)]
    assert list(weighted_ranges(np.array([]), 10)) == []
