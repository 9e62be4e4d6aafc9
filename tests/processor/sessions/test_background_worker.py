"""The queue aside: what is taken, in which order it is looked at, and how it ends."""

import threading
from dataclasses import dataclass

import pytest

from freshet_serving.processor.sessions import background_worker as module
from freshet_serving.processor.sessions.background_worker import BackgroundWorker
from tests.support.waiting import GIVE_UP_S, until


@dataclass(frozen=True)
class Item:
    number: int
    nbytes: int = 0


class Looking:
    """Looks at one item after another; while it is held, at none."""

    def __init__(self):
        self.seen, self.gate, self.entered = [], threading.Event(), threading.Event()
        self.gate.set()
        self.aside = BackgroundWorker("freshet-test", self.look)

    def look(self):
        item = self.aside.take()
        self.seen.append(item.number)
        self.entered.set()
        self.gate.wait(GIVE_UP_S)
        if item.number < 0:
            raise ValueError(item.number)

    def hold(self):
        """Returns while an item is being looked at and nothing waits."""
        self.gate.clear()
        assert self.aside.offer(Item(0), most=1)
        assert self.entered.wait(GIVE_UP_S)


@pytest.fixture
def looking():
    looking = Looking()
    yield looking
    looking.gate.set()
    looking.aside.close()


def test_offered_items_are_processed_in_order(looking):
    looking.hold()
    assert all(looking.aside.offer(Item(n), most=8) for n in range(1, 9))
    looking.gate.set()
    until(lambda: looking.seen == list(range(9)))


def test_offer_to_a_full_queue_is_refused_without_waiting(looking):
    looking.hold()
    assert [looking.aside.offer(Item(n), most=2) for n in (1, 2, 3)] == [True, True, False]
    assert (looking.aside.full(2), looking.aside.full(3)) == (True, False)


def test_waiting_bytes_are_bounded_but_one_item_always_fits(looking, monkeypatch):
    monkeypatch.setattr(module, "MAX_QUEUED_NBYTES", 100)
    looking.hold()
    assert looking.aside.offer(Item(1, nbytes=1000), most=8)
    assert not looking.aside.offer(Item(2, nbytes=1), most=8)
    looking.gate.set()
    until(lambda: looking.seen == [0, 1])
    looking.entered.clear()
    looking.hold()
    assert [looking.aside.offer(Item(n, nbytes=50), most=8) for n in (3, 4, 5)] == [True, True, False]


def test_failing_item_does_not_stop_the_next_ones(looking, caplog):
    for number in (-1, 2):
        until(lambda number=number: looking.aside.offer(Item(number), most=1))
    until(lambda: looking.seen == [-1, 2])
    assert "freshet-test: background work on an answered request failed" in caplog.text


def test_take_if_removes_only_matching_items(looking):
    looking.hold()
    for number in (1, 2, 3):
        looking.aside.offer(Item(number), most=8)
    taken = [looking.aside.take_if(lambda item: item.number < 3) for _ in range(3)]
    assert taken == [Item(1), Item(2), None]
    looking.gate.set()
    until(lambda: looking.seen == [0, 3])
    assert looking.aside.take_if(lambda item: True) is None


def test_items_waiting_at_the_end_are_not_processed():
    looking = Looking()
    looking.hold()
    looking.aside.offer(Item(1), most=8)
    closing = threading.Thread(target=looking.aside.close)
    closing.start()
    assert looking.aside.rest(GIVE_UP_S)
    looking.gate.set()
    closing.join()
    assert looking.seen == [0]


def test_thread_starts_with_the_first_item_unless_closed():
    looking, closed = Looking(), Looking()
    assert not looking.aside._thread.is_alive()
    looking.aside.offer(Item(0), most=1)
    assert looking.aside._thread.is_alive()
    looking.aside.close()

    closed.aside.close()
    assert not closed.aside.offer(Item(0), most=1)
    assert closed.aside._thread.ident is None
