"""Large requests on several sessions, and in turns with others: split, rejoined in order, of one generation, and never
answered twice."""

import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock, SystemClock
from freshet_serving.processor.errors import Expired, FreshetError, Overloaded
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import RowInvariants
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.sessions.group import SESSION_READERS
from freshet_serving.processor.sessions.split_request import SplitRequest
from freshet_serving.processor.versions.control import RANKING_READER
from freshet_serving.processor.watching.stats import total
from tests.processor.sessions.fakes import TIMEOUT_S, Answers, FakeReplica, assert_answers, group
from tests.support.waiting import until


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


# Of what is more than a batch of 8 no part has more than a bucket of 4.
@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (4, 1), (7, 2), (8, 2), (9, 3), (12, 3), (33, 9), (1200, 300)])
def test_large_request_is_split_and_rejoined_in_order_and_generation(rows, parts):
    replica, answers = Partly(), Answers()
    with group(sessions=3) as sessions:
        until(lambda: len(sessions._queue.idle) == 3)
        answers.ask(sessions, replica, range(1, rows + 1))
        assert len(replica.readers) == 1, "one pin for all parts"
        assert (replica.readers[0] >= SESSION_READERS) == (parts > 1)
        until(lambda: len(sessions._free_readers) == RANKING_READER - SESSION_READERS)
    assert set(replica.pins.values()) == {None}
    stats = total(sessions.statistics())
    assert (stats.requests, stats.rows) == (1, rows)
    assert stats.batches == parts


def test_chunks_of_a_request_run_concurrently():
    barrier = threading.Barrier(2)

    class Meeting(Partly):
        def fill(self, *args):
            barrier.wait(TIMEOUT_S)
            super().fill(*args)

    replica, answers = Meeting(), Answers()
    with group(sessions=2) as sessions:
        answers.ask(sessions, replica, range(8))


def test_request_that_fits_a_batch_needs_free_readers_to_split():
    replica, answers = Partly(), Answers()
    with group(sessions=1) as sessions:
        answers.ask(sessions, replica, range(8))
    with group(sessions=2) as sessions:
        sessions._free_readers.clear()
        answers.ask(sessions, replica, range(8))
        with pytest.raises(Overloaded, match="too many requests larger than the largest batch"):
            sessions.enqueue(answers.work(replica, 2, range(9)))
    assert all(reader < SESSION_READERS for reader in replica.readers)


@pytest.mark.parametrize("options", [{"compute": "inline"}, {"sessions": 1}])
def test_large_request_yields_between_chunks_and_keeps_its_state(options):
    """Between two of its pieces a small request comes and the state moves on: the small ones see it, it does not."""
    replica, answers = Partly(), Answers()
    order, small = [], iter(range(1, 100))

    def fill(view, out):
        order.append((view.epoch, view.bound[0].values[int(view.spans[0, 0])]))
        replica.fill(view, out)
        if len(order) % 2 and len(order) < 20:
            sessions.enqueue(answers.work(replica, number := next(small), [-number]))

    replica.plan.fill = fill
    with group(**options) as sessions:
        sessions.enqueue(answers.work(replica, 0, range(1, 41)))
        while sessions.inline and sessions.run_once():
            pass
        got = answers.wait(11)
    assert_answers(got[0], range(1, 41))
    assert [value for _, value in order] == [value for n in range(10) for value in (4 * n + 1, -(n + 1))], (
        "a piece, then who came during it"
    )
    assert len({epoch for epoch, value in order if value > 0}) == 1
    assert len({epoch for epoch, value in order if value < 0}) == 10
    assert set(replica.pins.values()) == {None}


class Looking:
    """Of plan.Part."""

    def __init__(self, number, order):
        self.number, self.order = number, order

    def fill(self, tables, epoch, out, counts):
        self.order.append(self.number)
        out += self.number


@pytest.mark.parametrize(
    "options",
    [
        {"sessions": 1},
        {"sessions": 3},
        pytest.param(
            {"sessions": 2, "device_stages": 1},
            marks=pytest.mark.skipif(not ENGINE.offers("stages"), reason="no extension has device stages"),
        ),
    ],
)
def test_row_invariant_features_are_looked_up_once_in_parts_first(options, monkeypatch):
    replica, answers, order, filled = Partly(), Answers(), [], []
    monkeypatch.setattr(CostTable, "record_fill", lambda self, runs, rows, ids, seconds: filled.append((runs, rows)))

    def fill(view, out):
        order.append("rows")
        assert (out[: view.spans[0, 1]] == 6).all()
        replica.fill(view, out)

    replica.plan.row_invariants = lambda bound, max_ids: RowInvariants(
        4, [Looking(n, order) for n in (1, 2, 3)], SimpleNamespace(fill=fill)
    )
    with group(**options) as sessions:
        answers.ask(sessions, replica, range(10))
    assert order == [1, 2, 3, "rows", "rows", "rows"]
    if "device_stages" not in options:
        assert filled.count((0, 0)) == 3, "a look-up alone is no run and no row of what batches are told to cost"
    assert set(replica.pins.values()) == {None}


