"""Rows and outcomes that wait for each other, and what is open of them."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.streams.emitted_rows import NOWHERE, RowLocation
from freshet_serving.models.streams.matching import JoinCounts, Matcher, OpenOutcomes, counts_from
from freshet_serving.processor.errors import Corrupt


class Emitted:
    """Rows that have left, by key."""

    def __init__(self, known):
        self.known = known

    def find(self, keys, taken=False):
        return [self.known.get(key) for key in keys]


def matcher(wait_s=10.0, late_s=100.0, emitted=None, known=None):
    return Matcher(wait_s, late_s, Emitted(emitted or {}), known or OpenOutcomes(), JoinCounts())


def test_rows_leave_in_order_when_their_window_ends():
    one = matcher()
    one.take_rows(0, [0.0, 5.0, 3.0], [b"a", b"b", b"c"])
    assert one.due(10.0, 9) == []
    assert [row.number for row in one.due(10.1, 9)] == [0]
    # The third one's window has ended, but the second is before it.
    assert [row.number for row in one.due(13.1, 9)] == [0]
    assert [row.number for row in one.due(15.1, 2)] == [0, 1]


def test_outcome_is_open_until_it_is_resolved():
    one = matcher()
    one.take_outcomes(0, [4.0, 5.0], [1.0, 1.0], [b"a", b"never"])
    assert one.open_outcomes() == OpenOutcomes(0, 2, frozenset({0, 1}))
    one.take_rows(0, [0.0], [b"a"])
    assert one.in_time(one.due(11.0, 1)[0]) == 1.0
    one.pop_rows(1, [RowLocation(1, 0)])
    assert one.open_outcomes() == OpenOutcomes(1, 2, frozenset({1}))
    assert one.give_up(5.1) == [5.0]
    assert one.open_outcomes() == OpenOutcomes(2, 2)
    assert (one.counts.positives, one.counts.unmatched) == (1, 1)


def test_resolved_outcomes_are_not_taken_again():
    one = matcher(known=OpenOutcomes(3, 6, frozenset({4})))
    one.take_outcomes(3, [1.0, 2.0, 3.0, 4.0], [1.0] * 4, [b"a", b"b", b"c", b"d"])
    assert one.held == 2
    assert one.open_outcomes() == OpenOutcomes(4, 7, frozenset({4, 6}))


def test_outcome_after_the_window_corrects_an_emitted_row():
    one = matcher()
    one.take_rows(0, [0.0], [b"a"])
    one.take_outcomes(0, [50.0, 60.0], [1.0, 1.0], [b"a", b"a"])
    one.pop_rows(1, [RowLocation(7, 0)])
    assert [(late.place, late.outcome.number) for late in one.late] == [(RowLocation(7, 0), 0)]
    assert one.counts.duplicates == 1
    assert one.open_outcomes().numbers == {0}


def test_outcome_for_an_emitted_row_is_late_or_a_duplicate():
    one = matcher(emitted={b"a": RowLocation(1, 5), b"b": RowLocation(1, 6, True)})
    one.take_outcomes(0, [50.0, 50.0], [1.0, 1.0], [b"a", b"b"])
    assert [late.place for late in one.late] == [RowLocation(1, 5)]
    assert one.counts.duplicates == 1


def test_outcome_long_after_its_row_is_too_late():
    one = matcher()
    one.take_rows(0, [0.0], [b"a"])
    one.take_outcomes(0, [100.5], [1.0], [b"a"])
    assert one.counts.too_late == 1


def test_first_row_of_a_repeated_key_gets_the_outcome():
    one = matcher()
    one.take_rows(0, [1.0, 1.0], [b"a", b"a"])
    one.take_outcomes(0, [2.0], [1.0], [b"a"])
    due = one.due(99.0, 9)
    assert [one.in_time(row) for row in due] == [1.0, 0.0]
    assert one.contested(due) == []
    one.pop_rows(2, [RowLocation(1, 0), RowLocation(1, 1)])
    assert (one.counts.rows, one.counts.repeated) == (2, 1)


def test_one_row_of_a_retried_request_gets_the_outcome():
    one = matcher()
    one.take_rows(0, [0.0, 1.0, 2.0], [b"a", b"b", b"a"])
    one.take_outcomes(0, [2.0], [1.0], [b"a"])
    (first,) = one.contested(one.due(10.5, 9))
    assert [row.number for row in first.of_others] == [2]
    one.decide(first, True)
    assert [(row.left_out, one.in_time(row)) for row in one.due(99.0, 9)] == [("", 1.0), ("", 0.0), ("retried", 0.0)]
    one.pop_rows(3, [RowLocation(1, 0), RowLocation(1, 1), RowLocation(1, NOWHERE)])
    assert (one.counts.rows, one.counts.retried, one.counts.positives) == (2, 1, 1)


def test_outcome_for_an_id_of_several_requests_is_ignored():
    one = matcher()
    one.take_rows(0, [0.0, 1.0, 2.0], [b"a", b"b", b"a"])
    one.take_outcomes(0, [2.0], [1.0], [b"a"])
    (first,) = one.contested(one.due(10.5, 9))
    one.decide(first, False)
    assert [row.left_out for row in one.due(99.0, 9)] == ["disowned", "", "disowned"]
    one.pop_rows(3, [RowLocation(1, NOWHERE), RowLocation(1, 0), RowLocation(1, NOWHERE)])
    assert (one.counts.rows, one.counts.disowned, one.counts.ambiguous, one.counts.positives) == (1, 2, 1, 0)
    assert one.open_outcomes().numbers == frozenset()


def test_outcome_for_a_disowned_id_is_ambiguous():
    one = matcher(emitted={b"a": RowLocation(1, NOWHERE)})
    one.take_outcomes(0, [50.0], [1.0], [b"a"])
    assert (one.late, one.counts.ambiguous) == ([], 1)


def test_late_outcome_waits_for_a_possible_second_request():
    places = {b"a": RowLocation(1, 5)}
    one = matcher(emitted=places)
    one.take_outcomes(0, [50.0, 51.0], [1.0, 1.0], [b"a", b"a"])
    assert one.corrections(50.0, 9) == []
    assert [late.place for late in one.corrections(50.5, 9)] == [RowLocation(1, 5)]
    # A guest under the same id: the outcomes wait with it, until it leaves.
    one.take_rows(7, [49.0], [b"a"])
    assert one.corrections(99.0, 9) == []
    (guest,) = one.contested(one.due(99.0, 9))
    assert guest.before == RowLocation(1, 5)
    one.decide(guest, False)
    assert (guest.left_out, one.counts.ambiguous, one.counts.duplicates) == ("disowned", 1, 1)


def test_retry_of_an_emitted_row_leaves_the_outcome_to_it():
    one = matcher(emitted={b"a": RowLocation(1, 5)})
    one.take_rows(7, [49.0, 49.0], [b"a", b"b"])
    one.take_outcomes(0, [50.0], [1.0], [b"a"])
    (again,) = one.contested(one.due(99.0, 9))
    one.decide(again, True)
    assert again.left_out == "retried"
    assert [late.place for late in one.corrections(99.0, 9)] == [RowLocation(1, 5)]


def test_counts_of_an_older_release_are_readable():
    older = asdict(JoinCounts(rows=3))
    for name in ("retried", "disowned", "ambiguous"):
        del older[name]
    assert counts_from(older) == JoinCounts(rows=3)


@given(first=st.integers(0, 1000), open_=st.sets(st.integers(0, 300)), length=st.integers(0, 300))
def test_open_outcomes_round_trip(first, open_, length):
    numbers = frozenset(first + n for n in open_ if n < length)
    known = OpenOutcomes(first, first + length, numbers)
    assert OpenOutcomes.from_json(known.to_json()) == known


@pytest.mark.parametrize("said", [{}, {"first": 0, "end": 9, "open": "!"}, {"first": 0, "end": 9, "open": "eJw="}])
def test_damaged_states_are_refused(said):
    with pytest.raises(Corrupt):
        OpenOutcomes.from_json(said)
    with pytest.raises(Corrupt):
        counts_from(said)
