"""A run that lasts too long is ended at its request's limit; what is in a batch with it is answered."""

import threading

import numpy as np
import pytest

from freshet_serving.processor.backends import EndableRun, EndedRun
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput, Expired
from freshet_serving.processor.sessions import session
from tests.processor.sessions.fakes import Answers, FakeReplica, assert_answers, group, held

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
