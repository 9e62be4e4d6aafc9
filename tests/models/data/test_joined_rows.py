from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.joined_rows import joined_rows
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Field
from tests.models.streams.made import plain, write_parquet


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
    entity = SimpleNamespace(name="who", data=data, key_field=Field("user", "id"), fields=(Field("kind", "string"),))
    asked = []

    def open_fields(fields):
        asked.extend(fields)
        return open_source(DataConfig(str(tmp_path / "clicks.parquet"), "parquet", "clicked"), fields)

    features = [Field("user", "id"), Field("kind", "string")]
    (batch,) = joined_rows(open_fields, features, [entity], [Field("tags", "ids")]).batches(8)
    assert asked == [Field("user", "id"), Field("tags", "ids")]
    assert plain(batch.columns["kind"]) == ["", "a", "", "b"]
    assert plain(batch.columns["tags"]) == [[], [0], [0, 1], [0, 1, 2]]
