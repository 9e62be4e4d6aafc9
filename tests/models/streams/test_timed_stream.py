"""Up to which time a stream has been read."""

import pytest

from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.stream import StreamBacklog
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.streams.timed_stream import TimedStream
from tests.models.streams.made import SCHEMA, ListStream
from tests.models.streams.recordings import Clock


@pytest.fixture
def made(tmp_path):
    stream, clock = ListStream(), Clock(2e9)

    def open_(endless=True):
        source = FollowedSource(stream, StreamJournal(tmp_path / "journal", "a list"), SCHEMA, endless, linger_s=0.0)
        return TimedStream(source, 0, clock)

    return stream, clock, open_


def test_stream_is_read_to_its_newest_time_and_then_now(made):
    stream, _, open_ = made
    stream.send(7)
    arrivals = open_()
    assert len(arrivals.next()) == 7
    assert (arrivals.read_s, arrivals.position) == (1e9 + 6, 7)
    assert arrivals.next() is None
    assert (arrivals.read_s, arrivals.ended) == (2e9, False)


def test_stream_with_an_error_does_not_advance(made):
    stream, _, open_ = made
    stream.backlog = lambda: StreamBacklog(trouble="away")
    arrivals = open_()
    assert arrivals.next() is None
    assert arrivals.read_s == float("-inf")


def test_stream_that_was_not_polled_does_not_advance(made):
    stream, _, open_ = made
    stream.backlog = lambda: StreamBacklog(looks=3)
    arrivals = open_()
    assert arrivals.next() is None
    assert arrivals.read_s == float("-inf")
    counts = iter([3, 4])
    stream.backlog = lambda: StreamBacklog(looks=next(counts))
    assert arrivals.next() is None
    assert arrivals.read_s == 2e9


def test_times_ahead_of_the_clock_count_as_now(made):
    stream, clock, open_ = made
    clock.now_s = 1e9 + 3
    stream.send(7)
    arrivals = open_()
    arrivals.next()
    assert arrivals.read_s == 1e9 + 3


def test_stream_that_does_not_follow_ends(made):
    stream, _, open_ = made
    stream.send(3)
    arrivals = open_(endless=False)
    assert len(arrivals.next()) == 3
    assert arrivals.next() is None
    assert arrivals.ended
    assert arrivals.next() is None


def test_read_time_advances_only_after_all_rows_were_returned(made):
    """Otherwise rows that are older than that moment would come after it."""
    stream, _, open_ = made
    stream.send(3, 5)
    arrivals = open_()
    assert [len(batch) for batch in iter(arrivals.next, None)] == [3, 5]
    assert arrivals.read_s == 2e9
