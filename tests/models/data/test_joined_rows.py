import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.joined_rows import joined_rows
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Field
from tests.models.streams.made import plain, write_parquet


def joined_table(data, *fields, once=False):
    section = "entities.who"
    return SimpleNamespace(
        name="who", section=section, once=once, data=data, key_field=Field("user", "id"), fields=fields
    )


def test_rows_without_entities_and_sequences_are_the_opened_ones(tmp_path):
    write_parquet(tmp_path / "clicks.parquet", 0, 4)
    opened = []

    def open_fields(fields):
        opened.append(open_source(DataConfig(str(tmp_path / "clicks.parquet"), "parquet", "clicked"), fields))
        return opened[-1]

    assert joined_rows(open_fields, [Field("user", "id")], []) is opened[0]


def test_columns_of_an_entity_are_not_read_from_the_rows(tmp_path):
    write_parquet(tmp_path / "clicks.parquet", 0, 4)
    pq.write_table(pa.table({"user": [1, 3], "kind": ["a", "b"]}), tmp_path / "kinds.parquet")
    data = DataConfig(str(tmp_path / "kinds.parquet"), "parquet", ())
    entity = joined_table(data, Field("kind", "string"))
    asked = []

    def open_fields(fields):
        asked.extend(fields)
        return open_source(DataConfig(str(tmp_path / "clicks.parquet"), "parquet", "clicked"), fields)

    features = [Field("user", "id"), Field("kind", "string")]
    (batch,) = joined_rows(open_fields, features, [entity], [Field("tags", "ids")]).batches(8)
    assert asked == [Field("user", "id"), Field("tags", "ids")]
    assert plain(batch.columns["kind"]) == ["", "a", "", "b"]
    assert plain(batch.columns["tags"]) == [[], [0], [0, 1], [0, 1, 2]]


def test_recordings_have_the_columns_of_an_entity_as_they_were_used(tmp_path):
    about = {"model": "ctr", "features": [{"name": "user"}, {"name": "kind"}]}
    rows = pa.table({"user": [1, 3], "kind": ["then", None], "clicked": [0.0, 1.0]})
    pq.write_table(rows.replace_schema_metadata({"freshet": json.dumps(about)}), tmp_path / "recording.parquet")
    pq.write_table(pa.table({"user": [1, 3], "kind": ["a", "b"], "more": [1, 2]}), tmp_path / "kinds.parquet")
    data = DataConfig(str(tmp_path / "kinds.parquet"), "parquet", ())
    entity = joined_table(data, Field("kind", "string"))

    def open_fields(fields):
        return open_source(DataConfig(str(tmp_path / "recording.parquet"), "parquet", "clicked"), fields)

    features = [Field("user", "id"), Field("kind", "string")]
    (batch,) = joined_rows(open_fields, features, [entity]).batches(8)
    assert plain(batch.columns["kind"]) == ["then", "then"]
    # A column that the recording does not have comes from the table, with the entity's others.
    entity.fields = (*entity.fields, Field("more", "id"))
    (batch,) = joined_rows(open_fields, [*features, Field("more", "id")], [entity]).batches(8)
    assert (plain(batch.columns["kind"]), plain(batch.columns["more"])) == (["a", "b"], [1, 2])


def test_key_that_no_feature_reads_is_read_and_left_out(tmp_path):
    write_parquet(tmp_path / "clicks.parquet", 0, 4)
    pq.write_table(pa.table({"user": [1, 3], "kind": ["a", "b"]}), tmp_path / "kinds.parquet")
    table = joined_table(DataConfig(str(tmp_path / "kinds.parquet"), "parquet", ()), Field("kind", "string"), once=True)

    def open_fields(fields):
        return open_source(DataConfig(str(tmp_path / "clicks.parquet"), "parquet", "clicked"), fields)

    (batch,) = joined_rows(open_fields, [Field("kind", "string")], [table]).batches(8)
    assert list(batch.columns) == ["kind"]
    assert plain(batch.columns["kind"]) == ["", "a", "", "b"]
