"""A folder that grows: whole files in the order in which they come, each once."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.data.decoding_child import FRAME_NBYTES
from freshet_serving.models.streams import growing_folder
from freshet_serving.models.streams.growing_folder import GrowingFolder
from freshet_serving.models.streams.stream_rows import RejectedRows
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
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


def test_files_are_ordered_by_name_and_later_by_arrival(tmp_path):
    write_parquet(tmp_path / "b.parquet", 0, 3)
    write_parquet(tmp_path / "day=1" / "a.parquet", 0, 2)
    folder = Folder(tmp_path)
    assert names(folder.poll()) == [("b.parquet", 3), ("day=1/a.parquet", 2)]
    assert folder.poll() == []
    write_parquet(tmp_path / "a.parquet", 0, 4)
    assert names(folder.poll()) == [("a.parquet", 4)]
    assert folder.poll() == []


def test_file_is_taken_once_it_is_complete(tmp_path):
    write_parquet(tmp_path / "whole.pq", 0, 50)
    data = (tmp_path / "whole.pq").read_bytes()
    (tmp_path / "whole.pq").unlink()
    folder, path = Folder(tmp_path), tmp_path / "grows.parquet"
    for nbytes in (0, 4, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:nbytes])
        assert folder.poll() == []
    path.write_bytes(data)
    assert names(folder.poll()) == [("grows.parquet", 50)]


def test_file_that_never_completes_is_reported(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and then nothing")
    folder.poll()
    assert folder.stream.backlog().trouble == ""
    folder.clock.advance(growing_folder.UNFINISHED_S)
    folder.poll()
    assert folder.stream.backlog().trouble == "half.parquet: an incomplete Parquet file that does not grow"


def test_text_named_as_parquet_is_set_aside_at_once(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "a.parquet").write_text("user,item\n1,2\n")
    write_parquet(tmp_path / "b.parquet", 0, 3)
    assert names(folder.poll()) == [("b.parquet", 3)]
    backlog = folder.stream.backlog()
    assert (backlog.trouble, backlog.aside) == ("", 1)
    assert backlog.why_aside == "a.parquet: expected a Parquet file, got b'user' at its beginning"


def test_hidden_and_foreign_files_are_ignored(tmp_path):
    for name in (".a.parquet", "_b.parquet", "c.csv", "_temporary/0/d.parquet", "e.parquet.tmp"):
        write_parquet(tmp_path / name, 0, 1)
    assert Folder(tmp_path).poll() == []


def test_restarted_reader_continues_after_the_taken_files(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    known = Folder(tmp_path).poll()
    write_parquet(tmp_path / "b.parquet", 3, 3)
    assert names(Folder(tmp_path, known).poll()) == [("b.parquet", 3)]


def test_file_changed_after_reading_is_reported_and_not_reread(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    folder = Folder(tmp_path)
    (segment,) = folder.poll()
    write_parquet(tmp_path / "a.parquet", 0, 300)
    assert folder.poll() == []
    assert "a.parquet: changed after it was read" in folder.stream.backlog().trouble
    with pytest.raises(BadInput, match=r"a.parquet: the file was changed or deleted after it was first read"):
        list(folder.stream.read(segment))
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(BadInput, match=r"a.parquet: the file was changed or deleted"):
        list(folder.stream.read(segment))


def test_segment_is_forgotten_with_its_file_and_the_name_reusable(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    folder = Folder(tmp_path)
    (segment,) = folder.poll()
    assert not folder.stream.can_forget(segment)
    (tmp_path / "a.parquet").unlink()
    assert folder.stream.can_forget(segment)
    write_parquet(tmp_path / "a.parquet", 3, 2)
    assert names(folder.poll()) == [("a.parquet", 2)]


def test_first_file_without_a_column_ends_the_run(tmp_path):
    write_parquet(tmp_path / "whole", 0, 3)
    pq.write_table(pq.read_table(tmp_path / "whole").drop_columns(["user"]), tmp_path / "b.parquet")
    with pytest.raises(BadInput, match=r"column 'user': expected exactly one in b.parquet, got 0"):
        Folder(tmp_path).poll()


@pytest.mark.parametrize("kind", ["pipe", "loop", "damaged footer", "lacking column"])
def test_bad_file_is_skipped_and_later_ones_are_read(tmp_path, kind):
    write_parquet(tmp_path / "a.parquet", 0, 3)
    folder, bad = Folder(tmp_path), tmp_path / "b.parquet"
    folder.poll()
    if kind == "pipe":
        os.mkfifo(bad)
    elif kind == "loop":
        bad.symlink_to(bad)
    elif kind == "damaged footer":
        write_parquet(bad, 0, 3)
        data = bytearray(bad.read_bytes())
        footer = int.from_bytes(data[-8:-4], "little")
        data[-8 - footer : -8] = b"\xff" * footer
        bad.write_bytes(data)
    else:
        pq.write_table(pa.table({"other": [1]}), bad)
    write_parquet(tmp_path / "c.parquet", 0, 4)

    assert names(folder.poll()) == [("c.parquet", 4)]
    backlog = folder.stream.backlog()
    assert (backlog.aside, backlog.trouble) == (1, "")
    assert "b.parquet" in backlog.why_aside or "other" in backlog.why_aside
    assert folder.poll() == []
    assert folder.stream.backlog().aside == 1
    bad.unlink()
    write_parquet(bad, 0, 2)
    assert names(folder.poll()) == [("b.parquet", 2)]


def test_folder_with_a_file_suffix_is_not_a_file(tmp_path):
    write_parquet(tmp_path / "day.parquet" / "part-0.parquet", 0, 2)
    folder = Folder(tmp_path)
    assert names(folder.poll()) == [("day.parquet/part-0.parquet", 2)]
    assert folder.stream.backlog().aside == 0


def test_damaged_page_rejects_only_its_rows(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, 0, 40_000, row_group_size=20_000)
    second = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = second.dictionary_page_offset or second.data_page_offset
    data[start : start + second.total_compressed_size] = bytes(second.total_compressed_size)
    path.write_bytes(data)
    folder = Folder(tmp_path)
    (segment,) = folder.poll()

    parts = list(folder.stream.read(segment))
    assert sum(len(part) for part in parts) == 40_000
    assert sum(len(part) for part in parts if isinstance(part, RejectedRows)) == 20_000
    assert parts[-1].damage
    assert [len(part) for part in folder.stream.read(segment)] == [len(part) for part in parts]


def test_file_exceeding_the_memory_limit_is_rejected_and_skipped(tmp_path):
    large = [b"x" * (FRAME_NBYTES + 1)]
    write_parquet(tmp_path / "b.parquet", 0, 5)
    table = pq.read_table(tmp_path / "b.parquet").slice(0, 1)
    column = next(name for name in table.column_names if pa.types.is_string(table.schema.field(name).type))
    at = table.column_names.index(column)
    pq.write_table(table.set_column(at, column, pa.array(large)), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    folder = Folder(tmp_path)
    bomb, sound = folder.poll()
    (rejected,) = folder.stream.read(bomb)
    assert (len(rejected), rejected.damage) == (1, True)
    assert rejected.why.startswith("a.parquet: expected at most 33,554,432 bytes in a row, got ")
    assert [len(part) for part in folder.stream.read(sound)] == [5]


def test_listing_takes_limited_time_and_polling_respects_its_timeout(tmp_path):
    folder = Folder(tmp_path)
    folder.stream.poll(0.0)
    before = folder.clock.now_s()
    assert folder.stream.poll(0.35) == []
    assert folder.clock.now_s() - before == pytest.approx(0.35)


def test_missing_folder_gives_a_one_line_error(tmp_path):
    with pytest.raises(BadInput, match=r"data.path: expected an existing folder, got '.*none'"):
        Folder(tmp_path / "none")
