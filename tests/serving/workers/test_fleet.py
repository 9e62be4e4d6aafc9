"""The life of a seat, and who gets a connection."""

import operator
import socket
import threading
from types import SimpleNamespace

import pytest

from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.serving.front_options import FrontOptions
from freshet_serving.serving.workers import fleet as fleet_module
from freshet_serving.serving.workers.channel import Gone
from freshet_serving.serving.workers.fleet import Fleet, WorkerProcess, WorkerSettings
from tests.serving.workers.fakes import FakeWorker
from tests.waiting import until

SETTINGS = WorkerSettings(FrontOptions(shutdown_timeout_s=1.0, version="9"), {}, None, "127.0.0.1:0")
WAIT_S = 30


class Owner:
    """fleet.Owner: offers every worker at once."""

    def __init__(self):
        self.fleet, self.introduced, self.dead, self.refuse = None, [], [], None
        self.suspicions, self.mourned = [], []

    def introduce(self, worker):
        self.introduced.append(worker)
        if self.refuse is not None:
            raise self.refuse
        self.fleet.offer(worker)

    def buried(self, worker):
        self.dead.append(worker)

    def heard(self, worker, message):
        pass

    def suspected(self):
        self.suspicions.append(self.fleet.suspects())

    def mourn(self, seat, signal):
        self.mourned.append((seat, signal, len(self.introduced)))


class Mortal(FakeWorker):
    """A WorkerProcess without a process."""

    spawned = threading.Semaphore(0)
    stillborn = False

    def __init__(self, nursery, seat, message, fds, heard, beats):
        super().__init__(seat)
        self.settings, self.beats, self.silence_s, self.looked, self.waited = message, beats, 0.0, 0, 0
        self._burying, self._buried = threading.Lock(), False
        self.hello, self.up = self, True
        Mortal.spawned.release()

    def result(self, timeout_s):
        if Mortal.stillborn:
            raise Gone("stillborn")

    def silent_s(self):
        self.looked += 1
        return self.silence_s

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


def test_a_worker_gets_no_more_connections_than_its_descriptors_allow(fleets):
    fleet, _ = fleets()
    fleet.wait_complete()
    fleet._most = 2
    here, there = socket.socketpair()
    with here, there:
        assert [fleet.hand(here) for _ in range(5)] == [True] * 4 + [False]
        assert sorted(w.handed for w in fleet.offered()) == [2, 2]
        fleet._ended[1] += 1
        assert [fleet.hand(here), fleet.hand(here)] == [True, False]
        assert sorted(w.handed for w in fleet.offered()) == [2, 3]


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


def test_the_owner_is_told_what_a_process_died_of_before_its_seat_gets_another(fleets, caplog):
    fleet, owner = fleets(1)
    fleet.wait_complete()
    (victim,) = fleet.offered()
    victim.signal = "SIGBUS"
    victim.gone.set()
    spawns(2)
    until(lambda: fleet.offered() not in ([], [victim]))
    assert owner.mourned == [(0, "SIGBUS", 1)]
    assert fleet.info()[0]["died_of"] == "SIGBUS"
    assert "worker 0, process 1000, has died of SIGBUS and is replaced" in caplog.text


def test_an_owner_that_fails_to_look_into_a_death_keeps_no_seat_empty(fleets, monkeypatch, caplog):
    fleet, owner = fleets(1)
    fleet.wait_complete()
    monkeypatch.setattr(owner, "mourn", lambda seat, signal: 1 / 0)
    (victim,) = fleet.offered()
    victim.gone.set()
    spawns(2)
    until(lambda: fleet.offered() not in ([], [victim]))
    assert "could not be looked into" in caplog.text


def test_the_others_give_up_what_is_beyond_their_share_when_a_new_process_is_up(fleets):
    fleet, _ = fleets(3)
    fleet.wait_complete()
    victim, *others = sorted(fleet.offered(), key=lambda w: w.seat)
    for worker, count in zip(others, (7, 4), strict=True):
        worker.handed = count
    fleet.bury(victim)
    until(lambda: len(fleet.offered()) == 3)
    until(lambda: any(op == "shed" for op, _ in others[0].said))
    assert [{m["count"] for op, m in w.said if op == "shed"} for w in others] == [{3}, set()]


def test_who_has_more_than_its_share_at_one_look_keeps_it_and_at_two_gives_up_the_fewer(fleets, monkeypatch):
    counts = iter([5, 1, 5, 4, 1])
    begun, looked = threading.Event(), threading.Event()

    def look(worker):
        worker.handed = next(counts, 1) if worker.seat == 0 and begun.is_set() else 1
        if not operator.length_hint(counts):
            looked.set()
        return 0.0

    monkeypatch.setattr(Mortal, "silent_s", look)
    fleet, _ = fleets(2)
    fleet.wait_complete()
    begun.set()
    assert looked.wait(WAIT_S)
    assert [[m for op, m in w.said if op == "shed"] for w in fleet.offered()] == [[{"count": 1}], []]


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


