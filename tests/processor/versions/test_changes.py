"""The time for which a lock has been held, by a given clock; and changes after which the log is read anew."""

import threading

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.versions.changes import DirtyVersions, LockWatchdog


@pytest.fixture
def held():
    """A watch, with a function that has another thread take or let go of its lock."""
    lock = threading.RLock()
    watch, asked, done = LockWatchdog(lock), [], threading.Semaphore(0)
    go = threading.Semaphore(0)

    def holder():
        while go.acquire() and (act := asked.pop()):
            act()
            done.release()

    thread = threading.Thread(target=holder, daemon=True)
    thread.start()

    def ask(act):
        asked.append(act)
        go.release()
        assert done.acquire(timeout=10)

    yield watch, lock, ask
    asked.append(None)
    go.release()
    thread.join(10)


def test_lock_hold_time_starts_at_the_first_check(held):
    watch, lock, ask = held
    assert watch.look(5.0) == 0.0

    ask(lambda: (lock.acquire(), watch.turn()))
    assert [watch.look(now_s) for now_s in (10.0, 40.0, 75.0)] == [0.0, 30.0, 65.0]
    assert watch.held_s == 65.0
    ask(lock.release)
    assert watch.look(80.0) == 0.0


def test_new_turn_restarts_the_hold_time(held):
    watch, lock, ask = held
    ask(lock.acquire)
    watch.look(0.0)
    ask(watch.turn)
    assert [watch.look(50.0), watch.look(70.0)] == [0.0, 20.0]
    ask(lock.release)


def test_loading_a_version_is_excluded_from_the_hold_time(held):
    watch, lock, ask = held
    ask(lambda: (lock.acquire(), watch.turn()))
    with watch.excused():
        assert [watch.look(now_s) for now_s in (0.0, 500.0)] == [0.0, 0.0]
    assert watch.look(530.0) == 30.0
    ask(lock.release)


def test_only_unexpected_failures_reload_the_log():
    read = []
    doubts = DirtyVersions(read.append)
    with doubts.changing(1):
        pass
    with pytest.raises(NotReady), doubts.changing(1):
        raise NotReady("planned")
    with pytest.raises(MemoryError), doubts.changing(1):
        raise MemoryError
    with doubts.changing(2):
        pass
    assert read == []
    for _ in range(2):
        with doubts.changing(1):
            pass
    assert read == [1]


def test_log_that_cannot_be_reloaded_stays_marked_dirty():
    reads = []

    def reload_log(number):
        reads.append(number)
        if len(reads) == 1:
            raise MemoryError

    doubts = DirtyVersions(reload_log)
    with pytest.raises(MemoryError), doubts.changing(1):
        raise MemoryError
    with pytest.raises(MemoryError), doubts.changing(1):
        pytest.fail("it was not read")
    with doubts.changing(1):
        pass
    assert reads == [1, 1]
