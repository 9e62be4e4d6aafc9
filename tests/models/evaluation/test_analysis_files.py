import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="Parquet needs the train extra")

import pyarrow.parquet as pq

from freshet_serving.models.evaluation import analysis_files
from freshet_serving.models.evaluation.analysis_files import RowsFile, write_summaries
from freshet_serving.models.evaluation.row_layers import RowChunk
from freshet_serving.models.evaluation.table_summary import TableSummary, summarise


def piece(first, rows):
    keys = np.arange(first, first + rows)
    return RowChunk(keys, np.full((rows, 4), 0.5, np.float32), keys % 7, keys % 50)


def test_rows_and_summaries_round_trip(tmp_path):
    with RowsFile(tmp_path / "rows.parquet") as file:
        file.begin("user", 30, 100)
        summary = summarise(TableSummary("user", 4, "float32", 100), file.tee([piece(0, 20), piece(20, 10)]), len_of)
        file.begin("item.v2", 0, 100)
    write_summaries(tmp_path / "tables.parquet", [summary])
    rows = pq.read_table(tmp_path / "rows.parquet")
    assert rows.column("id").to_pylist() == list(range(30))
    assert rows.column("table").to_pylist() == ["user"] * 30
    assert rows.column("frequency").to_pylist() == [i % 7 for i in range(30)]
    assert rows.column("age").to_pylist() == [100 - i for i in range(30)]
    assert set(rows.column("norm").to_pylist()) == {1.0}
    assert pq.read_metadata(tmp_path / "rows.parquet").metadata[b"share.user"] == b"1.0"
    lines = pq.read_table(tmp_path / "tables.parquet").to_pylist()
    of_frequency = {line["value"]: (line["rows"], line["lookups"]) for line in lines if line["measure"] == "frequency"}
    assert of_frequency == {0.0: (5, 0), 1.0: (5, 5), 2.0: (8, 20), 4.0: (12, 60)}
    assert {"frequency", "age", "norm", "admit_after"} <= {line["measure"] for line in lines}


def len_of(_):
    pass


def test_share_of_ids_written_for_a_large_table_ignores_order(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis_files, "MOST_ROWS", 1000)
    for name, order in (("a", [0, 2500]), ("b", [2500, 0])):
        with RowsFile(tmp_path / name) as file:
            file.begin("t", 5000, 100)
            for _ in file.tee([piece(first, 2500) for first in order]):
                pass
    kept = [sorted(pq.read_table(tmp_path / name).column("id").to_pylist()) for name in "ab"]
    assert kept[0] == kept[1]
    assert 800 < len(kept[0]) < 1200
    assert pq.read_metadata(tmp_path / "a").metadata[b"share.t"] == b"0.2"


def test_unfinished_file_leaves_nothing_behind(tmp_path):
    def breaks():
        with RowsFile(tmp_path / "rows.parquet") as file:
            file.begin("t", 1, 1)
            raise KeyError

    with pytest.raises(KeyError):
        breaks()
    assert list(tmp_path.iterdir()) == []
