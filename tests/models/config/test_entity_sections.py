"""[entities.NAME]: values that are accepted, and those that are refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Field
from freshet_serving.processor.errors import BadInput

FILE = {
    "model": {"name": "ctr"},
    "data": {"path": "x.parquet", "label": "clicked"},
    "features": {
        "item": {"kind": "id"},
        "price": {"kind": "float"},
        "dear": {"from": "price", "transform": "bucketize", "boundaries": [0.0]},
        "tags": {"kind": "strings"},
    },
}
ITEM = {"key": "item", "path": "items.parquet", "columns": ["price", "dear", "tags"]}


def entities(change=(), **sections):
    return parse_config(FILE | {"entities": {"item": ITEM | dict(change)} | sections}).entities


def test_columns_are_those_that_the_features_derive_from():
    (entity,) = entities()
    assert entity.key_field == Field("item", "id")
    assert entity.fields == (Field("price", "float"), Field("tags", "strings"))
    assert (entity.data.path, entity.data.format, entity.data.label) == ("items.parquet", "parquet", ())


@pytest.fixture
def table(tmp_path):
    columns = {
        "item": [1],
        "stock": [2],
        "weight": [0.5],
        "brand": ["x"],
        "sizes": [[1]],
        "at": pa.array([0], "date32"),
    }
    pq.write_table(pa.table(columns), tmp_path / "items.parquet")
    return str(tmp_path / "items.parquet")


def test_columns_for_filters_have_the_kinds_that_the_table_suggests(table):
    filters = ["stock", "brand", "price", "sizes", "weight"]
    (entity,) = entities({"path": table, "filters": filters, "kinds": {"stock": "float"}})
    kinds = {f.name: f.kind for f in entity.further}
    assert kinds == {"stock": "float", "brand": "string", "sizes": "ids", "weight": "float"}
    (alone,) = entities({"path": table, "filters": ["stock"], "columns": []})
    assert (alone.fields, alone.further) == ((), (Field("stock", "id"),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "tags"}, r"entities\.item\.key: expected a feature of kind id or string, got 'tags'"),
        ({"key": "x"}, r"entities\.item: expected one of item, price, dear, tags of the features, got 'x'"),
        ({"columns": ["x"]}, r"entities\.item: expected one of .*, got 'x'"),
        ({"columns": []}, r"entities\.item\.columns: expected features of the file"),
        ({"columns": ["item"]}, r"entities\.item\.columns: expected features of other columns than the key"),
        ({"time": "at"}, r"entities\.item\.time: expected data\.time as well"),
        ({"path": "ratings.dat", "format": "movielens"}, r"entities\.item\.path: expected a table"),
        ({"unknown": "keep"}, r"entities\.item\.unknown: expected one of default, drop, mark, got 'keep'"),
        ({"colour": 1}, r"entities\.item\.colour: unknown key"),
        ({"filters": ["colour"]}, r"entities\.item\.filters: .*colour"),
        (
            {"filters": ["item"]},
            r"entities\.item\.filters: expected other columns than the key and the time, got 'item'",
        ),
        ({"filters": ["at"]}, r"entities\.item\.filters: expected columns of numbers, strings, or lists"),
        (
            {"filters": ["stock"], "kinds": {"brand": "string"}},
            r"entities\.item\.kinds: expected one of stock .*'brand'",
        ),
        (
            {"filters": ["stock"], "kinds": {"stock": "int"}},
            r"entities\.item\.kinds\.stock: expected one of id, string",
        ),
        ({"filters": "stock"}, r"entities\.item\.filters: expected a list of strings"),
        (
            {"filters": ["stock"], "columns": [], "unknown": "drop"},
            r"entities\.item\.unknown: expected default without",
        ),
        ({"filters": ["stock"], "path": "redis://h/items"}, r"entities\.item\.kinds: expected the kind of 'stock'"),
        ({"filters": ["stock"], "path": "absent.parquet"}, r"entities\.item\.filters: .*absent"),
    ],
)
def test_section_that_does_not_fit_is_refused(table, change, message):
    with pytest.raises(BadInput, match=message):
        entities({"path": table} | change)


def test_two_entities_share_no_column():
    with pytest.raises(BadInput, match=r"entities\.other\.columns: expected other columns than entity 'item' has"):
        entities(other=ITEM)


def test_followed_data_may_have_entities():
    data = FILE["data"] | {"path": "folder", "follow": True}
    config = parse_config(FILE | {"data": data, "entities": {"item": ITEM}, "publish": {"delta_seconds": 5}})
    assert [entity.name for entity in config.entities] == ["item"]


def test_table_may_be_a_stream_whose_password_is_in_no_journal():
    (entity,) = entities({"path": "redis://me:secret@host/items"})
    assert entity.data.format == "redis"
    config = parse_config(FILE | {"entities": {"item": ITEM | {"path": "redis://me:secret@host/items"}}})
    assert "secret" not in repr(config)
    assert [entity.path for entity in config.shown.entities] == ["redis://host/items"]
