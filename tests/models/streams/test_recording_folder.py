"""Recordings in the order of time, those of one model, and what is missing of them."""

import pytest

from freshet_serving.models.streams.recording_folder import RecordingFolder, first_recording, score_column
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.errors import BadInput
from tests.models.streams.recordings import Place, put, recorded_as, recording


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def opened(place, model="", known=()):
    schema, _ = place.settings().schemas()
    folder = RecordingFolder(str(place.recordings), model, schema)
    folder.begin(known)
    return folder


def rows(n, count=2, model="ctr"):
    return recording([(f"r{n}", row, n, 0.5) for row in range(count)], model)


def test_files_of_several_servers_are_ordered_by_their_first_rows(place):
    for n, recorder, server in ((3, "w0", "a"), (1, "w1", "b"), (2, "w0", "")):
        put(place.recordings / server, recorded_as(n, n, recorder=recorder), rows(n))
    found = opened(place).poll(0.0)
    assert [segment.where["file"].split("-")[-1] for segment in found] == ["1.parquet", "2.parquet", "3.parquet"]


def test_files_of_other_models_count_as_numbers_without_rows(place):
    put(place.recordings, recorded_as(1, 1), rows(1))
    folder = opened(place)
    first = folder.poll(0.0)
    put(place.recordings, recorded_as(2, 2, model="other"), rows(2, model="other"))
    put(place.recordings, recorded_as(3, 3), rows(3))
    folder._next_s = 0.0
    assert [segment.rows for segment in folder.poll(0.0)] == [0, 2]
    assert (folder.model, folder.lost_files) == ("ctr", 0)
    with pytest.raises(BadInput, match="--model: expected ctr, as --out was started with"):
        opened(place, "other", first)


def test_other_table_among_recordings_is_set_aside(place):
    put(place.recordings, "a", rows(1).replace_schema_metadata(None))
    put(place.recordings, recorded_as(2, 2), rows(2))
    folder = opened(place)
    assert [segment.rows for segment in folder.poll(0.0)] == [0, 2]
    backlog = folder.backlog()
    assert (folder.model, backlog.aside) == ("ctr", 1)
    assert backlog.why_aside == "a.parquet: expected a recording, which names its model, got another table"


def test_missing_file_numbers_are_lost_until_they_appear(place):
    for n in (2, 5):
        put(place.recordings, recorded_as(n, n), rows(n))
    folder = opened(place)
    folder.poll(0.0)
    assert folder.lost_files == 2
    put(place.recordings, recorded_as(4, 6), rows(4))
    # And a server that has begun anew.
    put(place.recordings, recorded_as(1, 9), rows(9))
    folder._next_s = 0.0
    folder.poll(0.0)
    assert folder.lost_files == 1


def test_rows_are_read_by_number_while_columns_are_equal(place, tmp_path):
    put(place.recordings, recorded_as(1, 1), rows(1, 3))
    put(place.recordings, recorded_as(2, 2), rows(2, 3))
    put(place.recordings, recorded_as(3, 3), rows(3, 3).drop_columns(["tags"]))
    folder, journal = opened(place), StreamJournal(tmp_path / "journal", "recordings")
    journal.append(folder.poll(0.0))
    count, table = folder.recorded(journal, [1, 2, 3, 5, 6, 7])
    assert (count, table["freshet.request"].to_pylist()) == (4, ["r1", "r1", "r2", "r2"])
    count, table = folder.recorded(journal, [6, 7])
    assert (count, table["freshet.row"].to_pylist()) == (2, [0, 1])
    (place.recordings / f"{recorded_as(2, 2)}.parquet").unlink()
    assert folder.recorded(journal, [1, 3])[0] == 1
    assert folder.recorded(journal, [3, 4, 6]) == (2, None)
    assert list(folder.read(journal.segments[1])) == []
    assert folder.lost_rows == 3


def test_score_is_an_output_with_one_value():
    table = rows(1)
    assert score_column(table, "") == score_column(table, "score") == "freshet.output.score"
    with pytest.raises(BadInput, match="--score: expected an output with one number a row, got 'ctr'"):
        score_column(table, "ctr")
    with pytest.raises(BadInput, match="recorded: none"):
        score_column(table.drop_columns(["freshet.output.score"]), "")


def test_first_recording_gives_the_columns(place):
    with pytest.raises(BadInput, match="--recordings: the folder has no recordings"):
        first_recording(str(place.recordings))
    put(place.recordings, "any", rows(1))
    assert "item" in first_recording(str(place.recordings)).names
