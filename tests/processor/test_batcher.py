"""The batcher as a state machine: nothing lost, nothing doubled, order kept, bounds held."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from processor.batcher import Batcher, Ticket
from processor.clock import FakeClock
from processor.errors import Overloaded


class Target:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


TARGETS = [Target("a"), Target("b"), Target("c")]


class Batching(RuleBasedStateMachine):
    @initialize(max_rows=st.integers(1, 12), max_queue_rows=st.integers(1, 40))
    def start(self, max_rows, max_queue_rows):
        self.max_rows, self.max_queue_rows = max_rows, max_queue_rows
        self.batcher = Batcher(max_rows, max_queue_rows)
        self.clock = FakeClock()
        self.waiting, self.left, self.number = [], [], 0

    @rule(owner=st.sampled_from(TARGETS), rows=st.integers(1, 60), slack=st.none() | st.integers(-1, 6))
    def put(self, owner, rows, slack):
        deadline_s = None if slack is None else self.clock.now_s() + slack
        ticket = Ticket(owner, rows, self.number, deadline_s)
        self.number += 1
        room = not self.waiting or sum(t.rows for t in self.waiting) + rows <= self.max_queue_rows
        if room:
            self.batcher.put(ticket)
            self.waiting.append(ticket)
        else:
            with pytest.raises(Overloaded):
                self.batcher.put(ticket)

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def take(self):
        now_s = self.clock.now_s()
        taken = self.batcher.take(now_s)
        gone = taken.batch + taken.expired
        assert bool(gone) == bool(self.waiting)
        for ticket in taken.batch:
            assert ticket.deadline_s is None or ticket.deadline_s > now_s
        for ticket in taken.expired:
            assert ticket.deadline_s is not None
            assert ticket.deadline_s <= now_s
        assert len({id(t.target) for t in taken.batch}) <= 1
        rows = sum(t.rows for t in taken.batch)
        assert rows <= self.max_rows or len(taken.batch) == 1
        # What left is the head of the queue, in order: no ticket is lost, doubled or overtaken.
        assert sorted(t.payload for t in gone) == [t.payload for t in self.waiting[: len(gone)]]
        for part in (taken.batch, taken.expired):
            assert [t.payload for t in part] == sorted(t.payload for t in part)
        self.waiting = self.waiting[len(gone) :]
        self.left += gone
        # Work-conserving: what stays behind could not have joined.
        if self.waiting:
            head = self.waiting[0]
            assert taken.batch
            assert head.deadline_s is None or head.deadline_s > now_s
            assert head.target is not taken.batch[0].target or rows + head.rows > self.max_rows

    @invariant()
    def the_queue_is_what_was_put_and_has_not_left(self):
        if hasattr(self, "batcher"):
            assert self.batcher.queue_rows == sum(t.rows for t in self.waiting)
            assert len(self.batcher) == len(self.waiting)
            assert len({t.payload for t in self.left}) == len(self.left)

    def teardown(self):
        while getattr(self, "waiting", None):
            self.take()


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


def put(batcher, *rows, target=TARGETS[0], deadline_s=None):
    tickets = [Ticket(target, n, None, deadline_s) for n in rows]
    for ticket in tickets:
        batcher.put(ticket)
    return tickets


def test_an_idle_session_gets_what_is_there_at_once():
    batcher = Batcher(100, 1000)
    tickets = put(batcher, 1)
    assert batcher.take(0.0).batch == tickets


def test_an_empty_queue_gives_nothing():
    taken = Batcher(4, 10).take(0.0)
    assert (taken.batch, taken.expired) == ([], [])


def test_a_batch_stops_before_the_ticket_that_would_pass_its_bound():
    batcher = Batcher(10, 100)
    tickets = put(batcher, 4, 6, 1)
    assert batcher.take(0.0).batch == tickets[:2]
    assert batcher.take(0.0).batch == tickets[2:]


def test_a_batch_does_not_mix_targets():
    batcher = Batcher(10, 100)
    first, other = put(batcher, 1), put(batcher, 1, target=TARGETS[1])
    last = put(batcher, 1)
    assert [batcher.take(0.0).batch for _ in range(3)] == [first, other, last]


def test_targets_that_are_equal_but_not_the_same_do_not_share_a_batch():
    batcher = Batcher(10, 100)
    first, second = put(batcher, 1, target=[1]), put(batcher, 1, target=[1])
    assert [batcher.take(0.0).batch for _ in range(2)] == [first, second]


def test_one_ticket_larger_than_batch_and_queue_is_admitted_when_the_queue_is_empty():
    batcher = Batcher(4, 10)
    huge = put(batcher, 1000)
    assert batcher.queue_rows == 1000
    with pytest.raises(Overloaded):
        put(batcher, 1)
    assert batcher.take(0.0).batch == huge
    assert batcher.queue_rows == 0
    put(batcher, 1)


def test_a_full_queue_sheds_with_a_time_to_come_back_and_keeps_what_it_has():
    batcher = Batcher(4, 10)
    tickets = put(batcher, 5, 5)
    with pytest.raises(Overloaded, match="at most 10 rows wait, 10 do") as shed:
        put(batcher, 1)
    assert shed.value.retry_after_s > 0
    assert batcher.take(0.0).batch + batcher.take(0.0).batch == tickets


def test_expired_tickets_go_one_by_one_and_the_live_ones_between_them_run_together():
    batcher = Batcher(10, 100)
    live, dead = [], []
    for _ in range(3):
        live += put(batcher, 1)
        dead += put(batcher, 1, deadline_s=1.0)
    taken = batcher.take(1.0)
    assert (taken.batch, taken.expired) == (live, dead)


def test_an_expired_ticket_takes_no_room_in_the_batch():
    batcher = Batcher(4, 100)
    dead, live = put(batcher, 4, deadline_s=1.0), put(batcher, 4)
    taken = batcher.take(2.0)
    assert (taken.batch, taken.expired) == (live, dead)


def test_a_deadline_is_the_first_moment_that_is_too_late():
    batcher = Batcher(4, 100)
    (ticket,) = put(batcher, 1, deadline_s=1.0)
    assert batcher.take(0.999).batch == [ticket]
    put(batcher, 1, deadline_s=1.0)
    assert batcher.take(1.0).batch == []
