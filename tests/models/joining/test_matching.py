"""Rows and outcomes that wait for each other, and what is open of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.joining.emitted_rows import RowPlace
from models.joining.matching import JoinCounts, Matcher, OpenOutcomes, counts_from
from processor.errors import Corrupt


def matcher(wait_s=10.0, late_s=100.0, emitted=None, known=None):
    places = emitted or {}
    return Matcher(
        wait_s, late_s, lambda keys: [places.get(key) for key in keys], known or OpenOutcomes(), JoinCounts()
    )


def test_rows_leave_in_order_at_the_end_of_their_window():
    one = matcher()
    one.take_rows(0, [0.0, 5.0, 3.0], [b"a", b"b", b"c"])
    assert one.due(10.0, 9) == []
    assert [row.number for row in one.due(10.1, 9)] == [0]
    # The third one's window has ended, but the second is before it.
    assert [row.number for row in one.due(13.1, 9)] == [0]
    assert [row.number for row in one.due(15.1, 2)] == [0, 1]


def test_an_outcome_is_open_until_it_has_a_fate():
    one = matcher()
    one.take_outcomes(0, [4.0, 5.0], [1.0, 1.0], [b"a", b"never"])
    assert one.open_outcomes() == OpenOutcomes(0, 2, frozenset({0, 1}))
    one.take_rows(0, [0.0], [b"a"])
    assert one.in_time(one.due(11.0, 1)[0]) == 1.0
    one.leave(1, [RowPlace(1, 0)])
    assert one.open_outcomes() == OpenOutcomes(1, 2, frozenset({1}))
    assert one.give_up(5.1) == [5.0]
    assert one.open_outcomes() == OpenOutcomes(2, 2)
    assert (one.counts.positives, one.counts.unmatched) == (1, 1)


def test_what_was_done_is_not_taken_again():
    one = matcher(known=OpenOutcomes(3, 6, frozenset({4})))
    one.take_outcomes(3, [1.0, 2.0, 3.0, 4.0], [1.0] * 4, [b"a", b"b", b"c", b"d"])
    assert one.held == 2
    assert one.open_outcomes() == OpenOutcomes(4, 7, frozenset({4, 6}))


def test_an_outcome_after_the_window_corrects_a_row_that_has_left():
    one = matcher()
    one.take_rows(0, [0.0], [b"a"])
    one.take_outcomes(0, [50.0, 60.0], [1.0, 1.0], [b"a", b"a"])
    one.leave(1, [RowPlace(7, 0)])
    assert [(late.place, late.hit.number) for late in one.late] == [(RowPlace(7, 0), 0)]
    assert one.counts.duplicates == 1
    assert one.open_outcomes().numbers == {0}


def test_an_outcome_of_a_row_that_has_left_is_late_or_a_duplicate():
    one = matcher(emitted={b"a": RowPlace(1, 5), b"b": RowPlace(1, 6, True)})
    one.take_outcomes(0, [50.0, 50.0], [1.0, 1.0], [b"a", b"b"])
    assert [late.place for late in one.late] == [RowPlace(1, 5)]
    assert one.counts.duplicates == 1


def test_an_outcome_long_after_its_row_is_too_late():
    one = matcher()
    one.take_rows(0, [0.0], [b"a"])
    one.take_outcomes(0, [100.5], [1.0], [b"a"])
    assert one.counts.too_late == 1


def test_of_rows_of_one_key_the_first_has_the_outcome():
    one = matcher()
    one.take_rows(0, [0.0, 1.0], [b"a", b"a"])
    one.take_outcomes(0, [2.0], [1.0], [b"a"])
    assert [one.in_time(row) for row in one.due(99.0, 9)] == [1.0, 0.0]
    one.leave(2, [RowPlace(1, 0), RowPlace(1, 1)])
    assert one.counts.repeated == 1


@given(first=st.integers(0, 1000), open_=st.sets(st.integers(0, 300)), length=st.integers(0, 300))
def test_open_outcomes_are_read_as_they_were_written(first, open_, length):
    numbers = frozenset(first + n for n in open_ if n < length)
    known = OpenOutcomes(first, first + length, numbers)
    assert OpenOutcomes.from_json(known.to_json()) == known


@pytest.mark.parametrize("said", [{}, {"first": 0, "end": 9, "open": "!"}, {"first": 0, "end": 9, "open": "eJw="}])
def test_damaged_states_are_refused(said):
    with pytest.raises(Corrupt):
        OpenOutcomes.from_json(said)
    with pytest.raises(Corrupt):
        counts_from(said)
