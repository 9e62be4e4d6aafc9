"""Waits for what cannot be reached: longer each time, told once a minute, given up by a run that has an end."""

import threading

import pytest

from freshet_serving.models.runs.outages import Outages
from freshet_serving.processor.errors import NotReady

AWAY = NotReady("the store cannot be reached")


class Stopped(threading.Event):
    """An event that is not set, and whose waits move a clock."""

    def __init__(self):
        super().__init__()
        self.now_s, self.waits = 100.0, []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        self.now_s += timeout
        return self.is_set()


def outages(stopped, waits=True, most_s=8.0):
    notes = []
    return Outages(waits, stopped, notes.append, most_s, lambda: stopped.now_s), notes


def test_waits_double_up_to_the_longest_and_are_told_once_a_minute():
    stopped = Stopped()
    one, notes = outages(stopped)
    for _ in range(6):
        one.wait(AWAY)
    assert stopped.waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert notes == ["the store cannot be reached; waiting for it"]
    for _ in range(6):
        one.wait(AWAY)
    assert len(notes) == 2
    assert one.waited_s == stopped.now_s


def test_another_outage_begins_with_a_short_wait_and_a_note():
    stopped = Stopped()
    one, notes = outages(stopped)
    one.wait(AWAY)
    one.wait(AWAY)
    stopped.now_s += 17
    one.wait(AWAY)
    assert stopped.waits == [1.0, 2.0, 1.0]
    assert len(notes) == 2


def test_a_run_with_an_end_and_one_that_is_stopped_give_up():
    for waits in (False, True):
        stopped = Stopped()
        one, notes = outages(stopped, waits)
        stopped.set()
        with pytest.raises(NotReady, match="cannot be reached"):
            one.wait(AWAY)
        assert (notes, stopped.waits) == ([], [1.0] * waits)
