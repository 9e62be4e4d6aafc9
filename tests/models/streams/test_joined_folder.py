"""Files that appear whole with their state, and rows read back."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.streams import joined_folder as module
from freshet_serving.models.streams.joined_folder import JoinedFolder, labelled, rows_of, seconds
from freshet_serving.processor.errors import BadInput, Corrupt
from tests.models.streams.recordings import BEGAN_S, put, recording


def table(count):
    return recording([(f"r{n}", 0, n / 4, 0.5) for n in range(count)])


def test_file_contains_the_state_that_it_completes(tmp_path):
    folder = JoinedFolder(tmp_path / "out")
    assert folder.state() is None
    assert folder.write(labelled(table(3), np.zeros(3), np.ones(3), np.zeros(3, bool)), {"a": 1}) == 1
    assert folder.write(labelled(table(2), np.ones(2), np.ones(2), np.zeros(2, bool)), {"a": 2}) == 2
    folder.close()
    again = JoinedFolder(tmp_path / "out")
    assert again.state() == {"a": 2}
    assert again.state_of(1) == {"a": 1}
    assert list(again.newest_first()) == [2, 1]
    assert again.next == 3


def test_leftovers_of_a_kill_are_removed(tmp_path):
    (tmp_path / ".0000000001.parquet.ab.tmp").write_bytes(b"half")
    JoinedFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["_join"]


def test_rows_are_read_as_recorded(tmp_path):
    folder = JoinedFolder(tmp_path)
    folder.write(labelled(table(5), np.zeros(5), np.ones(5), np.zeros(5, bool)), {})
    assert folder.recorded(1, [3, 0]).equals(table(5).take([3, 0]))
    assert folder.recorded(1, [3, 0]).schema.metadata == table(5).schema.metadata
    assert folder.recorded(9, [0]) is None


def test_rows_of_any_row_groups_are_read_in_any_order(tmp_path):
    put(tmp_path, "a", table(50), row_group_size=7)
    rows = np.random.default_rng(2).integers(0, 50, 40).tolist()
    assert rows_of(tmp_path / "a.parquet", rows).equals(table(50).take(rows))


def test_large_rows_use_small_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GROUP_NBYTES", table(50).nbytes // 10)
    folder = JoinedFolder(tmp_path)
    folder.write(labelled(table(50), np.zeros(50), np.ones(50), np.zeros(50, bool)), {})
    assert 8 < pq.ParquetFile(tmp_path / "0000000001.parquet").metadata.num_row_groups < 15


def test_foreign_parquet_file_with_a_matching_name_is_refused(tmp_path):
    put(tmp_path, "0000000001", table(1))
    with pytest.raises(Corrupt, match="expected a file of a join"):
        JoinedFolder(tmp_path).state()


def test_unusable_folder_is_refused(tmp_path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(BadInput, match="--out"):
        JoinedFolder(tmp_path / "out")


def test_times_are_unix_seconds(tmp_path):
    put(tmp_path, "a", table(3))
    assert seconds(pq.read_table(tmp_path / "a.parquet")["freshet.time"]).tolist() == [
        BEGAN_S + n / 4 for n in range(3)
    ]
