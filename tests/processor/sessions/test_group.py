"""Groups of sessions: queues and their policies, deadlines and overload, inline compute, resizing and closing."""

import contextlib
import queue
import threading
import weakref

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.cores import Occupancy, available
from freshet_serving.processor.errors import BadInput, Expired, NotReady, Overloaded
from freshet_serving.processor.features.stage import LARGE
from freshet_serving.processor.sessions.group import SESSION_READERS
from freshet_serving.processor.watching.stats import total
from tests.processor.sessions.fakes import TIMEOUT_S, Answers, FakeReplica, assert_answers, call, group, held
from tests.support.waiting import until


def test_expired_request_is_answered_and_never_computed():
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


def test_queue_of_expired_requests_leaves_the_session_idle():
    clock, replica, answers = FakeClock(now_s=10.0), FakeReplica(), Answers()
    with group(clock=clock) as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [1], 5.0))
        assert all(isinstance(a, Expired) for a in answers.wait(3).values())
        answers.ask(sessions, replica, [2])


def test_closing_answers_queued_requests_and_refuses_new_ones():
    replica, answers = FakeReplica(), Answers()
    with group() as sessions:
        gate = FakeReplica(hold=threading.Event())
        sessions.enqueue(answers.work(gate, -1, [0]))
        assert gate.entered.acquire(timeout=TIMEOUT_S)
        for number in range(5):
            sessions.enqueue(answers.work(replica, number, [number] * 3))
        closer = threading.Thread(target=sessions.close)
        closer.start()
        until(lambda: sessions._closing)
        with pytest.raises(NotReady, match="closed"):
            sessions.enqueue(answers.work(replica, 9, [1]))
        gate.hold.set()
        closer.join(TIMEOUT_S)
        got = answers.wait(6)
        for number in range(5):
            assert_answers(got[number], [number] * 3)
    sessions.close()


def test_sessions_run_concurrently():
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


def test_inline_batch_runs_in_the_calling_thread():
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


def test_stage_is_computed_apart_from_the_owner_s_thread_and_answered_on_it():
    replica, plain, answers = FakeReplica(), FakeReplica(), Answers()
    replica.plan.stage, replica.hold = object(), threading.Event()
    posted = queue.SimpleQueue()
    with group(compute="inline") as sessions:
        assert sessions.set_owner(lambda delay_s: None, lambda done, reply: posted.put((done, reply)))
        sessions.enqueue(answers.work(replica, 0, [3]))
        assert replica.entered.acquire(timeout=TIMEOUT_S)
        sessions.enqueue(answers.work(plain, 1, [1]))
        assert sessions.run_once()
        assert_answers(answers.wait(1)[1], [1])
        replica.hold.set()
        done, reply = posted.get(timeout=TIMEOUT_S)
        done(reply)
        assert_answers(answers.wait(1)[0], [3])
        assert len(sessions) == 1


def test_work_of_a_large_stage_leaves_the_sessions_to_others():
    replica, plain, answers = FakeReplica(), FakeReplica(), Answers()
    replica.plan.stage, replica.hold = object(), threading.Event()
    with group() as sessions:
        for number, cells in ((0, LARGE + 1), (1, LARGE + 1)):
            work = answers.work(replica, number, [number])
            work.bound.cells = cells
            sessions.enqueue(work)
        assert replica.entered.acquire(timeout=TIMEOUT_S)
        answers.ask(sessions, plain, [2])
        replica.hold.set()
        got = answers.wait(2)
        assert_answers(got[0], [0])
        assert_answers(got[1], [1])


def test_work_of_a_small_stage_is_computed_as_any():
    replica, answers = FakeReplica(), Answers()
    replica.plan.stage = object()
    with group() as sessions:
        work = answers.work(replica, 0, [7])
        work.bound.cells = LARGE
        sessions.enqueue(work)
        assert_answers(answers.wait(1)[0], [7])
        assert len(sessions._threads) == 1


def test_close_answers_what_waits_for_a_stage():
    replica, answers = FakeReplica(), Answers()
    replica.plan.stage, replica.hold = object(), threading.Event()
    with group(compute="inline") as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [number]))
        assert replica.entered.acquire(timeout=TIMEOUT_S)
        replica.hold.set()
    got = answers.wait(3)
    for number in range(3):
        assert_answers(got[number], [number])


def test_inline_owner_is_called_once_a_turn_while_work_waits():
    replica, answers, asked = FakeReplica(), Answers(), []
    with group(compute="inline", max_batch_rows=2) as sessions:
        assert sessions.set_owner(asked.append, call)
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


