"""A stream as a source: numbered rows, the same whoever reads, however they came and whatever is not sound."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.streams import followed_source
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.stream import StreamBacklog
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from tests.models.streams.made import SCHEMA, ListStream, rows_of, said, users
from tests.support.failing_calls import FailingCalls

COUNTS = st.lists(st.integers(0, 30), max_size=8)


def opened(tmp_path, stream, endless=False, clock=None):
    journal = StreamJournal(tmp_path / "stream.journal", stream.identity)
    return FollowedSource(stream, journal, SCHEMA, endless, (clock or FakeClock()).now_s)


@settings(deadline=None, max_examples=40)
@given(COUNTS, st.integers(1, 40), st.integers(0, 100))
def test_batches_equal_those_of_a_table_for_any_segments(tmp_path_factory, counts, rows, start):
    stream = ListStream()
    stream.send(*counts)
    source = opened(tmp_path_factory.mktemp("followed"), stream)
    total = sum(counts)
    assert source.count_rows() == total
    batches = list(source.batches(rows, start))
    assert [row for batch in batches for row in said(batch)] == rows_of(start, max(0, total - start))
    assert [batch.start for batch in batches] == list(range(start, total, rows))
    assert all(len(batch) == rows for batch in batches[:-1])


@settings(deadline=None, max_examples=40)
@given(COUNTS, st.integers(1, 40), st.sets(st.integers(0, 120)), st.data())
def test_rejected_rows_keep_their_numbers_but_are_not_returned(tmp_path_factory, counts, rows, bad, data):
    stream = ListStream(bad)
    stream.send(*counts)
    tmp_path, total = tmp_path_factory.mktemp("followed"), sum(counts)
    sound = [n for n in range(total) if n not in bad]
    source = opened(tmp_path, stream)
    assert users(source.batches(rows)) == [(n, n) for n in sound]
    assert source.ingest_status().rejected == total - len(sound)
    start = data.draw(st.integers(0, total))
    assert users(source.batches(rows, start)) == [(n, n) for n in sound if n >= start]
    assert source.ingest_status().rejected == total - len(sound)


def test_batch_is_returned_when_full_or_after_a_delay(tmp_path):
    clock, stream = FakeClock(), ListStream()
    arriving = opened(tmp_path, stream, endless=True, clock=clock).arriving(10, 0)
    assert next(arriving) is None
    stream.send(4)
    assert next(arriving) is None
    clock.advance(followed_source.LINGER_S)
    assert users([next(arriving)]) == [(n, n) for n in range(4)]
    stream.send(25)
    assert [len(batch) for batch in itertools.islice(arriving, 2)] == [10, 10]
    assert next(arriving) is None
    clock.advance(followed_source.LINGER_S)
    assert users([next(arriving)]) == [(n, n) for n in range(24, 29)]


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_segment_that_a_full_disk_refused_is_recorded_by_the_next_look(tmp_path, monkeypatch, call):
    stream = ListStream()
    stream.send(4)
    source = opened(tmp_path, stream)
    assert source.count_rows() == 4
    stream.send(3, 2)
    calls = FailingCalls(tmp_path, monkeypatch)
    calls.begin(call)
    with pytest.raises(OSError, match="No space left"):
        source.count_rows()
    calls.at = None
    assert users(source.batches(3)) == [(n, n) for n in range(9)]
    assert users(opened(tmp_path, stream).batches(3)) == [(n, n) for n in range(9)]


def test_finite_stream_ends_with_its_existing_rows(tmp_path):
    stream = ListStream()
    stream.send(4, 4)
    assert users(opened(tmp_path, stream).arriving(5, 2)) == [(n, n) for n in range(2, 8)]


def test_reopened_stream_returns_the_same_rows_once(tmp_path):
    stream = ListStream()
    stream.send(5, 6)
    first = opened(tmp_path, stream)
    list(first.batches(3))
    first.close()
    assert stream.closed
    stream.send(7)
    again = opened(tmp_path, stream)
    assert users(again.batches(4, 9)) == [(n, n) for n in range(9, 18)]
    assert again.count_rows() == 18


def test_position_beyond_the_stream_is_refused(tmp_path):
    stream = ListStream()
    stream.send(5)
    with pytest.raises(BadInput, match=r"cannot continue at row 6: the stream has only 5 rows so far"):
        opened(tmp_path, stream, endless=True).arriving(2, 6)


def test_stream_with_a_different_format_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(followed_source, "REJECTED_ROWS", 20)
    stream = ListStream(range(3, 40))
    stream.send(40)
    with pytest.raises(BadInput, match=r"data: 17 of 20 consecutive rows are invalid; the last: column"):
        list(opened(tmp_path, stream).batches(8))


def test_many_rejected_rows_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(followed_source, "REJECTED_ROWS", 20)
    stream = ListStream(range(0, 200, 3))
    stream.send(200)
    source = opened(tmp_path, stream)
    list(source.batches(8))
    assert source.ingest_status().why.startswith("column 'user': expected an id, got a null at row ")


def test_rows_no_longer_needed_are_forgotten_periodically(tmp_path, monkeypatch):
    monkeypatch.setattr(followed_source, "FORGET_SEGMENTS", 4)
    stream = ListStream()
    source = opened(tmp_path, stream)
    stream.send(5, 5, 5)
    source.count_rows()
    source.forget(lambda: pytest.fail("asked too early"))
    stream.send(5, 5)
    source.count_rows()
    source.forget(lambda: 12)
    assert users(source.batches(4, 12)) == [(n, n) for n in range(12, 25)]
    with pytest.raises(BadInput, match="row 3 is no longer in the journal"):
        list(source.batches(4, 3))


def test_stream_events_are_reported_once(tmp_path):
    stream = ListStream({2})
    stream.send(5)
    source = opened(tmp_path, stream)
    assert source.news() == []
    list(source.batches(5))
    (line,) = source.news()
    assert line.startswith("1 invalid rows were skipped; the last: column 'user': expected an id, got a null at row 2")
    stream.backlog = lambda: StreamBacklog(lost=3, trouble="away")
    assert source.news() == [
        "3 rows of the stream were deleted before they were read",
        "the stream cannot be read: away",
    ]
    stream.backlog = lambda: StreamBacklog(lost=3)
    assert source.news() == ["the stream can be read again"]
    assert source.news() == []


def test_stream_status_is_reported(tmp_path):
    stream = ListStream()
    stream.send(5, 6, 7)
    arriving = (source := opened(tmp_path, stream)).arriving(5, 0)
    next(arriving)
    status = source.ingest_status()
    assert (status.rows, status.backlog.rows, status.backlog.lost, status.backlog.trouble) == (5, 13, 0, "")
