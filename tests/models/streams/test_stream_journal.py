"""The journal of a stream: numbers that rows keep, whatever happens between two lines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.streams.stream import ErrorContext, Segment
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.errors import BadInput, Corrupt
from tests.support.failing_calls import FailingCalls

COUNTS = st.lists(st.integers(0, 9), max_size=12)


def segments(counts, first=0):
    return [Segment({"file": f"f{first + n}"}, count) for n, count in enumerate(counts)]


def opened(tmp_path, identity="a folder"):
    return StreamJournal(tmp_path / "stream.journal", identity)


@settings(deadline=None, max_examples=40)
@given(COUNTS, COUNTS, st.integers(0, 60))
def test_rows_keep_their_numbers_when_reopened(tmp_path_factory, before, after, row):
    tmp_path = tmp_path_factory.mktemp("journal")
    journal = opened(tmp_path)
    journal.append(segments(before))
    journal = opened(tmp_path)
    journal.append(segments(after, len(before)))
    again = opened(tmp_path)
    counts = before + after
    assert again.segments == segments(counts)
    assert again.rows == sum(counts)
    wanted, start = [], 0
    for segment in segments(counts):
        if segment.rows and start + segment.rows > row:
            wanted.append((start, segment))
        start += segment.rows
    assert list(again.since(row)) == wanted


@settings(deadline=None, max_examples=40)
@given(COUNTS.filter(bool), st.data())
def test_partial_line_after_a_crash_is_removed(tmp_path_factory, counts, data):
    tmp_path = tmp_path_factory.mktemp("journal")
    journal = opened(tmp_path)
    journal.append(segments(counts))
    path = tmp_path / "stream.journal"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    kept = data.draw(st.integers(1, len(lines) - 1))
    torn = data.draw(st.integers(0, len(lines[kept]) - 1))
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][:torn])
    again = opened(tmp_path)
    assert again.segments == segments(counts)[: kept - 1]
    again.append(segments([5], 99))
    assert opened(tmp_path).segments == [*segments(counts)[: kept - 1], *segments([5], 99)]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_what_a_full_disk_refuses_is_not_known(tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("journal")
    with pytest.MonkeyPatch.context() as patches:
        calls = FailingCalls(tmp_path, patches)
        journal, sent = opened(tmp_path), []
        for _ in range(data.draw(st.integers(1, 8))):
            new = segments(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)), len(sent))
            forgets = data.draw(st.booleans())
            calls.begin(data.draw(st.sampled_from([None, None, 1, 2, 3])))
            try:
                if forgets:
                    journal.forget(data.draw(st.integers(0, journal.rows)), lambda segment: True)
                else:
                    journal.append(new)
                    sent += new
            except OSError:
                pass
            calls.at = None
            # A line may be there although the disk refused to say so, until the next one is appended.
            assert opened(tmp_path).segments[: len(journal)] == journal.segments
            assert journal.segments == sent[len(sent) - len(journal) :]
        journal.append(segments([5], 99))
        assert opened(tmp_path).segments == journal.segments


def test_corrupted_line_ends_the_trusted_part(tmp_path):
    journal = opened(tmp_path)
    journal.append(segments([3, 4, 5]))
    path = tmp_path / "stream.journal"
    path.write_bytes(path.read_bytes().replace(b'"rows":4', b'"rows":9'))
    assert opened(tmp_path).segments == segments([3])


def test_journal_of_a_different_stream_is_refused_or_restarted(tmp_path):
    journal = opened(tmp_path)
    journal.append(segments([3]))
    with pytest.raises(BadInput, match=r"data.path: expected a folder, .* got a topic"):
        opened(tmp_path, "a topic")
    anew = StreamJournal(tmp_path / "stream.journal", "a topic", anew=True)
    assert anew.rows == 0
    anew.append(segments([2]))
    assert opened(tmp_path, "a topic").rows == 2


def test_error_uses_the_name_given_by_the_caller(tmp_path):
    opened(tmp_path).append(segments([3]))
    context = ErrorContext("--outcomes", "a join into another --out starts")
    with pytest.raises(
        BadInput, match=r"^--outcomes: expected a folder, .*; a join into another --out starts with another"
    ):
        StreamJournal(tmp_path / "stream.journal", "a topic", context=context)


def test_file_that_is_not_a_journal_is_refused(tmp_path):
    (tmp_path / "stream.journal").write_bytes(b"something else\n")
    with pytest.raises(Corrupt, match=r"stream.journal: expected format 'freshet-stream/1'"):
        opened(tmp_path)


def test_forgetting_segments_keeps_the_numbers_of_the_rest(tmp_path):
    journal = opened(tmp_path)
    journal.append(segments([3, 4, 5, 6]))
    journal.forget(8, lambda segment: segment.where["file"] != "f0")
    assert [segment.where["file"] for segment in journal.segments] == ["f0", "f2", "f3"]
    assert [start for start, _ in journal.since(7)] == [7, 12]
    journal.append(segments([1], 4))
    again = opened(tmp_path)
    assert (again.rows, [start for start, _ in again.since(12)]) == (19, [12, 18])
    with pytest.raises(BadInput, match=r"row 3 is no longer in the journal"):
        list(again.since(3))


def test_forgetting_during_iteration_skips_no_segment(tmp_path):
    journal = opened(tmp_path)
    journal.append(segments([2] * 10))
    found = []
    for start, _ in journal.since(4):
        found.append(start)
        journal.forget(start, lambda segment: True)
        if start == 10:
            journal.append(segments([2], 10))
    assert found == list(range(4, 22, 2))
    assert len(journal) == 1


@pytest.mark.parametrize("forgotten", [(), ("f0",), ("f1",)])
def test_journal_is_copied_unless_rows_were_forgotten(tmp_path, forgotten):
    journal = opened(tmp_path)
    journal.append(segments((3, 2, 4)))
    journal.forget(9, lambda segment: segment.where["file"] in forgotten)
    journal.copy_whole(tmp_path / "copy.journal")
    copy = StreamJournal(tmp_path / "copy.journal", "a folder")
    assert copy.segments == ([] if forgotten else segments((3, 2, 4)))


def test_newest_segment_is_kept_so_numbering_continues(tmp_path):
    journal = opened(tmp_path)
    journal.append(segments([3, 4]))
    journal.forget(100, lambda segment: True)
    assert opened(tmp_path).rows == 7
