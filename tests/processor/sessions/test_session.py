"""What one session makes of a batch: each request's own rows, padding, and errors that stay apart."""

import logging
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.backends import EndableRun, EndedRun
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import SCORE
from freshet_serving.processor.sessions import session
from freshet_serving.processor.watching.stats import total
from tests.processor.sessions.fakes import TIMEOUT_S, Answers, FakeReplica, assert_answers, group, held


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 100])
def test_request_of_any_size_gets_its_own_rows_back(rows):
    replica, answers = FakeReplica(), Answers()
    with group() as sessions:
        answers.ask(sessions, replica, range(1, rows + 1))
    assert [b for b, _ in replica.runs] == list(replica.costs.bucket_plan(rows))
    assert sum(filled for _, filled in replica.runs) == rows


def test_queued_requests_share_a_batch_and_get_their_own_rows():
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


def test_stale_buffer_contents_never_reach_the_next_batch():
    replica, answers = FakeReplica({4: 1.0}), Answers()
    with group() as sessions:
        for values in ([9, 9, 9, 9], [1], [2, 3]):
            answers.ask(sessions, replica, values)


def test_replies_are_unchanged_when_later_batches_reuse_their_buffers():
    replica, answers = FakeReplica({4: 1.0}), Answers()
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, [1, 2]))
        first = answers.wait(1)[0]
        sessions.enqueue(answers.work(replica, 1, [8, 9]))
        answers.wait(1)
    assert_answers(first, [1, 2])


def test_every_reply_names_the_pinned_generation():
    replica, answers = FakeReplica(), Answers()
    with group() as sessions:
        for step in (1, 2, 3):
            replica.step = step
            sessions.enqueue(answers.work(replica, step, [step]))
            assert answers.wait(1)[step].generation == Generation(1, step)
    assert set(replica.pins.values()) == {None}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ZeroDivisionError("/secret/path"), FreshetError, "the model could not be run on this request"),
        (BadInput("ids: too many"), BadInput, "ids: too many"),
        (NotReady("a store is away"), NotReady, "a store is away"),
    ],
)
def test_error_of_one_request_leaves_session_and_all_others_unharmed(error, kind, message, caplog):
    replica, other, answers = FakeReplica(), FakeReplica(), Answers()
    replica.broken = {13: error}
    with group() as sessions:
        with caplog.at_level(logging.CRITICAL, logger="freshet.sessions"), held(replica, sessions, answers):
            sessions.enqueue(answers.work(other, 0, [1]))
            sessions.enqueue(answers.work(replica, 1, [13, 2]))
            sessions.enqueue(answers.work(replica, 2, [3]))
            sessions.enqueue(answers.work(other, 3, [4]))
        got = answers.wait(5)
        assert_answers(got[0], [1])
        assert_answers(got[2], [3])
        assert_answers(got[3], [4])
        assert (type(got[1]), str(got[1])) == (kind, message)
        answers.ask(sessions, replica, [5])
    stats = total(sessions.statistics())
    assert stats.failed == 1
    assert set(replica.pins.values()) == {None}


def test_version_that_cannot_be_pinned_fails_only_its_requests():
    replica, answers = FakeReplica(), Answers()
    replica.pin = lambda session: (_ for _ in ()).throw(RuntimeError("no"))
    replica.unpin = None
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, [1]))
        assert isinstance(answers.wait(1)[0], FreshetError)
        answers.ask(sessions, FakeReplica(), [2])


def test_raising_callback_leaves_session_and_other_replies_unharmed(caplog):
    replica, answers = FakeReplica(), Answers()
    caplog.set_level(logging.CRITICAL, logger="freshet.sessions")
    with group() as sessions:
        with held(replica, sessions, answers):
            failing = answers.work(replica, 9, [1])
            failing.done = lambda answer: 1 / 0
            sessions.enqueue(failing)
            sessions.enqueue(answers.work(replica, 1, [2]))
        assert_answers(answers.wait(2)[1], [2])
        answers.ask(sessions, replica, [3])


