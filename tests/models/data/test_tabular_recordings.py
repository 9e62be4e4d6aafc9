"""Recorded requests as a trainer reads them: a list that was sent once is in each of the request's rows, of a batch."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.data import tabular
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.source import Field
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import METADATA

ROWS, LENGTH = 300, 1000


def recording(path):
    """One request of ROWS candidates, whose tags were sent once."""
    columns = {
        "item": pa.array(range(ROWS)),
        "tags": pa.array([list(range(LENGTH)), *[None] * (ROWS - 1)], pa.list_(pa.int64())),
        "click": pa.array([0.0] * ROWS),
    }
    marked = json.dumps({"features": [{"name": "tags"}, {"name": "item"}]})
    pq.write_table(pa.table(columns).replace_schema_metadata({METADATA: marked.encode()}), path)
    fields = [Field("item", "id"), Field("tags", "ids")]
    return tabular.open_table(DataConfig(path=str(path), format="parquet", label="click"), fields)


def test_list_that_was_sent_once_is_in_every_row(tmp_path):
    batches = list(recording(tmp_path / "r.parquet").batches(100))
    assert [len(batch) for batch in batches] == [100] * 3
    assert all(len(batch.columns["tags"].values) == 100 * LENGTH for batch in batches)


def test_batch_that_would_take_too_much_is_refused_by_column(tmp_path, monkeypatch):
    source = recording(tmp_path / "r.parquet")
    monkeypatch.setattr(tabular, "BATCH_NBYTES", 1 << 20)
    with pytest.raises(BadInput, match=r"^column 'tags': expected a batch of 300 rows to take at most 1 MiB, got more"):
        list(source.batches(ROWS))
    assert sum(len(batch) for batch in source.batches(100)) == ROWS