def test_inline_owner_is_called_for_work_queued_before_it():
    replica, answers, asked = FakeReplica(), Answers(), []
    with group(compute="inline") as sessions:
        sessions.enqueue(answers.work(replica, 0, [1]))
        sessions.set_owner(asked.append, call)
        assert asked == [0.0]
    assert_answers(answers.wait(1)[0], [1])


def test_inline_batch_window_schedules_the_owner_at_its_end():
    clock, replica, answers, asked = FakeClock(), FakeReplica({1: 1e-6, 4: 2e-6}), Answers(), []
    with group(compute="inline", batch_window_us=5e5, clock=clock) as sessions:
        sessions.set_owner(asked.append, call)
        sessions.enqueue(answers.work(replica, 0, [1]))
        sessions.run_once()
        assert asked == [0.0, pytest.approx(0.5)]
        clock.advance(0.5)
        sessions.run_once()
        assert_answers(answers.wait(1)[0], [1])


def test_inline_waiter_computes_after_the_owner_loop_has_closed():
    def closed(delay_s):
        raise RuntimeError("Event loop is closed")

    replica, answers = FakeReplica(), Answers()
    with group(compute="inline") as sessions:
        sessions.set_owner(closed, call)
        sessions.enqueue(answers.work(replica, 0, [1]))
        assert sessions.driven
        sessions.run_once()
        assert_answers(answers.wait(1)[0], [1])


def test_inline_closing_answers_queued_requests():
    replica, answers = FakeReplica(), Answers()
    with group(compute="inline", batch_window_us=1e8) as sessions:
        for number in range(3):
            sessions.enqueue(answers.work(replica, number, [number] * 5))
        sessions.close()
        assert answers.wait(3).keys() == {0, 1, 2}
        with pytest.raises(NotReady):
            sessions.enqueue(answers.work(replica, 3, [1]))


def test_threaded_sessions_have_no_owner():
    with group() as sessions:
        assert not sessions.set_owner(print, call)
        assert not sessions.driven
        with pytest.raises(RuntimeError):
            sessions.run_once()


class Home:
    """An owner of inline sessions: keeps what helpers hand home until it is asked for."""

    def __init__(self):
        self.posted = queue.Queue()
        self.threads = []

    def post(self, done, reply):
        self.posted.put((done, reply))

    def deliver(self):
        done, reply = self.posted.get(timeout=TIMEOUT_S)
        done(reply)

    def work(self, answers, *arguments):
        """Work that notes which thread its done() is called on."""
        work = answers.work(*arguments)
        keep = work.done
        work.done = lambda reply: (self.threads.append(threading.get_ident()), keep(reply))
        return work


def test_inline_helper_shares_a_large_request_and_the_owner_answers():
    replica, answers, home = FakeReplica(), Answers(), Home()
    barrier = threading.Barrier(2)

    def fill(*arguments, fill=replica.plan.fill):
        barrier.wait(TIMEOUT_S)
        fill(*arguments)

    replica.plan.fill = fill
    with group(compute="inline", sessions=2) as sessions:
        until(lambda: sessions._queue.idle)
        sessions.set_owner(lambda delay_s: None, home.post)
        sessions.enqueue(home.work(answers, replica, 0, [1, 2, 3, 4, 5, 6, 7, 8]))
        assert sessions.run_once()
        if not home.threads:
            home.deliver()
        assert_answers(answers.wait(1)[0], [1, 2, 3, 4, 5, 6, 7, 8])
    assert replica.runs == [(4, 4), (4, 4)]
    assert home.threads == [threading.get_ident()]


def test_inline_helper_takes_waiting_work_and_the_owner_answers():
    replica, answers, home, bound = FakeReplica(hold=threading.Event()), Answers(), Home(), []
    with group(compute="inline", sessions=2, max_batch_rows=4) as sessions:
        until(lambda: sessions._queue.idle)
        sessions.set_owner(lambda delay_s: None, home.post)
        for number in range(8):
            work = home.work(answers, replica, number, [number])
            bound.append(weakref.ref(work.bound))
            sessions.enqueue(work)
            del work
        owner = threading.Thread(target=sessions.run_once)
        owner.start()
        for _ in range(2):
            assert replica.entered.acquire(timeout=TIMEOUT_S)
        assert sessions.queue_rows == 0
        replica.hold.set()
        owner.join(TIMEOUT_S)
        while len(home.threads) < 8:
            home.deliver()
        got = answers.wait(8)
        # An idle helper keeps no request alive.
        until(lambda: not any(one() for one in bound))
    for number in range(8):
        assert_answers(got[number], [number])
    assert replica.runs == [(4, 4), (4, 4)]


