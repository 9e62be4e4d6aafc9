"""What is divided takes turns with what is not: in order, bounded, and nobody starves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import Overloaded
from freshet_serving.processor.sessions.batcher import Batcher
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


def linear(row_s=0.01, rows=4, name=""):
    """A target whose rows cost the same in every batch."""
    return Target(name, {n: n * row_s for n in range(1, rows + 1)})


def test_small_request_waits_for_one_chunk_of_a_large_request():
    batcher, target = Batcher(4, 1000), linear()
    divided(batcher, 400, 4, target)
    for turn in range(20):
        assert pieces(batcher, 1) == [(4 * turn, 4)]
        small = put(batcher, 1, target=target)
        assert batcher.take(0.0).batch == small


def test_new_arrivals_do_not_starve_a_large_request():
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
def test_waiting_work_gets_at_most_a_batch_and_chunk_ahead(takes, chunk_rows):
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


def test_equal_large_requests_run_in_order_and_smaller_ones_first():
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


def test_large_request_is_overtaken_by_at_most_its_own_work():
    batcher, target = Batcher(4, 1 << 20), linear()
    large = divided(batcher, 40, 4, target)
    before = 0
    while large.rows == 40:
        if batcher.queue_rows == 40:
            divided(batcher, 5, 4, target)
        (piece,) = batcher.take(0.0).batch
        before += piece.rows
        assert before <= 40 + 5 + 4


def test_large_request_takes_turns_with_another_model():
    batcher, busy, light = Batcher(4, 1000), linear(name="busy"), linear(name="light")
    divided(batcher, 400, 4, busy)
    waiting = put(batcher, *[4] * 20, target=light)
    left = pieces(batcher, 20)
    assert len([t for t in left if t in waiting]) == 10


def test_urgency_puts_no_model_ahead_by_more_than_a_batch_of_each():
    batcher, tight, loose = Batcher(4, 1000), linear(0.1, 1, "tight"), linear(0.1, 1, "loose")
    patient = put(batcher, 1, target=loose, deadline_s=1e9)
    taken, now_s = [], 0.0
    while taken != patient:
        assert now_s < 0.45
        put(batcher, 1, 1, target=tight, deadline_s=now_s + 0.15, now_s=now_s)
        taken = batcher.take(now_s).batch
        now_s += 0.1
    assert now_s > 0.15, "until then those in a hurry went before"


def test_large_request_that_cannot_finish_in_time_expires():
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


def test_divided_and_undivided_requests_have_separate_queue_limits():
    batcher = Batcher(4, 10)
    large = divided(batcher, 1000, 4)
    batcher.check_capacity(10, 0.0, None, 1, 0.0, model="a")
    put(batcher, 10)
    for asked in ({"rows": 1}, {"rows": 1, "divided": True}):
        with pytest.raises(Overloaded, match=r"rows wait \(max_queue_rows = 10\)"):
            batcher.check_capacity(own_s=0.0, slack_s=None, sessions=1, running_s=0.0, model="a", **asked)
    assert batcher.queue_rows == large.rows + 10


def test_queue_limits_ids_and_admits_one_oversized_request_when_empty():
    batcher = Batcher(4, 1000, max_queue_ids=100)
    batcher.check_capacity(1, 0.0, None, 1, 0.0, model="a", ids=101)
    batcher.put(Owned(1, 101, target=TARGETS[0]), TARGETS[0], 0.0)
    with pytest.raises(Overloaded, match=r"no room: 101 ids wait, at most 100 may \(max_queue_rows = 1000\)"):
        batcher.check_capacity(1, 0.0, None, 1, 0.0, model="a", ids=1)
    batcher.take(0.0)
    batcher.put(Owned(1, 60, target=TARGETS[0]), TARGETS[0], 0.0)
    batcher.check_capacity(1, 0.0, None, 1, 0.0, model="a", ids=40)


def test_rows_with_many_ids_do_not_share_one_batch():
    batcher, target = Batcher(256, 1 << 20), linear()
    heavy = int(target.costs.heavy_ids) // 2
    tickets = [Owned(1, heavy, target=target) for _ in range(5)]
    for ticket in tickets:
        batcher.put(ticket, target, 0.0)
    assert [batcher.take(0.0).batch for _ in range(3)] == [tickets[:2], tickets[2:4], tickets[4:]]


def test_shared_ids_are_charged_to_the_first_chunks():
    batcher, target = Batcher(4, 1000), linear()
    whole = Owned(10, 1020, None, 4, 1000, target=target)
    batcher.put(whole, target, 0.0)
    taken = [batcher.take(0.0).batch[0] for _ in range(3)]
    assert [(t.rows, t.ids) for t in taken] == [(4, 1008), (4, 8), (2, 4)]
    assert [t.cost_s for t in taken] == [pytest.approx(target.costs.amortised_s(t.rows, t.ids)) for t in taken]


def test_predicted_wait_counts_only_the_turns_of_large_requests():
    batcher, target = Batcher(4, 1 << 20), linear()
    put(batcher, 4, 4, target=target, deadline_s=0.5)
    alone_s = batcher.work_before_s("", "", 0.5, 0.0)
    divided(batcher, 4000, 4, target)
    assert alone_s == pytest.approx(0.08, rel=1e-3)
    assert batcher.work_before_s("", "", 0.5, 0.0) == pytest.approx(2 * alone_s + 0.04, rel=1e-3)
    batcher.check_capacity(1, 0.01, 0.35, 1, 0.0)
    with pytest.raises(Overloaded, match="a reply may take 310"):
        batcher.check_capacity(1, 0.01, 0.3, 1, 0.0)
    # A large one is promised an answer for as long as it takes beside others, and waits only for what goes before it.
    batcher.check_capacity(8, 0.08, 0.5, 1, 0.0, divided=True)
    with pytest.raises(Overloaded):
        batcher.check_capacity(8, 0.08, 0.2, 1, 0.0, divided=True)
