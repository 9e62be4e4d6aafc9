"""One timer for a deadline that moves."""

import pytest

from freshet_serving.serving.http.connection import DeadlineTimer
from tests.serving.http.talking import HandLoop


@pytest.fixture
def waiting():
    """(loop, patience, times at which it was over)"""
    loop, over = HandLoop(), []
    yield loop, DeadlineTimer(loop, lambda: over.append(loop.now_s)), over
    loop.close()


def passing(loop, seconds):
    for _ in range(seconds):
        loop.now_s += 1.0
        loop.turn(2)


def test_timer_fires_once_at_its_deadline(waiting):
    loop, patience, over = waiting
    patience.wait(75.0)
    passing(loop, 74)
    assert over == []
    passing(loop, 100)
    assert over == [75.0]


def test_postponed_deadline_reuses_the_running_timer(waiting):
    loop, patience, over = waiting
    for _ in range(1000):
        patience.wait(75.0)
    assert loop.timers == 1
    for _ in range(200):
        patience.wait(75.0)
        passing(loop, 1)
    assert over == []
    assert loop.timers <= 4
    passing(loop, 80)
    assert over == [274.0]


def test_earlier_deadline_replaces_the_timer(waiting):
    loop, patience, over = waiting
    patience.wait(75.0)
    patience.wait(20.0)
    assert patience.left_s == 20.0
    patience.wait(30.0)
    passing(loop, 40)
    assert over == [30.0]
    patience.wait(5.0)
    passing(loop, 5)
    assert over == [30.0, 45.0]


def test_ended_timer_never_fires(waiting):
    loop, patience, over = waiting
    patience.wait(5.0)
    patience.end()
    passing(loop, 10)
    assert over == []
