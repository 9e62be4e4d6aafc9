"""[features.*]: what is made of columns, and one line for every mistake."""

import pytest

from freshet_serving.models.config.feature_sections import read_features
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.source import Field, wanted_fields
from freshet_serving.processor.errors import BadInput

TABLE = DataConfig("clicks.parquet", "parquet", ("clicked", "bought"), "ts", "dwell")
PLAIN = {"user_id": {"kind": "id"}, "item_id": {"kind": "id"}, "tags": {"kind": "strings"}, "price": {"kind": "float"}}


def read(data=TABLE, **sections):
    return {f.name: f for f in read_features(PLAIN | sections, data)}


def test_hour_and_weekday_use_the_event_time_by_default():
    found = read(hour={"transform": "hour"}, day={"transform": "weekday", "from": "sent_at", "dim": 4})

    assert (found["hour"].kind, found["hour"].table, found["hour"].dim) == ("id", "hour", 16)
    assert found["hour"].reads == Field("ts", "seconds")
    assert found["day"].reads == Field("sent_at", "seconds")


def test_one_column_may_feed_several_features():
    found = read(
        price_bucket={"from": "price", "transform": "bucketize", "boundaries": [1, 10.5]},
        again={"kind": "id", "from": "user_id", "table": "other"},
        day={"transform": "weekday", "from": "user_id"},
    )

    assert found["price_bucket"].boundaries == (1.0, 10.5)
    assert found["price_bucket"].reads == Field("price", "float")
    assert found["day"].reads == Field("user_id", "id")
    assert [f.name for f in wanted_fields(list(found.values()))] == ["user_id", "item_id", "tags", "price"]


def test_cross_is_ragged_when_one_of_its_features_is():
    found = read(
        hour={"transform": "hour"},
        a={"cross": ["user_id", "item_id"]},
        b={"cross": ["user_id", "hour", "tags"], "buckets": 500, "combiner": "mean", "max_length": 3},
    )

    assert (found["a"].kind, found["a"].buckets, found["a"].reads) == ("id", 1_000_000, None)
    assert (found["b"].kind, found["b"].buckets, found["b"].combiner) == ("ids", 500, "mean")


def test_columns_of_a_format_keep_their_kind():
    data = DataConfig("ml-1m", "movielens")
    sections = {
        "user_id": {"kind": "id"},
        "age": {"transform": "bucketize", "boundaries": [18, 25]},
        "hour": {"transform": "hour"},
    }
    found = {f.name: f for f in read_features(sections, data)}

    assert found["age"].reads == Field("age", "id")
    assert found["hour"].reads == Field("timestamp", "seconds")


EDGES = {"from": "x", "transform": "bucketize"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"transform": "hour", "kind": "float"}, r"\.transform: only for kind id; this one is 'float'"),
        ({"transform": "hour", "kind": "string"}, r"\.kind: expected 'id', which hour makes, got 'string'"),
        ({"transform": "hour", "from": "tags"}, r"\.from: .* got 'tags', which features\.tags reads as strings"),
        ({"transform": "hour", "from": "price"}, r"\.from: expected a column of the time in seconds for hour"),
        ({"transform": "hour", "from": "a b"}, r"\.from: expected a column named by letters"),
        ({"transform": "hour", "from": 3}, r"\.from: expected a string, got an integer"),
        ({"transform": "hour", "from": "clicked"}, r": expected a column other than data\.label, got 'clicked'"),
        ({"transform": "hour", "from": "dwell"}, r": expected a column other than data\.weight, got 'dwell'"),
        ({"transform": "hours"}, r"\.kind: expected a string, got nothing"),
        ({"kind": "id", "transform": "hours"}, r"\.transform: expected one of .* \(did you mean 'hour'\?\)"),
        ({"transform": "hour", "boundaries": [1]}, r"\.boundaries: expected transform bucketize with boundaries"),
        ({"transform": "hour", "buckets": 9}, r"\.buckets: expected no buckets without cross"),
        ({"kind": "id", "from": "ts"}, r": expected a column other than data\.time, got 'ts'"),
        (EDGES, r"\.boundaries: expected 1 to 65536 numbers in ascending order, got '\[\]'"),
        (EDGES | {"boundaries": 5}, r"\.boundaries: expected a list of numbers, got an integer"),
        (EDGES | {"boundaries": ["5"]}, r"\.boundaries\[0\]: expected a number, got a string"),
        (EDGES | {"boundaries": [2, 1]}, r"\.boundaries: expected numbers in ascending order, got '\[2\.0, 1\.0\]'"),
        (EDGES | {"boundaries": [1, 1]}, r"\.boundaries: expected numbers in ascending order"),
        (EDGES | {"boundaries": [float("nan")]}, r"\.boundaries: expected numbers within float32"),
        (EDGES | {"boundaries": [1e39]}, r"\.boundaries: expected numbers within float32"),
        (
            EDGES | {"boundaries": [1], "from": "tags"},
            r"\.from: expected a column of numbers for bucketize, got 'tags'",
        ),
        ({"cross": "user_id"}, r"\.cross: expected a list of strings, got a string"),
        ({"cross": []}, r"\.cross: expected 2 to 16 features"),
        ({"cross": ["user_id"]}, r"\.cross: expected 2 to 16 features, got 'user_id'"),
        ({"cross": ["user_id", "user_id"]}, r"\.cross: expected each feature once"),
        ({"cross": ["user_id", "itme_id"]}, r"\.cross: expected one of .* got 'itme_id' \(did you mean 'item_id'\?\)"),
        ({"cross": ["user_id", "x"]}, r"\.cross: expected one of user_id, item_id, tags, price, got 'x'"),
        ({"cross": ["user_id", "price"]}, r"\.cross: expected ids or strings, but 'price' is a float; bucketize it"),
        ({"cross": ["user_id", "tags"], "kind": "id"}, r"\.kind: expected 'ids', which this cross makes, got 'id'"),
        ({"cross": ["user_id", "item_id"], "buckets": 0}, r"\.buckets: expected 1 to"),
        ({"cross": ["user_id", "item_id"], "from": "z"}, r"\.from: expected no column beside cross"),
        ({"cross": ["user_id", "item_id"], "transform": "hour"}, r"\.transform: expected no transform beside cross"),
        ({"kind": "string", "from": "user_id"}, r"\.kind: expected 'id', as features\.user_id reads column 'user_id'"),
        ({"kind": "id", "column_kind": "id"}, r"\.column_kind: unknown"),
        ({"kind": "id", "from_": "id"}, r"\.from_: unknown key; .* \(did you mean 'from'\?\)"),
    ],
)
def test_mistake_gives_a_one_line_error(section, message):
    with pytest.raises(BadInput, match=r"features\.x" + message) as caught:
        read(x=section)
    assert "\n" not in str(caught.value)


def test_cross_of_a_cross_is_refused():
    with pytest.raises(BadInput, match=r"features\.b\.cross: expected one of user_id, item_id, tags, price, got 'a'"):
        read(a={"cross": ["user_id", "item_id"]}, b={"cross": ["a", "tags"]})


def test_hour_without_a_time_requires_a_column():
    with pytest.raises(
        BadInput, match=r"features\.hour\.from: expected the time column, because data\.time is not set"
    ):
        read(DataConfig("c.csv", "csv", "clicked"), hour={"transform": "hour"})


def test_data_files_are_not_opened_when_kinds_are_given():
    data = DataConfig("nowhere.txt", "criteo")
    assert [f.reads for f in read_features({"C1": {"kind": "string"}}, data)] == [Field("C1", "string")]