@pytest.mark.parametrize(("computing", "said"), [(1, "within a batch"), (0, "outside of a batch")])
def test_a_process_that_shows_no_life_for_long_is_replaced_and_the_log_says_what_it_did(
    fleets, caplog, computing, said
):
    fleet, owner = fleets(1)
    fleet.wait_complete()
    silent = fleet.offered()[0]
    fleet._beats[0] = 7
    assert silent.beats() == 7
    fleet._computing[0] = computing
    silent.silence_s = 2 * fleet_module.SILENCE_TIMEOUT_S
    until(lambda: silent in owner.dead and fleet.offered())
    (line,) = [r.getMessage() for r in caplog.records if "hangs" in r.getMessage()]
    assert said in line
    assert "no message and no progress for 30 s" in line


def test_of_processes_that_all_hang_one_is_killed_at_a_time_and_the_next_when_its_successor_answers(fleets):
    fleet, owner = fleets(3)
    fleet.wait_complete()
    held = threading.Event()

    def introduce(worker):
        owner.introduced.append(worker)
        assert held.wait(WAIT_S)
        fleet.offer(worker)

    owner.introduce = introduce
    hung = fleet.offered()
    for worker in hung:
        worker.silence_s = 2 * fleet_module.SILENCE_TIMEOUT_S
    until(lambda: len(owner.introduced) == 4)
    others = [worker for worker in hung if worker not in owner.dead]
    looked = [worker.looked for worker in others]
    until(lambda: all(worker.looked > before + 3 for worker, before in zip(others, looked, strict=True)))
    assert len(owner.dead) == 1
    held.set()
    until(lambda: len(owner.dead) == 3 and len(fleet.offered()) == 3)
    assert set(owner.dead) == set(hung)


def test_a_process_shows_life_by_what_it_says_and_by_its_beats(monkeypatch):
    now_s, beats = [100.0], [0]
    worker = WorkerProcess.__new__(WorkerProcess)
    worker.heard_s = worker._moved_s = 90.0
    worker._beats, worker._seen = lambda: beats[0], 0
    monkeypatch.setattr(fleet_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert worker.silent_s() == 10.0
    beats[0] += 1
    assert worker.silent_s() == 0.0
    now_s[0] = 105.0
    assert worker.silent_s() == 5.0
    worker.heard_s = 104.0
    assert worker.silent_s() == 1.0


def test_a_process_that_shows_no_life_for_a_moment_gets_no_connections_until_it_is_heard_again(fleets):
    fleet, owner = fleets(2)
    fleet.wait_complete()
    silent, other = workers = sorted(fleet.offered(), key=lambda w: w.seat)
    here, there = socket.socketpair()
    with here, there:
        silent.silence_s = fleet_module.SUSPECT_S + 1
        until(fleet.suspects)
        assert fleet.suspects() == [0]
        assert [i["up"] for i in fleet.info()] == [False, True]
        assert fleet.info()[0]["silent_s"] >= fleet_module.SUSPECT_S
        for _ in range(4):
            assert fleet.hand(there)
        assert [w.handed for w in workers] == [0, 4]
        assert not fleet.uneven, "the suspect's count says nothing"
        fleet.release(0.5)
        assert [[m for op, m in w.said if op == "release"] for w in workers] == [[], [{"share": 0.5}]]
        other.silence_s = fleet_module.SUSPECT_S + 1
        until(lambda: fleet.suspects() == [0, 1])
        assert not fleet.hand(there), "it waits"
        for worker in workers:
            worker.silence_s = 0.0
        until(lambda: not fleet.suspects())
        assert fleet.hand(there)
    assert owner.dead == []
    assert owner.suspicions[0] == [0]
    assert owner.suspicions[-1] == []


def test_a_suspect_that_is_buried_is_none_any_more(fleets):
    fleet, owner = fleets(2)
    fleet.wait_complete()
    victim = fleet.offered()[0]
    victim.silence_s = fleet_module.SUSPECT_S + 1
    until(fleet.suspects)
    fleet.bury(victim)
    assert fleet.suspects() == []
    assert owner.suspicions[-1] == []


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
    for worker in workers:
        worker.full = False
    workers[0].silence_s = fleet_module.LATE_S + 0.1
    fleet.hand(there)
    assert [w.handed for w in workers] == [3, 6, 4], "the first has the fewest, but seems not to listen"
    here.close()
    there.close()


def test_a_process_that_dies_after_it_was_healthy_is_replaced_as_soon_as_the_first_was(monkeypatch):
    fleet, now_s, waited_s = Fleet(1, SETTINGS), [0.0], []
    lives_s = iter([1.0, 1.0, 1.0, fleet_module.HEALTHY_S + 1.0, 1.0])

    def live(seat):
        now_s[0] += next(lives_s)
        return ""

    fleet._owner = Owner()
    monkeypatch.setattr(fleet_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(fleet, "_live", live)
    monkeypatch.setattr(fleet, "_ending", SimpleNamespace(is_set=lambda: len(waited_s) == 4, wait=waited_s.append))
    fleet._keep(fleet._seats[0])
    first_s = fleet_module.FIRST_BACKOFF_S
    assert waited_s == [first_s, 2 * first_s, 4 * first_s, first_s]
    assert fleet.info()[0]["restarts"] == 5
