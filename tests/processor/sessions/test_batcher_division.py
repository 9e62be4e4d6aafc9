"""What is divided takes turns with what is not: in order, bounded, and nobody starves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import Overloaded
from freshet_serving.processor.sessions.batcher import PATIENCE_S, Batcher
from tests.processor.sessions.tickets import TARGETS, Owned, Target, put


def divided(batcher, rows, chunk_rows, target=TARGETS[0], now_s=0.0, deadline_s=None):
    ticket = Owned(rows, 0, deadline_s, chunk_rows, target=target)
    batcher.put(ticket, target, now_s)
    return ticket


def pieces(batcher, count, now_s=0.0):
    """What leaves by so many takes: (first, rows) of pieces, tickets of other batches."""
    left = []
    for _ in range(count):
        batch = batcher.take(now_s).batch
        left += [(t.first, t.rows) if t.chunk_rows else t for t in batch]
    return left


def linear(row_s=0.01, rows=4):
    """A target whose rows cost the same in every batch."""
    return Target(cost={n: n * row_s for n in range(1, rows + 1)})


def test_a_small_request_waits_for_one_piece_of_a_large_one_of_its_model_however_many_are_left():
    batcher, target = Batcher(4, 1000), linear()
    divided(batcher, 400, 4, target)
    for turn in range(20):
        assert pieces(batcher, 1) == [(4 * turn, 4)]
        small = put(batcher, 1, target=target)
        assert batcher.take(0.0).batch == small


def test_what_comes_anew_with_every_turn_does_not_keep_a_large_request_from_its_turns():
    batcher, target = Batcher(4, 1000), linear()
    large = divided(batcher, 400, 4, target)
    for _ in range(50):
        if len(batcher) == 1:
            put(batcher, 4, target=target)
        batcher.take(0.0)
    assert large.rows == pytest.approx(400 - 4 * 25, abs=4)


@given(
    takes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), min_size=1, max_size=60),
    chunk_rows=st.integers(1, 12),
)
@settings(max_examples=50, deadline=None)
def test_while_both_wait_neither_is_given_more_than_a_batch_and_a_piece_ahead_of_the_other(takes, chunk_rows):
    batcher, target = Batcher(8, 10_000), linear(rows=8)
    divided(batcher, 5000, chunk_rows, target)
    given, most = [0, 0], 8 + chunk_rows
    for count, rows in takes:
        put(batcher, *[rows] * count, target=target)
        both = len(batcher) > 1
        (first, *_) = batch = batcher.take(0.0).batch
        given[first.chunk_rows > 0] += sum(t.rows for t in batch)
        # Where nothing else waited the large one has the time to itself, and nobody owes anybody for it.
        given = given if both else [0, 0]
        assert abs(given[0] - given[1]) <= most


def test_large_requests_that_are_alike_are_done_one_after_the_other_and_a_smaller_one_goes_before():
    batcher, target = Batcher(4, 1000), linear()
    first, second = divided(batcher, 12, 4, target), divided(batcher, 12, 4, target)
    batcher.take(0.0)
    third = divided(batcher, 5, 4, target, now_s=1.0)
    assert [(t.rows, t.first) for t in (first, second, third)] == [(8, 4), (12, 0), (5, 0)]
    done = [batcher.take(0.0).batch[0] for _ in range(7)]
    assert [t.rows for t in done] == [4, 1, 4, 4, 4, 4, 4]
    assert [t.first for t in done] == [0, 4, 4, 8, 0, 4, 8]
    assert done[1] is third
    assert done[3] is first
    assert done[6] is second


def test_nothing_goes_before_a_large_request_that_comes_after_as_much_work_as_it_is_itself():
    batcher, target = Batcher(4, 1 << 20), linear()
    large = divided(batcher, 40, 4, target)
    before = 0
    while large.rows == 40:
        if batcher.queue_rows == 40:
            divided(batcher, 5, 4, target)
        (piece,) = batcher.take(0.0).batch
        before += piece.rows
        assert before <= 40 + 5 + 4


def test_a_large_request_of_another_model_takes_turns_with_it_and_its_small_ones_like_any_work():
    batcher, busy, light = Batcher(4, 1000), linear(), linear()
    divided(batcher, 400, 4, busy)
    waiting = put(batcher, *[4] * 20, target=light)
    left = pieces(batcher, 20)
    assert len([t for t in left if t in waiting]) == 10


def test_a_hurry_takes_no_model_more_than_the_patience_ahead_of_another():
    batcher, tight, loose = Batcher(4, 1000), linear(0.1, 1), linear(0.1, 1)
    patient = put(batcher, 1, target=loose, deadline_s=1e9)
    taken, now_s = [], 0.0
    while taken != patient:
        assert now_s < 4 * PATIENCE_S
        put(batcher, 1, 1, target=tight, deadline_s=now_s + 0.15, now_s=now_s)
        taken = batcher.take(now_s).batch
        now_s += 0.1
    assert now_s > PATIENCE_S / 2, "until then those in a hurry went before"


def test_a_large_request_that_cannot_be_done_in_time_any_more_expires_with_what_is_left_of_it():
    batcher, target = Batcher(4, 1000), linear(1.0)
    large = divided(batcher, 12, 4, target, deadline_s=13.0)
    assert pieces(batcher, 1) == [(0, 4)]
    put(batcher, *[4] * 9, target=target)
    expired = []
    while not expired:
        expired = batcher.take(5.5).expired
    assert expired == [large]
    assert (large.first, large.rows) == (4, 8)
    # Two sessions could do it in time.
    other = divided(batcher, 12, 4, target, deadline_s=13.0)
    while not other.first:
        assert not batcher.take(5.5, sessions=2).expired


def test_what_is_divided_and_what_is_not_have_room_of_their_own():
    batcher = Batcher(4, 10)
    large = divided(batcher, 1000, 4)
    batcher.check_capacity(10, 0.0, None, 1, 0.0)
    put(batcher, 10)
    for asked in ({"rows": 1}, {"rows": 1, "divided": True}):
        with pytest.raises(Overloaded, match=r"rows wait \(max_queue_rows = 10\)"):
            batcher.check_capacity(own_s=0.0, slack_s=None, sessions=1, running_s=0.0, **asked)
    assert batcher.queue_rows == large.rows + 10


def test_a_queue_is_full_of_ids_as_it_is_of_rows_and_one_request_of_more_finds_room_in_an_empty_one():
    batcher = Batcher(4, 1000, max_queue_ids=100)
    batcher.check_capacity(1, 0.0, None, 1, 0.0, ids=101)
    batcher.put(Owned(1, 101, target=TARGETS[0]), TARGETS[0], 0.0)
    with pytest.raises(Overloaded, match=r"no room: 101 ids wait \(max_queue_ids = 100\)"):
        batcher.check_capacity(1, 0.0, None, 1, 0.0, ids=1)
    batcher.take(0.0)
    batcher.put(Owned(1, 60, target=TARGETS[0]), TARGETS[0], 0.0)
    batcher.check_capacity(1, 0.0, None, 1, 0.0, ids=40)


def test_rows_of_very_many_ids_do_not_pile_up_in_one_batch():
    batcher, target = Batcher(256, 1 << 20), linear()
    heavy = int(target.costs.heavy_ids) // 2
    tickets = [Owned(1, heavy, target=target) for _ in range(5)]
    for ticket in tickets:
        batcher.put(ticket, target, 0.0)
    assert [batcher.take(0.0).batch for _ in range(3)] == [tickets[:2], tickets[2:4], tickets[4:]]


def test_ids_that_all_rows_share_are_the_first_pieces():
    batcher, target = Batcher(4, 1000), linear()
    whole = Owned(10, 1020, None, 4, 1000, target=target)
    batcher.put(whole, target, 0.0)
    taken = [batcher.take(0.0).batch[0] for _ in range(3)]
    assert [(t.rows, t.ids) for t in taken] == [(4, 1008), (4, 8), (2, 4)]
    assert [t.cost_s for t in taken] == [pytest.approx(target.costs.amortised_s(t.rows, t.ids)) for t in taken]


def test_what_is_promised_counts_the_turns_of_large_requests_and_no_more_of_them_than_that():
    batcher, target = Batcher(4, 1 << 20), linear()
    put(batcher, 4, 4, target=target, deadline_s=0.5)
    alone_s = batcher.work_before_s(0.5)
    divided(batcher, 4000, 4, target)
    assert alone_s == pytest.approx(0.08, rel=1e-3)
    assert batcher.work_before_s(0.5) == pytest.approx(2 * alone_s + 0.04, rel=1e-3)
    batcher.check_capacity(1, 0.01, 0.35, 1, 0.0)
    with pytest.raises(Overloaded, match="a reply may take 310"):
        batcher.check_capacity(1, 0.01, 0.3, 1, 0.0)
    # A large one is promised an answer for as long as it takes beside others, and waits only for what goes before it.
    batcher.check_capacity(8, 0.08, 0.5, 1, 0.0, divided=True)
    with pytest.raises(Overloaded):
        batcher.check_capacity(8, 0.08, 0.2, 1, 0.0, divided=True)
