"""Runs that last too long are ended, at their time and never after it."""

import threading
from contextlib import suppress

import pytest

from freshet_serving.processor.backends import EndableRun, EndedRun
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.running import run_limit
from freshet_serving.processor.running.run_limit import RunEnds, RunLimit, endable
from tests.support.waiting import until

GIVE_UP_S = 30


class Endless(EndableRun):
    """A run that lasts until it is told to end, or returns at once."""

    def __init__(self, endless=True):
        self.endless, self.told = endless, threading.Event()

    def __call__(self):
        if self.endless:
            assert self.told.wait(GIVE_UP_S)
        if self.told.is_set():
            raise EndedRun("ended")

    def end(self, now):
        if now:
            self.told.set()
        else:
            self.told.clear()


def limited(seconds):
    limit = RunLimit(RunEnds(SystemClock()))
    limit.until_s = limit._ends.clock.now_s() + seconds
    return limit


def test_run_is_ended_at_its_time_and_not_before():
    limit = limited(0.05)
    with pytest.raises(EndedRun):
        limit.run(Endless())
    assert limit._ends.clock.now_s() >= limit.until_s


def test_run_that_ended_leaves_nothing_to_the_next_one():
    limit, run = limited(0.0), Endless()
    with pytest.raises(EndedRun):
        limit.run(run)
    run.endless, limit.until_s = False, limit._ends.clock.now_s() + GIVE_UP_S
    limit.run(run)


def test_later_run_with_an_earlier_time_is_ended_at_that():
    limit = limited(10 * GIVE_UP_S)
    limit.run(Endless(endless=False))
    limit.until_s = limit._ends.clock.now_s()
    with pytest.raises(EndedRun):
        limit.run(Endless())


def test_thread_ends_when_no_run_came_and_starts_with_the_next(monkeypatch):
    monkeypatch.setattr(run_limit, "IDLE_S", 0.01)
    limit = limited(0.0)
    for _ in range(2):
        limit.until_s = limit._ends.clock.now_s() + 0.05
        limit.run(Endless(endless=False))
        until(lambda: not limit._ends._alive)
        limit.until_s = limit._ends.clock.now_s()
        with pytest.raises(EndedRun):
            limit.run(Endless())


def test_runs_of_several_threads_end_each_at_its_own_time():
    ends = RunEnds(SystemClock())
    now_s, early, late = ends.clock.now_s(), Endless(), Endless()

    def run(call, until_s):
        with pytest.raises(EndedRun):
            ends.run(call, until_s)

    threads = [
        threading.Thread(target=run, args=each) for each in ((late, now_s + 10 * GIVE_UP_S), (early, now_s + 0.05))
    ]
    for thread in threads:
        thread.start()
    threads[1].join()
    assert not late.told.is_set()
    late.told.set()
    threads[0].join()
    assert not early.told.is_set()


def test_end_that_comes_close_to_a_return_never_reaches_the_next_run():
    limit, run = limited(0.0), Endless(endless=False)
    for _ in range(300):
        limit.until_s = limit._ends.clock.now_s() + 2e-4
        with suppress(EndedRun):
            limit.run(run)
        limit.until_s = limit._ends.clock.now_s() + GIVE_UP_S
        limit.run(run)


def test_version_is_endable_if_one_of_its_executables_is():
    class Plain:
        pass

    class Loop:
        endable = True

    assert not endable({"score": {1: Plain()}})
    assert endable({"user": {1: Plain()}, "score": {1: Plain(), 4: Loop()}})