@pytest.mark.parametrize("values", [[[1, 2, 3, 4, 5, 6, 7, 8]], [[1, 2, 3, 4], [5, 6, 7, 8]]])
def test_inline_helper_stays_idle_while_another_process_uses_the_core(values):
    replica, answers, words = FakeReplica(), Answers(), np.array([0, 1], np.int64)
    with group(compute="inline", sessions=2, max_batch_rows=4, occupancy=Occupancy(2, words, 0)) as sessions:
        until(lambda: sessions._queue.idle)
        for number, rows in enumerate(values):
            sessions.enqueue(answers.work(replica, number, rows))
        while sessions.run_once():
            assert sessions._queue.idle, "the helper has not been woken"
        got = answers.wait(len(values))
        for number, rows in enumerate(values):
            assert_answers(got[number], rows)
    assert replica.runs == [(4, 4), (4, 4)]
    assert words.tolist() == [0, 1]


def test_inline_owner_alone_computes_work_below_the_handover_cost():
    replica, answers = FakeReplica({1: 1e-5, 4: 2e-5}), Answers()
    with group(compute="inline", sessions=2, max_batch_rows=4) as sessions:
        until(lambda: sessions._queue.idle)
        sessions.enqueue(answers.work(replica, 0, range(8)))
        while sessions.run_once():
            assert sessions._queue.idle
        assert_answers(answers.wait(1)[0], range(8))


def test_inline_request_expiring_at_a_helper_is_answered_by_owner():
    clock, replica, answers, home = FakeClock(), FakeReplica(hold=threading.Event()), Answers(), Home()
    with group(compute="inline", sessions=2, max_batch_rows=4, clock=clock) as sessions:
        until(lambda: sessions._queue.idle)
        sessions.set_owner(lambda delay_s: None, home.post)
        sessions.enqueue(home.work(answers, replica, 0, [0] * 4))
        sessions.enqueue(home.work(answers, replica, 1, [1] * 4))
        sessions.enqueue(home.work(answers, replica, 2, [2] * 4, clock.now_s() + 20))
        owner = threading.Thread(target=sessions.run_once)
        owner.start()
        for _ in range(2):
            assert replica.entered.acquire(timeout=TIMEOUT_S)
        clock.advance(60)
        replica.hold.set()
        owner.join(TIMEOUT_S)
        sessions.run_once()
        while len(home.threads) < 3:
            home.deliver()
        assert isinstance(answers.wait(3)[2], Expired)


def test_inline_resizing_changes_helpers_and_keeps_the_owner():
    replica, answers = FakeReplica(), Answers()
    with group(compute="inline") as sessions:
        for count in (3, 1, 2):
            sessions.resize(count)
            assert len(sessions) == count
            sessions.enqueue(answers.work(replica, count, [count]))
            sessions.run_once()
            assert_answers(answers.wait(1)[count], [count])
        with pytest.raises(BadInput, match="sessions: expected 1 to"):
            sessions.resize(0)
        # A queue is promised to be answered in time without helpers.
        assert sessions._queue.sessions == 1


