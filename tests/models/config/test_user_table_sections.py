"""[user_table.NAME]: columns that become features of the user, and how they are served."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Field
from freshet_serving.models.streams.open_rows import open_rows
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.errors import BadInput

ONLINE = {"format": "hash"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("users")
    pq.write_table(
        pa.table({"ts": [10, 20, 30], "user_id": [1, 2, 1], "item_id": [5, 6, 7], "clicked": [0, 1, 0]}),
        folder / "log.parquet",
    )
    users = {"user_id": [1, 1], "since": [5, 30], "age": [30.0, 31.0], "city": ["Bern", "Basel"]}
    pq.write_table(pa.table(users), folder / "users.parquet")
    pq.write_table(pa.table(users | {"user_id": ["a", "b"]}), folder / "texts.parquet")
    return folder


def parse(folder, change=(), features=(), users="users.parquet", **sections):
    table = {"key": "user_id", "path": str(folder / users), "time": "since"} | dict(change)
    data = {"path": str(folder / "log.parquet"), "label": "clicked", "time": "ts", "format": "parquet"}
    return parse_config({
        "model": {"name": "m", "arch": "deepfm"},
        "data": data | sections.pop("data", {}),
        "features": {"item_id": {"kind": "id", "side": "item"}} | dict(features),
        "user_table": {"user": table},
    } | sections)  # fmt: skip


def test_columns_become_features_of_the_user(folder):
    config = parse(folder)
    features = {f.name: (f.kind, f.side) for f in config.features}
    assert features == {"item_id": ("id", "item"), "age": ("float", "user"), "city": ("string", "user")}
    (table,) = config.user_table
    assert (table.key_field, table.fields) == (Field("user_id", "id"), (Field("age", "float"), Field("city", "string")))


def test_sections_of_the_columns_count(folder):
    young = {"from": "age", "transform": "bucketize", "boundaries": [18.0]}
    features = {f.name: f for f in parse(folder, {"columns": ["age"]}, {"young": young}).features}
    assert (list(features), features["young"].side) == (["item_id", "young"], "user")


def test_rows_have_the_newest_record_at_or_before_the_event(folder):
    (batch,) = open_rows(parse(folder), folder).batches(8)
    assert batch.columns["city"].tolist() == [b"Bern", b"", b"Basel"]
    assert batch.columns["age"].tolist()[::2] == [30.0, 31.0]


def test_requests_send_the_columns(folder):
    manifest = draft(parse(folder), {})
    assert [i.name for i in manifest.inputs] == ["item_id", "age", "city"]
    assert manifest.fillers == {}


def test_online_store_has_the_columns_by_the_user_alone(folder):
    manifest = draft(parse(folder, {"serve": "online"}, online_features={"user": ONLINE}), {})
    assert {i.name for i in manifest.inputs} == {"item_id", "age", "city", "user_id"}
    assert {name: manifest.fillers[name].keys for name in ("age", "city")} == dict.fromkeys(
        ("age", "city"), ("user_id",)
    )


def test_online_section_may_name_columns_otherwise(folder):
    named = ONLINE | {"features": ["years"], "names": {"years": "age"}, "types": {"years": "int64"}}
    (group,) = parse(folder, {"serve": "online"}, online_features={"user": named}).online_features.values()
    assert [(f.feature, f.input, f.type) for f in group.features] == [
        ("years", "age", "int64"),
        ("city", "city", "string"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "uid"}, r"user_table\.user: .*uid"),
        ({"columns": ["town"]}, r"user_table\.user: .*town"),
        ({"columns": ["user_id"]}, r"user_table\.user\.columns: expected other columns than the key"),
        ({"time": ""}, r"user_table\.user\.path: expected each user_id once, got 1 more rows .*user_table\.user\.time"),
        ({"key": "age"}, r"user_table\.user\.key: expected a column of ids or strings, got 'age'"),
        ({"serve": "redis"}, r"user_table\.user\.serve: expected one of requests, online, got 'redis'"),
        ({"serve": "online"}, r"user_table\.user\.serve: expected a section \[online_features\.user\]"),
        ({"path": "nowhere.parquet"}, r"user_table\.user\.path: .*nowhere.parquet"),
        ({"path": "ratings.dat", "format": "movielens"}, r"user_table\.user\.path: expected a table"),
        ({"colour": 1}, r"user_table\.user\.colour: unknown key"),
    ],
)
def test_section_that_does_not_fit_is_refused(folder, change, message):
    with pytest.raises(BadInput, match=message) as refused:
        open_rows(parse(folder, change), folder)
    assert "\n" not in str(refused.value)


def test_keys_of_another_kind_than_the_data_are_refused(folder):
    with pytest.raises(BadInput, match=r"user_table\.user\.key: expected strings .*user_id"):
        list(open_rows(parse(folder, users="texts.parquet"), folder).batches(8))


def test_followed_data_may_have_user_tables(folder):
    config = parse(folder, data={"path": str(folder), "follow": True}, publish={"delta_seconds": 5})
    assert [table.name for table in config.joined] == ["user"]


def test_column_of_an_entity_is_no_column_of_a_user_table(folder):
    item = {"key": "item_id", "path": "items.parquet", "columns": ["city"]}
    with pytest.raises(BadInput, match=r"user_table\.user\.columns: expected other columns than entities\.item has"):
        parse(folder, entities={"item": item})
