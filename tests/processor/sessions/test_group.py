"""Sessions, with replicas made of nothing but their seams: batches, padding, splits, and errors that stay apart."""

import logging
import queue
import threading
import time
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.backends.buffers import Buffers, Ends
from processor.backends.cost import CostTable
from processor.clock import FakeClock, SystemClock
from processor.errors import BadInput, Expired, FreshetError, NotReady, Overloaded
from processor.generation import Generation
from processor.package.manifest import WHOLE
from processor.sessions.group import HOLDS, GroupOptions, SessionGroup
from processor.sessions.request import PredictReply, Work
from processor.sessions.session import Session
from processor.versions.control import SHADOW_READER
from processor.watching.stats import total

TIMEOUT_S = 5


class Request:
    """A bound request: its rows are the values [rows]."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)
        self.rows = self.ids = len(self.values)


class FakeReplica:
    """The seams of Replica that sessions use. The dense graph is y = 2 * x, z = (x, -x)."""

    def __init__(self, costs=None, hold=None):
        self.costs = CostTable(costs or {1: 1.0, 4: 1.5})
        self.plan = SimpleNamespace(width=1, fill=self.fill)
        self.outputs = {"y": 1, "z": 2}
        self.manifest = SimpleNamespace(model="m", tables=["t"])
        self.remote = self.once = None
        self.broken, self.entered, self.hold = {}, threading.Semaphore(0), hold
        self.step, self.pins = 1, {}
        # Apart, because what is bound to buffers may not refer to the replica: buffers live as long as it does.
        self.log = SimpleNamespace(runs=[], binds=0, filled=0)

    def pin(self, reader):
        assert self.pins.get(reader) is None, "a reader holds one pin"
        self.pins[reader] = self.step
        executables = {b: SimpleNamespace(bucket=b, bind=self.binder(b)) for b in self.costs.cost}
        return SimpleNamespace(
            generation=Generation(1, self.step), tables=None, epoch=self.step, executables=executables
        )

    @property
    def flip(self):
        return self.step

    def lend(self):
        return Buffers(
            {WHOLE: Ends(self.plan.width, self.outputs, max(self.costs.cost))},
            len(self.manifest.tables),
            len(self.outputs),
        )

    def unpin(self, reader):
        assert self.pins[reader] is not None
        self.pins[reader] = None

    def fill(self, tables, epoch, bound, spans, out, counts):
        self.entered.release()
        if self.hold is not None:
            assert self.hold.wait(TIMEOUT_S)
        at = 0
        for request, (first, rows) in zip(bound, spans.tolist(), strict=True):
            out[at : at + rows, 0] = request.values[first : first + rows]
            at += rows
        counts[0] += at, 1
        for value, error in self.broken.items():
            if value in out[:at]:
                raise error
        self.log.filled = at

    @property
    def runs(self):
        return self.log.runs

    def binder(self, bucket):
        log = self.log

        def bind(x, outputs):
            log.binds += 1
            assert x.shape == (bucket, 1)

            def run():
                log.runs.append((bucket, log.filled))
                outputs["y"][:] = 2 * x
                outputs["z"][:] = np.concatenate([x, -x], axis=1)

            return run

        return bind


class Answers:
    """Collects what done() is called with, in order of the requests."""

    def __init__(self):
        self.calls = queue.Queue()

    def work(self, replica, number, values, deadline_s=None, caller=None):
        bound = Request(values)
        done = lambda answer: self.calls.put((number, answer))  # noqa: E731
        return Work(bound.rows, bound.ids, deadline_s, replica=replica, bound=bound, done=done, caller=caller)

    def wait(self, count):
        return dict(self.calls.get(timeout=TIMEOUT_S) for _ in range(count))


@contextmanager
def group(sessions=1, max_batch_rows=8, max_queue_rows=100, clock=None, **options):
    options = GroupOptions(sessions=sessions, max_batch_rows=max_batch_rows, max_queue_rows=max_queue_rows, **options)
    made = SessionGroup(options, clock or SystemClock())
    try:
        yield made
    finally:
        made.close()
    assert not made._threads


@contextmanager
def held(replica, group, answers, number=-1):
    """One session is inside a batch for the length of the block, so what is submitted meanwhile queues up."""
    gate = FakeReplica(hold=threading.Event())
    group.enqueue(answers.work(gate, number, [0]))
    assert gate.entered.acquire(timeout=TIMEOUT_S)
    try:
        yield
    finally:
        gate.hold.set()


def wait_until(condition):
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def assert_answers(answer, values):
    assert isinstance(answer, PredictReply)
    x = np.asarray(values, np.float32).reshape(-1, 1)
    np.testing.assert_array_equal(answer.outputs["y"], 2 * x)
    np.testing.assert_array_equal(answer.outputs["z"], np.concatenate([x, -x], axis=1))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 100])
def test_a_request_of_any_size_gets_its_own_rows_back(rows):
    replica, answers = FakeReplica(), Answers()
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, range(1, rows + 1)))
        assert_answers(answers.wait(1)[0], range(1, rows + 1))
    assert [b for b, _ in replica.runs] == list(replica.costs.cover(rows))
    assert sum(filled for _, filled in replica.runs) == rows


def test_requests_that_queue_up_share_a_batch_and_each_gets_its_own_rows():
    replica, answers = FakeReplica(), Answers()
    wanted = {0: [1, 2, 3], 1: [4], 2: [5, 6, 7]}
    with group() as sessions:
        with held(replica, sessions, answers):
            for number, values in wanted.items():
                sessions.enqueue(answers.work(replica, number, values))
            assert sessions.queue_rows == 7
        got = answers.wait(4)
        for number, values in wanted.items():
            assert_answers(got[number], values)
        assert sessions.queue_rows == 0
    assert replica.runs == [(4, 4), (4, 3)], "rows of one request lie on both sides of the cut"


def test_statistics_count_batches_requests_rows_and_padding():
    replica, answers = FakeReplica({4: 1.0}), Answers()
    with group() as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [1, 2, 3, 4, 5]))
            answers.wait(1)
    stats = total(sessions.statistics())
    assert (stats.batches, stats.requests, stats.rows, stats.padded_rows, stats.failed) == (3, 3, 15, 9, 0)
    np.testing.assert_array_equal(sessions.counts(replica), [[15, 6]])


def test_what_one_batch_left_in_the_buffers_is_not_in_the_next():
    replica, answers = FakeReplica({4: 1.0}), Answers()
    with group() as sessions:
        for number, values in enumerate([[9, 9, 9, 9], [1], [2, 3]]):
            sessions.enqueue(answers.work(replica, number, values))
            assert_answers(answers.wait(1)[number], values)


def test_replies_do_not_change_when_later_batches_use_the_same_buffers():
    replica, answers = FakeReplica({4: 1.0}), Answers()
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, [1, 2]))
        first = answers.wait(1)[0]
        sessions.enqueue(answers.work(replica, 1, [8, 9]))
        answers.wait(1)
    assert_answers(first, [1, 2])


def test_every_reply_names_the_generation_that_was_pinned():
    replica, answers = FakeReplica(), Answers()
    with group() as sessions:
        for step in (1, 2, 3):
            replica.step = step
            sessions.enqueue(answers.work(replica, step, [step]))
            assert answers.wait(1)[step].generation == Generation(1, step)
    assert set(replica.pins.values()) == {None}


def test_an_error_in_one_batch_ends_neither_the_session_nor_touches_other_batches(caplog):
    replica, other, answers = FakeReplica(), FakeReplica(), Answers()
    replica.broken = {13: ZeroDivisionError("/secret/path")}
    with group() as sessions:
        with caplog.at_level(logging.CRITICAL, logger="freshet.sessions"), held(replica, sessions, answers):
            sessions.enqueue(answers.work(other, 0, [1]))
            sessions.enqueue(answers.work(replica, 1, [13, 2]))
            sessions.enqueue(answers.work(replica, 2, [3]))
            sessions.enqueue(answers.work(other, 3, [4]))
        got = answers.wait(5)
        assert_answers(got[0], [1])
        assert_answers(got[3], [4])
        for number in (1, 2):
            assert type(got[number]) is FreshetError
            assert str(got[number]) == "the model could not be run on this request"
        sessions.enqueue(answers.work(replica, 4, [5]))
        assert_answers(answers.wait(1)[4], [5])
    stats = total(sessions.statistics())
    assert stats.failed == 2
    assert set(replica.pins.values()) == {None}


def test_an_error_of_ours_is_answered_as_it_is():
    replica, answers = FakeReplica(), Answers()
    replica.broken = {13: BadInput("ids: too many")}
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, [13]))
        got = answers.wait(1)[0]
    assert type(got) is BadInput
    assert str(got) == "ids: too many"


def test_a_version_that_cannot_be_pinned_is_an_error_of_its_requests_alone():
    replica, answers = FakeReplica(), Answers()
    replica.pin = lambda session: (_ for _ in ()).throw(RuntimeError("no"))
    replica.unpin = None
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, [1]))
        assert isinstance(answers.wait(1)[0], FreshetError)
        sessions.enqueue(answers.work(FakeReplica(), 1, [2]))
        assert_answers(answers.wait(1)[1], [2])


def test_a_callback_that_raises_ends_neither_the_session_nor_its_neighbours_replies(caplog):
    replica, answers = FakeReplica(), Answers()
    caplog.set_level(logging.CRITICAL, logger="freshet.sessions")
    with group() as sessions:
        with held(replica, sessions, answers):
            failing = answers.work(replica, 9, [1])
            failing.done = lambda answer: 1 / 0
            sessions.enqueue(failing)
            sessions.enqueue(answers.work(replica, 1, [2]))
        assert_answers(answers.wait(2)[1], [2])
        sessions.enqueue(answers.work(replica, 2, [3]))
        assert_answers(answers.wait(1)[2], [3])


def test_an_expired_request_is_answered_and_never_computed():
    clock, replica, answers = FakeClock(), FakeReplica(), Answers()
    with group(clock=clock) as sessions:
        with held(replica, sessions, answers):
            sessions.enqueue(answers.work(replica, 0, [1], clock.now_s() + 1))
            sessions.enqueue(answers.work(replica, 1, [2], clock.now_s() + 10))
            sessions.enqueue(answers.work(replica, 2, [3]))
            clock.advance(5)
        got = answers.wait(4)
        assert isinstance(got[0], Expired)
        assert_answers(got[1], [2])
        assert_answers(got[2], [3])
    assert replica.runs == [(4, 2)]


def test_a_queue_of_nothing_but_expired_requests_leaves_the_session_waiting_for_work():
    clock, replica, answers = FakeClock(now_s=10.0), FakeReplica(), Answers()
    with group(clock=clock) as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [1], 5.0))
        assert all(isinstance(a, Expired) for a in answers.wait(3).values())
        sessions.enqueue(answers.work(replica, 3, [2]))
        assert_answers(answers.wait(1)[3], [2])


def test_a_full_queue_sheds_and_what_it_holds_is_answered():
    replica, answers = FakeReplica(), Answers()
    with group(max_queue_rows=4) as sessions:
        with held(replica, sessions, answers):
            sessions.enqueue(answers.work(replica, 0, [1, 2]))
            sessions.enqueue(answers.work(replica, 1, [3, 4]))
            with pytest.raises(Overloaded) as shed:
                sessions.enqueue(answers.work(replica, 2, [5]))
            # A row for 1.0 is being run and four wait; the cheapest batch does four for 1.5.
            assert shed.value.retry_after_s == pytest.approx(2.5, rel=1e-3)
        assert answers.wait(3).keys() == {-1, 0, 1}


def test_closing_answers_what_is_queued_and_takes_nothing_more():
    replica, answers = FakeReplica(), Answers()
    with group() as sessions:
        gate = FakeReplica(hold=threading.Event())
        sessions.enqueue(answers.work(gate, -1, [0]))
        assert gate.entered.acquire(timeout=TIMEOUT_S)
        for number in range(5):
            sessions.enqueue(answers.work(replica, number, [number] * 3))
        closer = threading.Thread(target=sessions.close)
        closer.start()
        wait_until(lambda: sessions._closing)
        with pytest.raises(NotReady, match="closed"):
            sessions.enqueue(answers.work(replica, 9, [1]))
        gate.hold.set()
        closer.join(TIMEOUT_S)
        got = answers.wait(6)
        for number in range(5):
            assert_answers(got[number], [number] * 3)
    sessions.close()


def test_sessions_work_at_the_same_time():
    barrier = threading.Barrier(3)

    class Meeting(FakeReplica):
        def fill(self, *args):
            barrier.wait(TIMEOUT_S)
            super().fill(*args)

    answers = Answers()
    with group(sessions=3) as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(Meeting(), number, [number]))
        got = answers.wait(3)
    for number in range(3):
        assert_answers(got[number], [number])


def test_runs_are_bound_again_only_when_the_executable_changes():
    replica, answers = FakeReplica({4: 1.0}), Answers()
    executable = SimpleNamespace(bucket=4, bind=replica.binder(4))
    state = SimpleNamespace(generation=Generation(1, 1), tables=None, epoch=1, executables={4: executable})
    replica.pin, replica.unpin = lambda reader: state, lambda reader: None
    with group() as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [1]))
            answers.wait(1)
        assert replica.log.binds == 1
        state.executables = {4: SimpleNamespace(bucket=4, bind=replica.binder(4))}
        sessions.enqueue(answers.work(replica, 4, [7]))
        assert_answers(answers.wait(1)[4], [7])
        assert replica.log.binds == 2


def test_an_idle_session_does_not_keep_a_version_that_nobody_serves():
    replica, answers, gone = FakeReplica(), Answers(), threading.Event()
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, [1, 2]))
        answers.wait(1)
        weakref.finalize(replica, gone.set)
        replica.plan = None
        del replica
        assert gone.wait(TIMEOUT_S)


def test_a_cut_through_a_batch_names_each_requests_first_row_and_rows():
    answers, replica = Answers(), FakeReplica()
    works = [answers.work(replica, 0, [0] * n) for n in (3, 1, 5)]
    session = Session(0, FakeClock())
    part, spans = session._cut(works, 2, 6)
    assert part == [w.bound for w in works]
    assert spans.tolist() == [[2, 1], [0, 1], [0, 2]]
    works[2].first = 100
    part, spans = session._cut(works, 6, 9)
    assert part == [works[2].bound]
    assert spans.tolist() == [[102, 3]]


# Inline


def test_inline_a_batch_is_what_has_arrived_and_is_answered_in_the_thread_that_runs_it():
    replica, answers = FakeReplica(), Answers()
    threads = []
    with group(compute="inline") as sessions:
        for number in range(3):
            work = answers.work(replica, number, [number])
            keep = work.done
            work.done = lambda answer, keep=keep: (threads.append(threading.get_ident()), keep(answer))
            sessions.enqueue(work)
        assert sessions.queue_rows == 3
        sessions.run_once()
        got = answers.wait(3)
        assert sessions.queue_rows == 0
    for number in range(3):
        assert_answers(got[number], [number])
    assert replica.runs == [(4, 3)]
    assert set(threads) == {threading.get_ident()}


def test_inline_the_owner_is_asked_once_a_turn_and_again_while_something_waits():
    replica, answers, asked = FakeReplica(), Answers(), []
    with group(compute="inline", max_batch_rows=2) as sessions:
        assert sessions.attach(asked.append)
        for number in range(4):
            sessions.enqueue(answers.work(replica, number, [number]))
        assert asked == [0.0]
        sessions.run_once()
        assert asked == [0.0, 0.0]
        sessions.run_once()
        assert asked == [0.0, 0.0]
        sessions.enqueue(answers.work(replica, 4, [4]))
        assert asked == [0.0] * 3
        sessions.run_once()
        assert answers.wait(5).keys() == set(range(5))


def test_inline_what_was_queued_before_there_was_an_owner_is_asked_for():
    replica, answers, asked = FakeReplica(), Answers(), []
    with group(compute="inline") as sessions:
        sessions.enqueue(answers.work(replica, 0, [1]))
        sessions.attach(asked.append)
        assert asked == [0.0]
    assert_answers(answers.wait(1)[0], [1])


def test_inline_a_window_has_the_owner_come_back_when_it_ends():
    clock, replica, answers, asked = FakeClock(), FakeReplica({1: 1e-6, 4: 2e-6}), Answers(), []
    with group(compute="inline", batch_window_us=5e5, clock=clock) as sessions:
        sessions.attach(asked.append)
        sessions.enqueue(answers.work(replica, 0, [1]))
        sessions.run_once()
        assert asked == [0.0, pytest.approx(0.5)]
        clock.advance(0.5)
        sessions.run_once()
        assert_answers(answers.wait(1)[0], [1])


def test_inline_an_owner_whose_loop_has_closed_leaves_the_work_to_whoever_waits():
    def closed(delay_s):
        raise RuntimeError("Event loop is closed")

    replica, answers = FakeReplica(), Answers()
    with group(compute="inline") as sessions:
        sessions.attach(closed)
        sessions.enqueue(answers.work(replica, 0, [1]))
        assert sessions.driven
        sessions.run_once()
        assert_answers(answers.wait(1)[0], [1])


def test_inline_closing_answers_what_is_queued():
    replica, answers = FakeReplica(), Answers()
    with group(compute="inline", batch_window_us=1e8) as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [number] * 5))
        sessions.close()
        assert answers.wait(3).keys() == {0, 1, 2}
        with pytest.raises(NotReady):
            sessions.enqueue(answers.work(replica, 3, [1]))


def test_sessions_with_threads_have_no_owner_and_are_not_driven():
    with group() as sessions:
        assert not sessions.attach(print)
        assert not sessions.driven
        with pytest.raises(RuntimeError):
            sessions.run_once()


# Policies, splits, resizing


def many(answers, replica, count, **options):
    return [answers.work(replica, number, [number, -number], **options) for number in range(count)]


@pytest.mark.parametrize("policy", ["shared", "round-robin", "mod", "least-loaded"])
def test_every_policy_answers_every_request_once_with_its_own_rows(policy):
    replica, answers = FakeReplica(), Answers()
    with group(sessions=3, policy=policy, max_queue_rows=10_000) as sessions:
        for work in many(answers, replica, 200):
            work.caller = int(work.bound.values[0]) % 7
            sessions.enqueue(work)
        got = answers.wait(200)
        assert answers.calls.empty()
    for number in range(200):
        assert_answers(got[number], [number, -number])
    stats = total(sessions.statistics())
    assert (stats.requests, stats.rows, stats.failed) == (200, 400, 0)


def queues_used(policy, callers, sessions=3):
    """For each request, the queue that it joins while every session is held."""
    replica, answers, gate, used = FakeReplica(), Answers(), threading.Event(), []
    with group(sessions=sessions, policy=policy) as made:
        for number in range(sessions):
            holding = FakeReplica(hold=gate)
            work = answers.work(holding, -1 - number, [0], caller=number)
            made.enqueue(work)
            assert holding.entered.acquire(timeout=TIMEOUT_S)
        for number, caller in enumerate(callers):
            before = [q.batcher.queue_rows for q in made._queues]
            made.enqueue(answers.work(replica, number, [number], caller=caller))
            after = [q.batcher.queue_rows for q in made._queues]
            used.append(next(i for i, (a, b) in enumerate(zip(before, after)) if a != b))
        gate.set()
        answers.wait(sessions + len(callers))
    return used


def test_round_robin_takes_the_queues_in_turn():
    used = queues_used("round-robin", [None] * 6)
    assert sorted(used[:3]) == sorted(used[3:]) == [0, 1, 2]


def test_mod_sends_a_caller_to_the_same_queue_always():
    assert queues_used("mod", [0, 1, 2, 3, 4, 4, 4, 7]) == [0, 1, 2, 0, 1, 1, 1, 1]


def test_least_loaded_sends_a_request_where_the_least_work_is():
    used = queues_used("least-loaded", [None] * 6)
    assert sorted(used[:3]) == sorted(used[3:]) == [0, 1, 2]


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


@pytest.mark.parametrize("policy", ["shared", "round-robin", "mod", "least-loaded"])
def test_resizing_under_load_loses_no_request_and_no_count(policy):
    replica, answers = FakeReplica(), Answers()
    with group(sessions=1, policy=policy, max_queue_rows=100_000) as sessions:
        for number in range(600):
            sessions.enqueue(answers.work(replica, number, [number], caller=number))
            if number % 50 == 0:
                sessions.resize((4, 1, 3, 2)[number // 50 % 4])
                assert len(sessions) == (4, 1, 3, 2)[number // 50 % 4]
        got = answers.wait(600)
        for number in range(600):
            assert_answers(got[number], [number])
        sessions.resize(1)
        wait_until(lambda: len(sessions._threads) == 1)
        stats = total(sessions.statistics())
        assert (stats.requests, stats.rows) == (600, 600)
        np.testing.assert_array_equal(sessions.counts(replica)[:, 0], [600])
        numbers = {thread.session.number for thread in sessions._threads}
        assert max(numbers) < 8


@pytest.mark.parametrize("wrong", [0, -1, HOLDS + 1])
def test_a_number_of_sessions_that_cannot_be_is_refused(wrong):
    with group() as sessions:
        with pytest.raises(BadInput, match="sessions: 1 to 1024 wanted"):
            sessions.resize(wrong)
        assert len(sessions) == 1


def test_a_group_that_has_closed_or_computes_inline_is_not_resized():
    with group() as sessions:
        sessions.close()
        with pytest.raises(NotReady):
            sessions.resize(2)
    with group(compute="inline") as sessions, pytest.raises(BadInput, match="inline"):
        sessions.resize(2)


# Overload


def test_a_request_that_cannot_be_answered_in_time_is_refused_before_and_after_it_is_read():
    clock, replica, answers = FakeClock(), FakeReplica({1: 1.0}), Answers()
    with group(clock=clock) as sessions:
        with held(replica, sessions, answers):
            for number in range(2):
                sessions.enqueue(answers.work(replica, number, [number], clock.now_s() + 4.1))
            for timeout_s in (None, 50.0):
                sessions.check_room(timeout_s)
            for refuse in (
                lambda: sessions.check_room(2.5),
                lambda: sessions.enqueue(answers.work(replica, 9, [9], clock.now_s() + 2.5)),
            ):
                with pytest.raises(Overloaded) as shed:
                    refuse()
                # One row is being run and two wait, a second each.
                assert shed.value.retry_after_s == pytest.approx(3.0, rel=1e-3)
        answers.wait(3)
    stats = total(sessions.statistics())
    assert (stats.refused_late, stats.refused_full, stats.expired) == (2, 0, 0)


def test_waits_are_counted_as_predicted_and_as_they_were():
    clock, replica, answers = FakeClock(), FakeReplica({1: 1.0}), Answers()
    with group(clock=clock) as sessions:
        with held(replica, sessions, answers):
            sessions.enqueue(answers.work(replica, 0, [0]))
            clock.advance(3.0)
        answers.wait(2)
    stats = total(sessions.statistics())
    assert stats.predicted_wait_s == pytest.approx(1.0, rel=1e-3)
    assert stats.wait_s == pytest.approx(3.0)
    assert stats.buckets == {"1": 2}