def test_resizing_under_load_loses_no_request_and_no_count():
    replica, answers = FakeReplica(), Answers()
    with group(sessions=1, max_queue_rows=100_000) as sessions:
        for number in range(600):
            sessions.enqueue(answers.work(replica, number, [number]))
            if number % 50 == 0:
                sessions.resize((4, 1, 3, 2)[number // 50 % 4])
                assert len(sessions) == (4, 1, 3, 2)[number // 50 % 4]
        got = answers.wait(600)
        for number in range(600):
            assert_answers(got[number], [number])
        sessions.resize(1)
        until(lambda: len(sessions._threads) == 1)
        assert answers.calls.empty()
        stats = total(sessions.statistics())
        assert (stats.requests, stats.rows, stats.failed) == (600, 600, 0)
        np.testing.assert_array_equal(sessions.counts(replica)[:, 0], [600])
        numbers = {thread.session.number for thread in sessions._threads}
        assert max(numbers) < 8


@pytest.mark.parametrize("wrong", [0, -1, SESSION_READERS + 1])
def test_invalid_number_of_sessions_is_refused(wrong):
    with group() as sessions:
        with pytest.raises(BadInput, match="sessions: expected 1 to 1024"):
            sessions.resize(wrong)
        assert len(sessions) == 1


def test_closed_group_cannot_be_resized():
    with group() as sessions:
        sessions.close()
        with pytest.raises(NotReady):
            sessions.resize(2)


def test_request_that_cannot_be_in_time_is_refused_before_reading():
    clock, replica, answers = FakeClock(), FakeReplica({1: 1.0}), Answers()
    with group(clock=clock) as sessions:
        with held(replica, sessions, answers):
            for number in range(2):
                sessions.enqueue(answers.work(replica, number, [number], clock.now_s() + 4.1))
            for timeout_s in (None, 50.0):
                sessions.check_room(timeout_s, model="m")
            for refuse in (
                lambda: sessions.check_room(2.5, model="m"),
                lambda: sessions.enqueue(answers.work(replica, 9, [9], clock.now_s() + 2.5)),
            ):
                with pytest.raises(Overloaded) as shed:
                    refuse()
                # One row is being run and two wait, a second each.
                assert shed.value.retry_after_s == pytest.approx(3.0, rel=1e-3)
        answers.wait(3)
    stats = total(sessions.statistics())
    assert (stats.refused_late, stats.refused_full, stats.expired) == (2, 0, 0)


@pytest.mark.parametrize("options", [{}, {"compute": "inline"}])
def test_overload_of_equal_requests_is_refused_before_reading(options):
    """Whatever check_room() lets pass, enqueue() takes, once it has seen what is asked for."""
    clock, replica, answers = FakeClock(), FakeReplica({1: 1.0}), Answers()
    with group(clock=clock, max_queue_rows=10_000, **options) as sessions:
        with held(replica, sessions, answers) if not options else contextlib.nullcontext():
            early = late = taken = 0
            for number in range(200):
                try:
                    sessions.check_room(100.0, model="m")
                except Overloaded:
                    early += 1
                    continue
                try:
                    sessions.enqueue(answers.work(replica, number, [1, 2, 3], clock.now_s() + 100.0))
                    taken += 1
                except Overloaded:
                    late += 1
            assert early > 150
            assert late < 10
            assert 15 < taken < 25
            while sessions.inline and sessions.run_once():
                pass
        answers.wait(taken + (not options))


def test_request_unread_for_too_long_is_refused():
    with group() as sessions:
        sessions.check_room(0.034, 0.066)
        with pytest.raises(Overloaded, match="before the request was read") as caught:
            sessions.check_room(0.033, 0.067)
        assert caught.value.late
        assert sum(stats.refused_late for stats in sessions.statistics()) == 1


def test_predicted_and_actual_waits_are_counted():
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


def test_sessions_move_to_other_cores_between_batches():
    replica, answers = FakeReplica(), Answers()
    with group(sessions=2) as sessions:
        cpus = frozenset([min(available())])
        sessions.place(3, cpus)
        for number in range(20):
            sessions.enqueue(answers.work(replica, number, [number]))
        answers.wait(20)
        assert (len(sessions), sessions.options.cpus) == (3, (cpus,))
        assert {thread.cpus for thread in sessions._threads} == {cpus}


def test_saturated_model_and_key_are_refused_and_not_the_others():
    clock, replicas, answers = FakeClock(), {name: FakeReplica({1: 1.0}) for name in ("busy", "light")}, Answers()
    for name, replica in replicas.items():
        replica.model = name
    with group(clock=clock, max_queue_rows=10_000) as sessions:
        with held(replicas["busy"], sessions, answers):
            for number in range(4):
                work = answers.work(replicas["busy"], number, [number], clock.now_s() + 8.0)
                work.sender = "loud"
                sessions.enqueue(work)
            for model, sender in (("light", "loud"), ("light", ""), ("busy", "quiet")):
                sessions.check_room(4.5, model=model, sender=sender)
            with pytest.raises(Overloaded):
                sessions.check_room(4.5, model="busy", sender="loud")
            sessions.enqueue(answers.work(replicas["light"], 9, [9], clock.now_s() + 4.5))
        answers.wait(6)


@pytest.mark.parametrize("options", [{}, {"compute": "inline"}])
def test_large_requests_give_way_while_several_models_are_asked(options):
    answers, replicas = Answers(), [FakeReplica({1: 2e-4, 4: 8e-4}) for _ in range(2)]
    replicas[1].model = "light"
    with group(clock=FakeClock(), max_batch_rows=16, **options) as sessions:

        def batches(replica, rows):
            before = total(sessions.statistics()).batches
            sessions.enqueue(answers.work(replica, 0, list(range(rows))))
            while sessions.inline and sessions.run_once():
                pass
            assert_answers(answers.wait(1)[0], range(rows))
            sessions.check_room(None)
            return total(sessions.statistics()).batches - before

        assert batches(replicas[0], 16) == 1
        assert batches(replicas[1], 1) == 1
        assert batches(replicas[0], 8) == 1
        assert batches(replicas[0], 16) == 4
