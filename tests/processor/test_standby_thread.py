"""A thread that stands by: lent, given back, left alone, in a shortage; and one that repeats its work until closed."""

import threading

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.standby_thread import BackgroundTask, PeriodicThread, StandbyThread, spawn, standing_pool
from tests.support.waiting import until


@pytest.fixture
def thread():
    standing = StandbyThread("test-standing")
    standing.start()
    yield standing
    standing.close()


def test_borrowed_thread_runs_work_concurrently_with_the_caller(thread):
    gone_on, seen = threading.Event(), []
    assert thread.try_run(lambda: seen.append((gone_on.wait(10), threading.current_thread().name)))
    gone_on.set()
    assert thread.wait() is None
    assert seen == [(True, "test-standing")]


def test_error_in_the_work_is_returned_and_the_thread_continues(thread):
    def fail():
        raise MemoryError

    for _ in range(2):
        assert thread.try_run(fail)
        assert isinstance(thread.wait(), MemoryError)


def test_busy_thread_accepts_no_further_work(thread):
    go = threading.Event()
    assert thread.try_run(lambda: go.wait(10))
    assert not thread.try_run(go.set)
    go.set()
    thread.wait()
    assert thread.try_run(go.set)
    thread.wait()


def test_thread_is_free_again_after_detached_work(thread):
    done = threading.Event()
    assert thread.try_run_detached(lambda: done.set() or 1 / 0)
    assert done.wait(10)
    while not thread.try_run(done.clear):
        pass
    thread.wait()
    assert not done.is_set()


def test_stopped_thread_accepts_no_work():
    never = StandbyThread("test-never")
    assert not never.try_run(print)
    never.start()
    never.close()
    never._thread.join(10)
    assert not never.try_run(print)


def do_beside(act, thread, then=lambda: None):
    """What a writer does: `then`, with a task beside it."""
    with BackgroundTask(act, thread) as task:
        task.run_if_pending()
        then()


def test_task_runs_in_its_owner_without_a_standby_thread():
    seen = []
    do_beside(lambda: seen.append(threading.get_ident()), None)
    assert seen == [threading.get_ident()]


@pytest.mark.parametrize("threaded", [True, False])
def test_error_of_a_task_comes_after_what_is_done_beside_it(thread, threaded):
    done = []
    with pytest.raises(ZeroDivisionError):
        do_beside(lambda: 1 / 0, thread if threaded else None, lambda: done.append(1))
    assert done == [1]


@pytest.mark.parametrize("threaded", [True, False])
def test_error_of_a_task_gives_way_to_one_beside_it(thread, threaded):
    with pytest.raises(KeyError):
        do_beside(lambda: 1 / 0, thread if threaded else None, lambda: {}["a"])


def test_task_has_ended_when_what_is_done_beside_it_fails(thread):
    go, seen = threading.Event(), []

    def act():
        go.wait(10)
        seen.append(1)

    def fail():
        go.set()
        raise KeyError

    with pytest.raises(KeyError):
        do_beside(act, thread, fail)
    assert seen == [1]


def test_spawn_without_a_free_thread_raises_at_once(monkeypatch):
    def none(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", none)
    with pytest.raises(NotReady, match="short of threads"):
        spawn(print)


def test_standing_pool_starts_all_its_threads_at_creation(monkeypatch):
    begun = []
    pool = standing_pool(3, "test-pool", lambda: begun.append(1))
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was made"))
    assert [pool.submit(int, n).result(10) for n in range(9)] == list(range(9))
    assert len(begun) == 3
    pool.shutdown()


def test_periodic_thread_repeats_while_busy_and_ends_on_close():
    left = [True] * 50
    periodic_thread = PeriodicThread(lambda: bool(left) and left.pop(), interval_s=60.0, busy_interval_s=0.0)
    periodic_thread.start()
    until(lambda: not left)
    periodic_thread.close()
    assert not periodic_thread.is_alive()


def test_raising_slice_does_not_end_the_periodic_thread():
    left = [True] * 3

    def maintain():
        left.pop()
        raise MemoryError

    periodic_thread = PeriodicThread(maintain, interval_s=0.0)
    periodic_thread.start()
    until(lambda: not left)
    assert periodic_thread.is_alive()
    periodic_thread.close()
