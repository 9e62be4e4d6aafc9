"""A folder that grows: whole files in the order in which they come, each once."""

import pytest

from models.streams import growing_folder
from models.streams.growing_folder import GrowingFolder
from processor.clock import FakeClock
from processor.errors import BadInput
from tests.models.streams.made import SCHEMA, write_parquet


class Folder:
    def __init__(self, path, known=()):
        self.clock = FakeClock()
        self.stream = GrowingFolder(str(path), SCHEMA, self.clock.now_s, self.clock.advance)
        self.stream.begin(known)

    def poll(self):
        self.clock.advance(1.0)
        return self.stream.poll(0.0)


def names(segments):
    return [(segment.where["file"], segment.rows) for segment in segments]


def test_files_come_in_the_order_of_their_names_and_then_as_they_come(tmp_path):
    write_parquet(tmp_path / "b.parquet", 0, 3)
    write_parquet(tmp_path / "day=1" / "a.parquet", 0, 2)
    folder = Folder(tmp_path)
    assert names(folder.poll()) == [("b.parquet", 3), ("day=1/a.parquet", 2)]
    assert folder.poll() == []
    write_parquet(tmp_path / "a.parquet", 0, 4)
    assert names(folder.poll()) == [("a.parquet", 4)]
    assert folder.poll() == []


def test_a_file_is_taken_once_it_is_whole(tmp_path):
    write_parquet(tmp_path / "whole.pq", 0, 50)
    data = (tmp_path / "whole.pq").read_bytes()
    (tmp_path / "whole.pq").unlink()
    folder, path = Folder(tmp_path), tmp_path / "grows.parquet"
    for nbytes in (0, 4, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:nbytes])
        assert folder.poll() == []
    path.write_bytes(data)
    assert names(folder.poll()) == [("grows.parquet", 50)]


def test_a_file_that_never_becomes_whole_is_told_of(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and then nothing")
    folder.poll()
    assert folder.stream.unread().trouble == ""
    folder.clock.advance(growing_folder.UNFINISHED_S)
    folder.poll()
    assert folder.stream.unread().trouble == "half.parquet: no whole Parquet file, and it does not grow"


def test_hidden_files_and_others_are_passed_over(tmp_path):
    for name in (".a.parquet", "_b.parquet", "c.csv", "_temporary/0/d.parquet", "e.parquet.tmp"):
        write_parquet(tmp_path / name, 0, 1)
    assert Folder(tmp_path).poll() == []


def test_who_begins_again_goes_on_behind_what_was_taken(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    known = Folder(tmp_path).poll()
    write_parquet(tmp_path / "b.parquet", 3, 3)
    assert names(Folder(tmp_path, known).poll()) == [("b.parquet", 3)]


def test_a_file_that_was_taken_and_changed_is_told_of_and_not_read_again(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    folder = Folder(tmp_path)
    (segment,) = folder.poll()
    write_parquet(tmp_path / "a.parquet", 0, 300)
    assert folder.poll() == []
    assert "a.parquet: was read and has changed since" in folder.stream.unread().trouble
    with pytest.raises(BadInput, match=r"a.parquet: the file as it was when it was first read wanted"):
        list(folder.stream.read(segment))
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(BadInput, match=r"a.parquet: the file as it was"):
        list(folder.stream.read(segment))


def test_a_segment_is_forgotten_with_its_file_and_the_name_may_come_again(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    folder = Folder(tmp_path)
    (segment,) = folder.poll()
    assert not folder.stream.forgets(segment)
    (tmp_path / "a.parquet").unlink()
    assert folder.stream.forgets(segment)
    write_parquet(tmp_path / "a.parquet", 3, 2)
    assert names(folder.poll()) == [("a.parquet", 2)]


def test_a_column_that_is_missing_is_told_before_a_row_is_read(tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(_written(tmp_path)).drop_columns(["user"]), tmp_path / "b.parquet")
    with pytest.raises(BadInput, match=r"column 'user': wanted once in b.parquet, got 0"):
        Folder(tmp_path).poll()


def _written(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    return tmp_path / "a.parquet"


def test_listing_takes_a_share_of_the_time_and_polling_waits_no_longer_than_asked(tmp_path):
    folder = Folder(tmp_path)
    folder.stream.poll(0.0)
    before = folder.clock.now_s()
    assert folder.stream.poll(0.35) == []
    assert folder.clock.now_s() - before == pytest.approx(0.35)


def test_no_folder_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"data.path: a folder wanted that Parquet files come into, got '.*none'"):
        Folder(tmp_path / "none")
