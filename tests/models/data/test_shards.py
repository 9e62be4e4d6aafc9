"""Every row is read once, by one reader, however files, row groups, batches and readers divide."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.models.data import tabular
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.shards import SplitRows
from freshet_serving.models.data.source import Field
from freshet_serving.models.data.synthetic import SyntheticSource
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import everything

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FILES = st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=4).filter(lambda f: sum(map(sum, f)))


def open_files(folder, files):
    """Files of row groups of so many rows each; row r holds the id r."""
    row = 0
    for i, groups in enumerate(files):
        schema = pa.schema({"row": pa.int64(), "y": pa.float32()})
        with pq.ParquetWriter(folder / f"{i}.parquet", schema) as writer:
            for rows in groups:
                writer.write_table(pa.table({"row": range(row, row + rows), "y": [0.0] * rows}, schema=schema))
                row += rows
    return tabular.open_table(DataConfig(str(folder), "parquet", "y"), [Field("row", "id")], 2), row


def rows_of(batches):
    return [row for batch in batches for row in batch.columns["row"].tolist()]


@quick
@given(files=FILES, readers=st.integers(1, 9), size=st.integers(1, 12))
def test_row_ranges_contain_every_row_once(tmp_path_factory, files, readers, size):
    source, total = open_files(tmp_path_factory.mktemp("f"), files)
    parts = [SplitRows(source, i, readers) for i in range(readers)]
    batches = [list(part.batches(size)) for part in parts]

    assert rows_of(batch for part in batches for batch in part) == list(range(total))
    loads = [part.count_rows() for part in parts]
    assert max(loads) - min(loads) <= 1
    assert {len(part) for part in batches} == {parts[0].count_batches(size)}
    for part, whole in zip(parts, batches):
        assert all(len(batch) == size for batch in whole[:-1] if batch.end < part.count_rows())
        for done in range(len(whole) + 1):
            resumed = list(part.batches(size, done * size))
            assert [everything(b)[1:] for b in resumed] == [everything(b)[1:] for b in whole[done:]]


def test_row_range_reads_no_row_group_outside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.models.data.files.PIECE_ROWS", 1)
    open_files(tmp_path, [[100] * 10])
    metadata = pq.read_metadata(tmp_path / "0.parquet")
    with open(tmp_path / "0.parquet", "r+b") as file:
        for group in (*range(4), *range(6, 10)):
            for column in range(2):
                found = metadata.row_group(group).column(column)
                file.seek(found.dictionary_page_offset or found.data_page_offset)
                file.write(b"\xff" * found.total_compressed_size)
    source = tabular.open_table(DataConfig(str(tmp_path), "parquet", "y"), [Field("row", "id")], 1)

    assert rows_of(SplitRows(source, 2, 5).batches(50)) == list(range(400, 600))


@pytest.mark.parametrize(("reader", "readers"), [(0, 0), (-1, 2), (2, 2)])
def test_nonexistent_reader_number_is_refused(reader, readers):
    with pytest.raises(BadInput, match="reader: expected 0 to readers - 1"):
        SplitRows(SyntheticSource(rows=9), reader, readers)


def test_endless_stream_is_refused():
    with pytest.raises(BadInput, match="a stream without an end"):
        SplitRows(SyntheticSource(), 0, 2)
