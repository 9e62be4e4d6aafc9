"""Columns of entities joined to events by key, and by time where the table has one."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data import tabular
from freshet_serving.models.data.entity_table import EntitySource, EntityTable
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Field, Schema
from freshet_serving.processor.errors import BadInput

KEY, PRICE, TAGS = Field("item", "id"), Field("price", "float"), Field("tags", "strings")


def table_of(tmp_path, rows, time=""):
    """rows: (item, time, price, tags)."""
    item, at, price, tags = zip(*rows)
    path = tmp_path / "items.parquet"
    columns = {"item": pa.array(item, pa.int64()), "at": pa.array(at, pa.float64()), "price": pa.array(price)}
    pq.write_table(pa.table(columns | {"tags": pa.array(tags, pa.list_(pa.string()))}), path)
    return EntityTable("item", DataConfig(str(path), "parquet", (), time), KEY, [PRICE, TAGS])


def tags_of(column):
    values = column.values.tolist()
    return [values[a:b] for a, b in zip(column.row_splits, column.row_splits[1:])]


def test_last_row_of_a_key_is_read(tmp_path):
    table = table_of(tmp_path, [(1, 0, 1.0, ["a"]), (2, 0, 2.0, []), (1, 0, 3.0, ["b", "c"])])
    found = table.columns(np.array([2, 1, 9, 1]), None)
    np.testing.assert_array_equal(found["price"], np.float32([2, 3, np.nan, 3]))
    assert tags_of(found["tags"]) == [[], [b"b", b"c"], [], [b"b", b"c"]]
    keys, columns = table.newest()
    assert keys.tolist() == [1, 2]
    assert columns["price"].tolist() == [3, 2]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 10)), min_size=1, max_size=30),
)
def test_row_at_the_time_of_the_event_is_read(tmp_path_factory, rows, events):
    rows = sorted(rows, key=lambda row: row[1])
    made = [(item, float(at), float(n), []) for n, (item, at) in enumerate(rows)]
    table = table_of(tmp_path_factory.mktemp("entities"), made, "at")
    items, times = (np.array(values) for values in zip(*events))
    found = table.columns(items, times.astype(np.float64))["price"]
    for item, time, price in zip(items, times, found):
        before = [row[2] for row in made if row[0] == item and row[1] <= time]
        np.testing.assert_array_equal(price, np.float32(before[-1] if before else np.nan))


def test_source_has_the_columns_of_the_table(tmp_path):
    table = table_of(tmp_path, [(n, 0, float(n), [f"t{n}"]) for n in range(5)])
    events = pa.table({"item": pa.array([3, 1, 7, 1, 0]), "user": pa.array(range(5)), "clicked": pa.array([0.0] * 5)})
    pq.write_table(events, tmp_path / "events.parquet")
    inner = open_source(DataConfig(str(tmp_path / "events.parquet"), "parquet", "clicked"), [KEY, Field("user", "id")])
    source = EntitySource(inner, [table], [Field("user", "id"), PRICE, KEY, TAGS])
    assert source.schema.names == ["user", "price", "item", "tags"]
    assert source.count_rows() == 5
    for rows in (1, 2, 5):
        batches = list(source.batches(rows))
        prices = np.concatenate([b.columns["price"] for b in batches])
        np.testing.assert_array_equal(prices, np.float32([3, 1, np.nan, 1, 0]))
        assert [t for b in batches for t in tags_of(b.columns["tags"])] == [[b"t3"], [b"t1"], [], [b"t1"], [b"t0"]]


def test_table_without_a_column_is_refused_by_section(tmp_path):
    pq.write_table(pa.table({"item": pa.array([1])}), tmp_path / "items.parquet")
    with pytest.raises(BadInput, match=r"entities\.item: .*price"):
        EntityTable("item", DataConfig(str(tmp_path / "items.parquet"), "parquet", ()), KEY, [PRICE])


def test_refusal_of_a_table_names_the_entitys_own_key(tmp_path):
    missing = DataConfig(str(tmp_path / "none.parquet"), "parquet", ())
    with pytest.raises(BadInput, match=r"^entities\.item\.path: .* does not exist"):
        EntityTable("item", missing, KEY, [PRICE])
    with pytest.raises(BadInput, match=r"^entity 'item': .* does not exist"):
        EntityTable("item", missing, KEY, [PRICE], "entity 'item'")


def test_stream_is_refused_where_it_is_not_followed():
    stream = DataConfig("redis://host/items", "redis", ())
    with pytest.raises(BadInput, match=r"^entities\.item\.path: .* a stream, which only freshet train --follow reads"):
        EntityTable("item", stream, KEY, [PRICE])


def test_small_file_that_becomes_a_large_table_is_refused(tmp_path, monkeypatch):
    rows = 100_000
    tags = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["x" * 100])
    pq.write_table(
        pa.table({"item": np.zeros(rows, np.int8), "word": tags}), tmp_path / "a.parquet", store_schema=False
    )
    monkeypatch.setattr(tabular, "HELD_NBYTES", 2 << 20)
    data = DataConfig(str(tmp_path / "a.parquet"), "parquet", ())
    with pytest.raises(BadInput, match=r"^entities\.item: a.parquet: expected a table of at most 2 MiB in memory"):
        EntityTable("item", data, KEY, [Field("word", "string")])


def test_unsigned_keys_are_found_by_their_bits(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"item": pa.array([2**63, 5], pa.uint64()), "price": [1.5, 2.5]}), path)
    table = EntityTable("item", DataConfig(str(path), "parquet", ()), KEY, [PRICE])
    assert table.columns(np.array([-(2**63), 5, 6]), None)["price"].tolist()[:2] == [1.5, 2.5]


def test_key_that_must_come_once_is_refused_twice(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"item": [1, 1, 2], "price": [1.5, 2.5, 3.5]}), path)
    data = DataConfig(str(path), "parquet", ())
    with pytest.raises(
        BadInput, match=r"^user_table\.u\.path: expected each item once, got 1 more rows .*user_table\.u\.time"
    ):
        EntityTable("u", data, KEY, [PRICE], section="user_table.u", once=True)


def test_table_that_lacks_most_keys_is_told(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"item": [1, 2], "price": [1.5, 2.5]}), path)
    table = EntityTable("item", DataConfig(str(path), "parquet", ()), KEY, [PRICE])

    def lines(*keys):
        rows = SimpleNamespace(
            schema=Schema((KEY,), "clicked"),
            batches=lambda rows: iter([Batch({"item": np.array(keys)}, np.zeros(len(keys), np.float32), None, 0)]),
        )
        return EntitySource(rows, [table], [KEY, PRICE]).unknown_lines()

    assert lines(1, 2, 3) == []
    (line,) = lines(1, 4, 3)
    assert line.startswith("entities.item: 67% of the first 3 rows have keys (item) that the table lacks")