@pytest.mark.parametrize("done", range(4))
def test_rows_are_filled_after_all_row_invariant_lookups(done):
    replica, order = Partly(), []
    row_invariants = RowInvariants(
        4, [Looking(n, order) for n in (1, 2, 3)], SimpleNamespace(fill=lambda *given: order.append("rows"))
    )
    replica.plan.row_invariants = lambda bound, max_ids: row_invariants
    split_request = SplitRequest(Answers().work(replica, 0, range(8)), 1, 8, [SESSION_READERS])
    counts, out = np.zeros((1, 2), np.int64), np.empty((8, 1), np.float32)
    for _ in range(done):
        split_request.look_up(None, 1, counts)
    split_request.fill(BatchView(None, 1, [], np.array([[0, 8]]), counts), out)
    assert order == [1, 2, 3, "rows"]
    assert (out == 6).all()


def test_chunk_is_not_started_after_another_one_failed():
    replica, answers = Partly(), Answers()
    split_request = SplitRequest(answers.work(replica, 0, range(8)), 2, 8, [SESSION_READERS])
    split_request.ticket().take_chunk(4)
    assert split_request.acquire()
    split_request.fail(FreshetError("no"))
    assert not split_request.acquire()
    assert [split_request.release(), split_request.release()] == [False, True]
    assert str(answers.wait(1)[0]) == "no"
    assert replica.pins == {SESSION_READERS: None}


def test_timing_is_reported_only_for_a_request_of_one_session():
    replica, answers = Partly(), Answers()
    with group(sessions=1) as sessions:
        sessions.enqueue(answers.work(replica, 0, range(20)))
        timing = answers.wait(1)[0].timing
    assert timing.rows == 20
    assert timing.began_s < timing.ended_s
    split_request = SplitRequest(answers.work(replica, 1, range(8)), 2, 8, [SESSION_READERS])
    split_request.ticket()
    split_request.acquire()
    for session in (0, 1):
        split_request.record_run(session, timing)
    assert split_request.release()
    assert answers.wait(1)[1].timing is None


def test_request_with_many_ids_yields_between_rows():
    replica, answers = FakeReplica({1: 1.9e-5, 8: 2e-5}), Answers()
    with group(sessions=1) as sessions:
        for number, rows in enumerate((8, 1)):
            work = answers.work(replica, number, range(rows))
            work.ids = 4 * int(replica.costs.heavy_ids)
            sessions.enqueue(work)
            assert_answers(answers.wait(1)[number], range(rows))
    assert [filled for _, filled in replica.runs] == [2, 2, 2, 2, 1]


def test_failing_chunk_fails_the_request_and_releases_the_pin(caplog):
    replica, answers = Partly(), Answers()
    replica.broken = {13: ZeroDivisionError()}
    with group(sessions=2) as sessions, caplog.at_level(logging.CRITICAL, logger="freshet.sessions"):
        sessions.enqueue(answers.work(replica, 0, range(20)))
        assert type(answers.wait(1)[0]) is FreshetError
        assert answers.calls.empty()
        assert len(sessions._free_readers) == RANKING_READER - SESSION_READERS
        replica.broken = {}
        answers.ask(sessions, replica, range(20))
    assert set(replica.pins.values()) == {None}


def test_expiring_chunk_expires_the_request_and_cancels_the_rest():
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
)
def test_splitting_never_loses_duplicates_or_reorders_rows(requests, sessions):
    replica, answers = Partly(), Answers()
    replica.costs = CostTable({1: 1e-4, 4: 1.5e-4})
    refused, clock = set(), SystemClock()
    with group(sessions=sessions, max_queue_rows=200) as made:
        for number, (rows, slack_s) in enumerate(requests):
            deadline_s = None if slack_s is None else clock.now_s() + slack_s
            try:
                made.enqueue(answers.work(replica, number, range(number, number + rows), deadline_s))
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
    assert len(made._free_readers) == RANKING_READER - SESSION_READERS
