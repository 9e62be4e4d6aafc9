"""The life of a seat, and who gets a connection."""

import socket
import threading
from types import SimpleNamespace

import pytest

from processor.errors import FreshetError, NotReady
from serving.front_options import FrontOptions
from serving.workers import fleet as fleet_module
from serving.workers.channel import Gone
from serving.workers.fleet import Fleet, WorkerSettings
from tests.serving.workers.fakes import FakeWorker

SETTINGS = WorkerSettings(FrontOptions(shutdown_timeout_s=1.0, version="9"), {}, None, "127.0.0.1:0")
WAIT_S = 30


class Owner:
    """fleet.Owner: offers every worker at once."""

    def __init__(self):
        self.fleet, self.introduced, self.dead, self.refuse = None, [], [], None

    def introduce(self, worker):
        self.introduced.append(worker)
        if self.refuse is not None:
            raise self.refuse
        self.fleet.offer(worker)

    def buried(self, worker):
        self.dead.append(worker)

    def heard(self, worker, message):
        pass


class Mortal(FakeWorker):
    """A WorkerProcess without a process."""

    spawned = threading.Semaphore(0)
    stillborn = False

    def __init__(self, nursery, seat, message, fds, heard):
        super().__init__(seat)
        self.settings, self.heard_s, self.waited = message, fleet_module.time.monotonic(), 0
        self._burying, self._buried = threading.Lock(), False
        self.hello, self.up = self, True
        Mortal.spawned.release()

    def result(self, timeout_s):
        if Mortal.stillborn:
            raise Gone("stillborn")

    def wait(self, timeout_s):
        return self.gone.wait(timeout_s)

    def tell(self, op, message=None, fds=()):
        super().tell(op, message, fds)
        if op in ("end", "abort"):
            self.gone.set()

    def bury(self, on_death):
        with self._burying:
            if not self._buried:
                self.gone.set()
                on_death(self)
                self._buried = True


