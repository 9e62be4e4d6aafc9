"""Large requests on several sessions: split, rejoined in order, of one generation, and never answered twice."""

import logging
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.backends.cost import CostTable
from processor.clock import FakeClock, SystemClock
from processor.errors import Expired, FreshetError, Overloaded
from processor.sessions.group import HOLDS
from processor.versions.control import SHADOW_READER
from processor.watching.stats import total
from tests.processor.sessions.fakes import (
    TIMEOUT_S,
    Answers,
    FakeReplica,
    assert_answers,
    group,
    wait_until,
)


class Partly(FakeReplica):
    """Of which 4 rows are worth a batch. Every pin is another generation, so parts that pin apart would show."""

    def __init__(self, **options):
        super().__init__({1: 1.0, 4: 1.5}, **options)
        self.readers, self.at_once, self.most = [], 0, 0
        self.counting = threading.Lock()

    def pin(self, reader):
        with self.counting:
            self.readers.append(reader)
            self.step += 1
        return super().pin(reader)


@pytest.mark.parametrize("policy", ["shared", "round-robin", "mod", "least-loaded"])
@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (4, 1), (7, 2), (8, 2), (9, 3), (12, 3), (33, 3), (1000, 3)])
def test_a_large_request_is_split_rejoined_in_order_and_of_one_generation(policy, rows, parts):
    replica, answers = Partly(), Answers()
    with group(sessions=3, policy=policy) as sessions:
        wait_until(lambda: sum(len(queue.idle) for queue in sessions._queues) == 3)
        sessions.enqueue(answers.work(replica, 0, range(1, rows + 1), caller=1))
        assert_answers(answers.wait(1)[0], range(1, rows + 1))
        assert len(replica.readers) == 1, "one pin for all parts"
        assert (replica.readers[0] >= HOLDS) == (parts > 1)
        wait_until(lambda: len(sessions._holds) == SHADOW_READER - HOLDS)
    assert set(replica.pins.values()) == {None}
    stats = total(sessions.statistics())
    assert (stats.requests, stats.rows) == (1, rows)
    assert stats.batches == parts


def test_parts_of_a_request_run_at_the_same_time():
    barrier = threading.Barrier(2)

    class Meeting(Partly):
        def fill(self, *args):
            barrier.wait(TIMEOUT_S)
            super().fill(*args)

    replica, answers = Meeting(), Answers()
    with group(sessions=2) as sessions:
        sessions.enqueue(answers.work(replica, 0, range(8)))
        assert_answers(answers.wait(1)[0], range(8))


def test_one_session_and_a_process_without_free_holds_split_nothing():
    replica, answers = Partly(), Answers()
    with group(sessions=1) as sessions:
        sessions.enqueue(answers.work(replica, 0, range(100)))
        assert_answers(answers.wait(1)[0], range(100))
    with group(sessions=2) as sessions:
        sessions._holds.clear()
        sessions.enqueue(answers.work(replica, 1, range(100)))
        assert_answers(answers.wait(1)[1], range(100))
    assert all(reader < HOLDS for reader in replica.readers)


def test_a_part_that_fails_fails_the_request_and_lets_go_of_the_pin(caplog):
    replica, answers = Partly(), Answers()
    replica.broken = {13: ZeroDivisionError()}
    with group(sessions=2) as sessions, caplog.at_level(logging.CRITICAL, logger="freshet.sessions"):
        sessions.enqueue(answers.work(replica, 0, range(20)))
        assert type(answers.wait(1)[0]) is FreshetError
        assert answers.calls.empty()
        assert len(sessions._holds) == SHADOW_READER - HOLDS
        replica.broken = {}
        sessions.enqueue(answers.work(replica, 1, range(20)))
        assert_answers(answers.wait(1)[1], range(20))
    assert set(replica.pins.values()) == {None}


def test_a_part_that_expires_expires_the_request_and_the_rest_of_it_is_not_run():
    clock, replica, answers = FakeClock(), Partly(), Answers()
    with group(sessions=2, clock=clock) as sessions:
        gate = threading.Event()
        for number in range(2):
            holding = FakeReplica(hold=gate)
            sessions.enqueue(answers.work(holding, -1 - number, [0]))
            assert holding.entered.acquire(timeout=TIMEOUT_S)
        sessions.enqueue(answers.work(replica, 0, range(8), deadline_s=clock.now_s() + 100))
        assert sessions.queue_rows == 8
        clock.advance(100)
        gate.set()
        assert isinstance(answers.wait(3)[0], Expired)
        assert answers.calls.empty()
    assert replica.readers == []
    assert replica.runs == []


@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from([None, None, 1e-3, 50.0])), min_size=1, max_size=30
    ),
    sessions=st.integers(1, 3),
    policy=st.sampled_from(["shared", "round-robin", "mod", "least-loaded"]),
)
def test_nothing_is_lost_doubled_or_out_of_order_whatever_is_split_batched_or_late(requests, sessions, policy):
    replica, answers = Partly(), Answers()
    replica.costs = CostTable({1: 1e-4, 4: 1.5e-4})
    refused, clock = set(), SystemClock()
    with group(sessions=sessions, policy=policy, max_queue_rows=200) as made:
        for number, (rows, slack_s) in enumerate(requests):
            deadline_s = None if slack_s is None else clock.now_s() + slack_s
            try:
                made.enqueue(answers.work(replica, number, range(number, number + rows), deadline_s, caller=number))
            except Overloaded:
                refused.add(number)
        got = answers.wait(len(requests) - len(refused))
    assert answers.calls.empty()
    assert got.keys() | refused == set(range(len(requests)))
    for number, reply in got.items():
        if isinstance(reply, Expired):
            assert requests[number][1] == 1e-3
        else:
            assert_answers(reply, range(number, number + requests[number][0]))
    assert set(replica.pins.values()) <= {None}
    assert len(made._holds) == SHADOW_READER - HOLDS
