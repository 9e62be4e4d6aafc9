"""Observers are asked about requests only while they have something to watch."""

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.counter_block import Slot
from freshet_serving.processor.ports import ENGINE, Extension
from freshet_serving.processor.sessions.observers import Observer, Observers


class Watching(Observer):
    """Watches the models whose names it is told."""

    def __init__(self):
        self.closed = False

    def __call__(self, request, replica, bound, done):
        return done

    def follow(self, routes):
        return "watched" in routes

    def counted(self):
        return {Slot("toy", "watched"): 3}

    def close(self):
        self.closed = True


@pytest.fixture
def observers(monkeypatch):
    extension = Extension(observers={"toy": lambda groups, clock: Watching()})
    monkeypatch.setattr(ENGINE, "_known", {"toy": extension})
    return Observers(None, FakeClock())


def test_observer_is_asked_only_while_it_watches(observers):
    assert observers.watching == ()
    observers.follow({"watched": None})
    assert observers.watching == (observers.offered["toy"],)
    observers.follow({"other": None})
    assert observers.watching == ()


def test_added_observer_comes_first_and_stays(observers):
    added = Watching()
    observers.follow({"watched": None})
    observers.add(added)
    assert observers.watching == (added, observers.offered["toy"])
    observers.follow({})
    assert observers.watching == (added,)


def test_counters_are_those_of_all_observers(observers):
    assert observers.counted() == {Slot("toy", "watched"): 3}
    assert observers.offered["toy"].evidence() == {}


def test_only_offered_observers_are_closed(observers):
    added = Watching()
    observers.add(added)
    observers.close()
    assert (observers.offered["toy"].closed, added.closed) == (True, False)