@pytest.fixture
def fleets(monkeypatch):
    """Makes (fleet, owner) with Mortal workers, started; ended afterwards."""
    monkeypatch.setattr(fleet_module, "WorkerProcess", Mortal)
    monkeypatch.setattr(fleet_module, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(fleet_module, "MAX_BACKOFF_S", 0.01)
    monkeypatch.setattr(fleet_module, "SILENCE_CHECK_S", 0.01)
    monkeypatch.setattr(Mortal, "spawned", threading.Semaphore(0))
    made = []

    def make(count=2, refuse=None):
        fleet, owner = Fleet(count, SETTINGS), Owner()
        owner.fleet, owner.refuse = fleet, refuse
        made.append(fleet)
        fleet.start(owner)
        return fleet, owner

    yield make
    for fleet in made:
        fleet.end()
        fleet.join()
    assert not [t for t in threading.enumerate() if t.name.startswith("freshet-seat")]


def spawns(count):
    for _ in range(count):
        assert Mortal.spawned.acquire(timeout=WAIT_S)


def test_every_seat_gets_a_process_and_the_fleet_is_complete_when_all_are_up(fleets):
    fleet, owner = fleets(3)
    fleet.wait_complete()
    assert sorted(w.seat for w in fleet.offered()) == [0, 1, 2]
    assert [w.settings["seat"] for w in sorted(owner.introduced, key=lambda w: w.seat)] == [0, 1, 2]
    assert [(i["up"], i["restarts"], i["connections"]) for i in fleet.info()] == [(True, 0, 0)] * 3


def test_a_dead_process_is_buried_once_and_replaced_in_its_slot(fleets):
    fleet, owner = fleets()
    fleet.wait_complete()
    spawns(2)
    victim = fleet.offered()[1]
    victim.gone.set()
    fleet.bury(victim)
    assert owner.dead == [victim]
    spawns(1)
    until(lambda: len(fleet.offered()) == 2)
    assert victim not in fleet.offered()
    assert [i["restarts"] for i in fleet.info()] == [0, 1]
    assert fleet.complete


def test_the_others_give_up_what_is_beyond_their_share_when_a_new_process_is_up(fleets):
    fleet, _ = fleets(3)
    fleet.wait_complete()
    victim, *others = sorted(fleet.offered(), key=lambda w: w.seat)
    for worker, count in zip(others, (7, 4), strict=True):
        worker.handed = count
    fleet.bury(victim)
    until(lambda: len(fleet.offered()) == 3)
    until(lambda: any(op == "shed" for op, _ in others[0].said))
    assert [[m["count"] for op, m in w.said if op == "shed"] for w in others] == [[3], []]


def until(condition):
    pause = threading.Event()
    for _ in range(WAIT_S * 200):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("the condition did not come true")


@pytest.mark.parametrize("refuse", [None, FreshetError("no memory"), Gone("died"), TimeoutError(), KeyError("x")])
def test_a_seat_whose_process_cannot_serve_is_tried_again_and_never_offered(fleets, monkeypatch, refuse):
    monkeypatch.setattr(Mortal, "stillborn", refuse is None)
    monkeypatch.setattr(fleet_module, "START_TIMEOUT_S", 0.05)
    fleet, owner = fleets(1, refuse)
    spawns(4)
    assert not fleet.offered()
    with pytest.raises(NotReady, match="not all processes came up"):
        fleet.wait_complete()
    owner.refuse = None
    monkeypatch.setattr(Mortal, "stillborn", False)
    until(fleet.offered)
    assert fleet.info()[0]["restarts"] >= 3


def test_a_process_that_says_nothing_for_long_is_replaced(fleets):
    fleet, owner = fleets(1)
    fleet.wait_complete()
    silent = fleet.offered()[0]
    silent.heard_s -= 2 * fleet_module.SILENCE_TIMEOUT_S
    until(lambda: silent in owner.dead and fleet.offered())


def test_after_the_end_nobody_is_replaced(fleets):
    fleet, owner = fleets()
    fleet.wait_complete()
    workers = fleet.offered()
    fleet.end()
    fleet.join()
    assert all(w.said[-1][0] == "end" for w in workers)
    assert len(owner.introduced) == 2
    assert not fleet.offered()


def test_a_connection_goes_to_the_worker_that_has_the_fewest_and_past_one_that_is_full(fleets):
    fleet, _ = fleets(3)
    fleet.wait_complete()
    here, there = socket.socketpair()
    workers = sorted(fleet.offered(), key=lambda w: w.seat)
    for _ in range(9):
        assert fleet.hand(there)
    assert [w.handed for w in workers] == [3, 3, 3]
    assert not fleet.uneven
    fleet._ended[1] = 2
    assert fleet.uneven
    assert [i["connections"] for i in fleet.info()] == [3, 1, 3]
    for _ in range(2):
        fleet.hand(there)
    assert [w.handed for w in workers] == [3, 5, 3]
    workers[0].full = workers[2].full = True
    fleet.hand(there)
    assert [w.handed for w in workers] == [3, 6, 3]
    workers[1].full = True
    assert not fleet.hand(there)
    here.close()
    there.close()


def test_a_process_that_dies_after_it_was_healthy_is_replaced_as_soon_as_the_first_was(monkeypatch):
    fleet, now_s, waited_s = Fleet(1, SETTINGS), [0.0], []
    lives_s = iter([1.0, 1.0, 1.0, fleet_module.HEALTHY_S + 1.0, 1.0])

    def live(seat):
        now_s[0] += next(lives_s)

    monkeypatch.setattr(fleet_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(fleet, "_live", live)
    monkeypatch.setattr(fleet, "_ending", SimpleNamespace(is_set=lambda: len(waited_s) == 4, wait=waited_s.append))
    fleet._keep(fleet._seats[0])
    first_s = fleet_module.FIRST_BACKOFF_S
    assert waited_s == [first_s, 2 * first_s, 4 * first_s, first_s]
    assert fleet.info()[0]["restarts"] == 5