def test_runs_are_rebound_only_when_the_executable_changes():
    replica, answers = FakeReplica({4: 1.0}), Answers()
    executable = SimpleNamespace(bucket=4, bind_buffers=replica.binder(4))
    state = SimpleNamespace(
        generation=Generation(1, 1), tables=None, epoch=1, executables={SCORE: {4: executable}}, users=None
    )
    replica.pin, replica.unpin = lambda reader: state, lambda reader: None
    with group() as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [1]))
            answers.wait(1)
        assert replica.log.binds == 1
        state.executables = {SCORE: {4: SimpleNamespace(bucket=4, bind_buffers=replica.binder(4))}}
        answers.ask(sessions, replica, [7])
        assert replica.log.binds == 2


def test_idle_session_does_not_keep_an_unserved_version_alive():
    replica, answers, gone = FakeReplica(), Answers(), threading.Event()
    with group() as sessions:
        sessions.enqueue(answers.work(replica, 0, [1, 2]))
        answers.wait(1)
        weakref.finalize(replica, gone.set)
        replica.plan = replica.graphs = replica.run = None
        del replica
        assert gone.wait(TIMEOUT_S)


ENDLESS = 13


class Run(EndableRun):
    """The fake graph, which never ends on the value ENDLESS."""

    def __init__(self, call, x):
        self.call, self.x, self.told = call, x, threading.Event()

    def __call__(self):
        if ENDLESS in self.x:
            self.told.wait()
            self.x[:] = 0
            raise EndedRun("the model did not finish in time for these inputs")
        self.call()

    def end(self, now):
        if now:
            self.told.set()
        else:
            self.told.clear()


class EndableReplica(FakeReplica):
    def __init__(self):
        super().__init__({1: 1e-4, 4: 1e-4})
        self.graphs.endable = True

    def binder(self, bucket):
        bind = super().binder(bucket)
        return lambda inputs, outputs: Run(bind(inputs, outputs), inputs["x"])


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(session, "LONGEST_S", 0.2)


@pytest.mark.parametrize("deadline_s", [None, 0.1, 60])
def test_request_that_does_not_end_is_answered_at_its_limit(deadline_s):
    clock, replica, answers = SystemClock(), EndableReplica(), Answers()
    with group(clock=clock) as sessions:
        before_s = clock.now_s()
        given_s = None if deadline_s is None else before_s + deadline_s
        sessions.enqueue(answers.work(replica, 0, [ENDLESS], given_s))
        assert type(answers.wait(1)[0]) is EndedRun
        assert clock.now_s() >= before_s + min(deadline_s or 1, 0.2)
        answers.ask(sessions, replica, [5])
    assert issubclass(EndedRun, Expired)


@pytest.mark.parametrize("deadline_s", [None, 20])
def test_others_of_its_batch_are_answered(deadline_s):
    clock, replica, answers = SystemClock(), EndableReplica(), Answers()
    replica.broken = {99: BadInput("an id is refused")}
    with group(clock=clock) as sessions:
        with held(replica, sessions, answers):
            given_s = None if deadline_s is None else clock.now_s() + deadline_s
            for number, value in enumerate([1, ENDLESS, 3, ENDLESS, 4]):
                sessions.enqueue(answers.work(replica, number, [value], given_s))
        got = answers.wait(6)
    for number, value in ((0, 1), (2, 3), (4, 4)):
        assert_answers(got[number], [value])
    assert [type(got[number]) for number in (1, 3)] == [EndedRun, EndedRun]
    assert replica.log.runs[0][1] == 1, "the shares"
    assert set(replica.pins.values()) == {None}


def test_chunk_of_a_split_request_ends_the_whole_request():
    replica, answers = EndableReplica(), Answers()
    with group(max_batch_rows=4, max_queue_rows=100) as sessions:
        sessions.enqueue(answers.work(replica, 0, [*range(7), ENDLESS, *range(7)]))
        assert type(answers.wait(1)[0]) is EndedRun
        answers.ask(sessions, replica, [1, 2])


def test_graphs_that_cannot_be_ended_have_no_limit():
    replica, answers = FakeReplica(), Answers()
    with group() as sessions:
        answers.ask(sessions, replica, np.arange(5))
        assert not any(thread.session._limit._ends._alive for thread in sessions._threads)
