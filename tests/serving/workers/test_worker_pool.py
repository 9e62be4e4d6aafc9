"""The life of a seat, and who gets a connection."""

import json
import operator
import shutil
import socket
import threading
from concurrent.futures import Future
from os import dup
from types import SimpleNamespace

import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.features.input_lookup import NO_LOOKUPS
from freshet_serving.processor.sessions.session_options import GroupOptions
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.workers import worker_pool as fleet_module
from freshet_serving.serving.workers.channel import ChannelClosed, refusal
from freshet_serving.serving.workers.worker import Worker
from freshet_serving.serving.workers.worker_pool import WorkerPool, WorkerSettings
from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost
from tests.processor.versions.test_model_shortage import (
    UNDO_DEPTH,
    applying,
    every,
    following,
    rebuilding,
    rolling_back,
    started,
    switching,
)
from tests.serving.workers.fakes import FakeFleet, FakeWorker
from tests.support.shortages import Calls
from tests.support.waiting import until

SETTINGS = WorkerSettings(FrontendOptions(shutdown_timeout_s=1.0, version="9"), {}, None, [], "127.0.0.1:0")
WAIT_S = 30


class WorkerListener:
    """fleet.WorkerListener: offers every worker at once."""

    def __init__(self):
        self.worker_pool, self.introduced, self.dead, self.refuse = None, [], [], None
        self.suspicions, self.mourned = [], []

    def initialize_worker(self, worker):
        self.introduced.append(worker)
        if self.refuse is not None:
            raise self.refuse
        self.worker_pool.mark_available(worker)

    def on_exit(self, worker):
        self.dead.append(worker)

    def on_message(self, worker, message):
        pass

    def on_suspects_changed(self):
        self.suspicions.append(self.worker_pool.suspects())

    def on_crash(self, slot, signal):
        self.mourned.append((slot, signal, len(self.introduced)))


class Mortal(FakeWorker):
    """A WorkerProcess without a process."""

    spawned = threading.Semaphore(0)
    stillborn = False

    def __init__(self, fork_server, slot, message, fds, on_message, beats):
        super().__init__(slot)
        self.settings, self.beats, self.silence_s, self.looked, self.waited = message, beats, 0.0, 0, 0
        self._reap_lock, self._reaped = threading.Lock(), False
        self.hello, self.up = self, True
        Mortal.spawned.release()

    def result(self, timeout_s):
        if Mortal.stillborn:
            raise ChannelClosed("stillborn")

    def heartbeat_age_s(self):
        self.looked += 1
        return self.silence_s

    def wait(self, timeout_s):
        return self.gone.wait(timeout_s)

    def tell(self, op, message=None, fds=()):
        super().tell(op, message, fds)
        if op in ("end", "abort"):
            self.gone.set()

    def reap(self, on_death):
        with self._reap_lock:
            if not self._reaped:
                self.gone.set()
                on_death(self)
                self._reaped = True


@pytest.fixture
def fleets(monkeypatch):
    """Makes (fleet, owner) with Mortal workers, started, or complete; ended afterwards."""
    monkeypatch.setattr(fleet_module, "WorkerProcess", Mortal)
    monkeypatch.setattr(fleet_module, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(fleet_module, "MAX_BACKOFF_S", 0.01)
    monkeypatch.setattr(fleet_module, "SILENCE_CHECK_S", 0.01)
    monkeypatch.setattr(Mortal, "spawned", threading.Semaphore(0))
    made = []

    def make(count=2, refuse=None):
        worker_pool, owner = WorkerPool(count, SETTINGS), WorkerListener()
        owner.worker_pool, owner.refuse = worker_pool, refuse
        made.append(worker_pool)
        worker_pool.start(owner)
        return worker_pool, owner

    def complete(count=2):
        worker_pool, owner = make(count)
        worker_pool.wait_complete()
        return worker_pool, owner

    make.complete = complete

    yield make
    for worker_pool in made:
        worker_pool.end()
        worker_pool.join()
    assert not [t for t in threading.enumerate() if t.name.startswith("freshet-seat")]


def spawns(count):
    for _ in range(count):
        assert Mortal.spawned.acquire(timeout=WAIT_S)


def test_every_slot_gets_a_process_before_the_pool_is_complete(fleets):
    worker_pool, owner = fleets.complete(3)
    assert sorted(w.slot for w in worker_pool.available()) == [0, 1, 2]
    assert [w.settings["seat"] for w in sorted(owner.introduced, key=lambda w: w.slot)] == [0, 1, 2]
    assert [(i["up"], i["restarts"], i["connections"]) for i in worker_pool.info()] == [(True, 0, 0)] * 3


def test_worker_gets_only_as_many_connections_as_its_descriptors_allow(fleets):
    worker_pool, _ = fleets.complete()
    worker_pool._most = 2
    here, there = socket.socketpair()
    with here, there:
        assert [worker_pool.hand_off(here) for _ in range(5)] == [True] * 4 + [False]
        assert sorted(w.handed for w in worker_pool.available()) == [2, 2]
        worker_pool._ended[1] += 1
        assert [worker_pool.hand_off(here), worker_pool.hand_off(here)] == [True, False]
        assert sorted(w.handed for w in worker_pool.available()) == [2, 3]


def test_dead_process_is_reaped_once_and_replaced_in_its_slot(fleets):
    worker_pool, owner = fleets.complete()
    spawns(2)
    victim = worker_pool.available()[1]
    victim.gone.set()
    worker_pool.reap(victim)
    assert owner.dead == [victim]
    spawns(1)
    until(lambda: len(worker_pool.available()) == 2)
    assert victim not in worker_pool.available()
    assert [i["restarts"] for i in worker_pool.info()] == [0, 1]
    assert worker_pool.complete


def test_owner_learns_the_cause_of_death_before_the_replacement(fleets, caplog):
    worker_pool, owner = fleets.complete(1)
    (victim,) = worker_pool.available()
    victim.signal = "SIGBUS"
    victim.gone.set()
    spawns(2)
    until(lambda: worker_pool.available() not in ([], [victim]))
    assert owner.mourned == [(0, "SIGBUS", 1)]
    assert worker_pool.info()[0]["died_of"] == "SIGBUS"
    assert "worker 0, process 1000, has died of SIGBUS and is replaced" in caplog.text


def test_failing_crash_handler_does_not_keep_a_slot_empty(fleets, monkeypatch, caplog):
    worker_pool, owner = fleets.complete(1)
    monkeypatch.setattr(owner, "on_crash", lambda slot, signal: 1 / 0)
    (victim,) = worker_pool.available()
    victim.gone.set()
    spawns(2)
    until(lambda: worker_pool.available() not in ([], [victim]))
    assert "could not examine" in caplog.text


def test_workers_give_up_excess_connections_to_a_new_process(fleets):
    worker_pool, _ = fleets.complete(3)
    victim, *others = sorted(worker_pool.available(), key=lambda w: w.slot)
    worker_pool.reap(victim)
    until(lambda: len(worker_pool.available()) == 3)
    # Not before: while there are two workers, the excess of the first is another one.
    for worker, count in zip(reversed(others), (4, 7), strict=True):
        worker.handed = count
    until(lambda: any(op == "shed" for op, _ in others[0].said))
    assert [{m["count"] for op, m in w.said if op == "shed"} for w in others] == [{3}, set()]


def test_excess_connections_are_given_up_after_two_checks(fleets, monkeypatch):
    counts = iter([5, 1, 5, 4, 1])
    begun, looked = threading.Event(), threading.Event()

    def look(worker):
        worker.handed = next(counts, 1) if worker.slot == 0 and begun.is_set() else 1
        if not operator.length_hint(counts):
            looked.set()
        return 0.0

    monkeypatch.setattr(Mortal, "heartbeat_age_s", look)
    worker_pool, _ = fleets.complete(2)
    for worker in worker_pool.available():
        # Not left to the first look at it: that may come after those at the other.
        worker.handed = 1
    begun.set()
    assert looked.wait(WAIT_S)
    assert [[m for op, m in w.said if op == "shed"] for w in worker_pool.available()] == [[{"count": 1}], []]


@pytest.mark.parametrize(
    "refuse", [None, FreshetError("no memory"), ChannelClosed("died"), TimeoutError(), KeyError("x")]
)
def test_slot_whose_process_cannot_serve_is_retried_and_never_used(fleets, monkeypatch, refuse):
    monkeypatch.setattr(Mortal, "stillborn", refuse is None)
    monkeypatch.setattr(fleet_module, "START_TIMEOUT_S", 0.05)
    worker_pool, owner = fleets(1, refuse)
    spawns(4)
    assert not worker_pool.available()
    with pytest.raises(NotReady, match="not all processes started"):
        worker_pool.wait_complete()
    owner.refuse = None
    monkeypatch.setattr(Mortal, "stillborn", False)
    until(worker_pool.available)
    assert worker_pool.info()[0]["restarts"] >= 3


@pytest.mark.parametrize(("computing", "said"), [(1, "within a batch"), (0, "outside of a batch")])
def test_silent_process_is_replaced_and_its_activity_logged(fleets, caplog, computing, said):
    worker_pool, owner = fleets.complete(1)
    silent = worker_pool.available()[0]
    worker_pool._beats[0] = 7
    assert silent.beats() == 7
    worker_pool._computing[0] = computing
    silent.silence_s = 2 * fleet_module.SILENCE_TIMEOUT_S
    until(lambda: silent in owner.dead and worker_pool.available())
    (line,) = [r.getMessage() for r in caplog.records if "hangs" in r.getMessage()]
    assert said in line
    assert "no message and no progress for 30 s" in line


def test_hanging_processes_are_replaced_one_at_a_time(fleets):
    worker_pool, owner = fleets.complete(3)
    held = threading.Event()

    def initialize_worker(worker):
        owner.introduced.append(worker)
        assert held.wait(WAIT_S)
        worker_pool.mark_available(worker)

    owner.initialize_worker = initialize_worker
    hung = worker_pool.available()
    for worker in hung:
        worker.silence_s = 2 * fleet_module.SILENCE_TIMEOUT_S
    until(lambda: len(owner.introduced) == 4)
    others = [worker for worker in hung if worker not in owner.dead]
    looked = [worker.looked for worker in others]
    until(lambda: all(worker.looked > before + 3 for worker, before in zip(others, looked, strict=True)))
    assert len(owner.dead) == 1
    held.set()
    until(lambda: len(owner.dead) == 3 and len(worker_pool.available()) == 3)
    assert set(owner.dead) == set(hung)


def test_suspect_process_gets_no_connections_until_it_responds(fleets):
    worker_pool, owner = fleets.complete(2)
    silent, other = workers = sorted(worker_pool.available(), key=lambda w: w.slot)
    here, there = socket.socketpair()
    with here, there:
        silent.silence_s = fleet_module.SUSPECT_S + 1
        until(worker_pool.suspects)
        assert worker_pool.suspects() == [0]
        assert [i["up"] for i in worker_pool.info()] == [False, True]
        assert worker_pool.info()[0]["silent_s"] >= fleet_module.SUSPECT_S
        for _ in range(4):
            assert worker_pool.hand_off(there)
        assert [w.handed for w in workers] == [0, 4]
        assert not worker_pool.unbalanced, "the suspect's count says nothing"
        worker_pool.drain_share(0.5)
        assert [[m for op, m in w.said if op == "release"] for w in workers] == [[], [{"share": 0.5}]]
        other.silence_s = fleet_module.SUSPECT_S + 1
        until(lambda: worker_pool.suspects() == [0, 1])
        assert not worker_pool.hand_off(there), "it waits"
        for worker in workers:
            worker.silence_s = 0.0
        until(lambda: not worker_pool.suspects())
        assert worker_pool.hand_off(there)
    assert owner.dead == []
    assert owner.suspicions[0] == [0]
    until(lambda: owner.suspicions[-1] == [])


def test_reaped_process_is_no_longer_suspect(fleets):
    worker_pool, owner = fleets.complete(2)
    victim = worker_pool.available()[0]
    victim.silence_s = fleet_module.SUSPECT_S + 1
    until(worker_pool.suspects)
    worker_pool.reap(victim)
    assert worker_pool.suspects() == []
    assert owner.suspicions[-1] == []


def test_no_process_is_replaced_after_the_end(fleets):
    worker_pool, owner = fleets.complete()
    workers = worker_pool.available()
    worker_pool.end()
    worker_pool.join()
    assert all(w.said[-1][0] == "end" for w in workers)
    assert len(owner.introduced) == 2
    assert not worker_pool.available()


def test_connection_goes_to_the_least_loaded_worker_with_room(fleets):
    worker_pool, _ = fleets.complete(3)
    here, there = socket.socketpair()
    workers = sorted(worker_pool.available(), key=lambda w: w.slot)
    for _ in range(9):
        assert worker_pool.hand_off(there)
    assert [w.handed for w in workers] == [3, 3, 3]
    assert not worker_pool.unbalanced
    worker_pool._ended[1] = 2
    assert worker_pool.unbalanced
    assert [i["connections"] for i in worker_pool.info()] == [3, 1, 3]
    for _ in range(2):
        worker_pool.hand_off(there)
    assert [w.handed for w in workers] == [3, 5, 3]
    workers[0].full = workers[2].full = True
    worker_pool.hand_off(there)
    assert [w.handed for w in workers] == [3, 6, 3]
    workers[1].full = True
    assert not worker_pool.hand_off(there)
    for worker in workers:
        worker.full = False
    workers[0].silence_s = fleet_module.LATE_S + 0.1
    worker_pool.hand_off(there)
    assert [w.handed for w in workers] == [3, 6, 4], "the first has the fewest, but seems not to listen"
    here.close()
    there.close()


def test_restart_backoff_resets_after_a_healthy_run(monkeypatch):
    worker_pool, now_s, waited_s = WorkerPool(1, SETTINGS), [0.0], []
    lives_s = iter([1.0, 1.0, 1.0, fleet_module.HEALTHY_S + 1.0, 1.0])

    def live(slot):
        now_s[0] += next(lives_s)
        return ""

    worker_pool._owner = WorkerListener()
    monkeypatch.setattr(fleet_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(worker_pool, "_run_worker", live)
    monkeypatch.setattr(
        worker_pool, "_ending", SimpleNamespace(is_set=lambda: len(waited_s) == 4, wait=waited_s.append)
    )
    worker_pool._supervise(worker_pool._slots[0])
    first_s = fleet_module.FIRST_BACKOFF_S
    assert waited_s == [first_s, 2 * first_s, 4 * first_s, first_s]
    assert worker_pool.info()[0]["restarts"] == 5


CHANGES = ("open", "frame", "preview", "example", "forget", "close")


class ReadingWorker(FakeWorker):
    """A FakeWorker that takes changes of versions as a worker does, at once."""

    _change, _apply = Worker._change, Worker._apply
    _clock, _remote, _lookups, _states = SystemClock(), None, NO_LOOKUPS, None

    def __init__(self, slot):
        super().__init__(slot)
        self._slot, self._receivers, self._answers = slot, {}, {}

    def replica(self, key):
        return self._receivers[key].replica

    def tell(self, op, message=None, fds=()):
        self._take(op, message, fds)

    def ask(self, op, message=None, fds=()):
        number = len(self._answers)
        self._answers[number] = answer = Future()
        self._take(op, {**(message or {}), "id": number}, fds)
        if op not in CHANGES:
            answer.set_result({})
        return answer

    def _take(self, op, message, fds):
        if op in CHANGES:
            # As the channel brings it; the kernel makes the descriptors, whatever a process is short of.
            self._change(json.loads(json.dumps({**(message or {}), "op": op})), [dup(fd) for fd in fds])

    def _options_of(self, model):
        return GroupOptions()

    def _reply(self, message, **fields):
        if "id" not in message:
            return
        if "error" in fields:
            self._answers[message["id"]].set_exception(refusal(*fields["error"]))
        else:
            self._answers[message["id"]].set_result(fields)


class TwoWorkers:
    """The layout, of one point after another."""

    def __init__(self):
        self._host = None

    def begin(self, start, folder):
        self.close()
        root = folder / "repository"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(start, root)
        self._workers = [ReadingWorker(0), ReadingWorker(1)]
        self._host = WorkerPoolHost(ServeConfig(str(root), undo_depth=UNDO_DEPTH), FakeFleet(2), lambda: b"")
        for worker in self._workers:
            self._host.initialize_worker(worker)
        self._host.load_all()
        self._host.opened()
        return self._host.model("small"), root

    def replicas(self, model):
        return [worker.replica(model.pick().replicas.key) for worker in self._workers]

    def close(self):
        if self._host is not None:
            self._host.close()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return started(tmp_path_factory.mktemp("start"))


@pytest.fixture
def layout():
    layout = TwoWorkers()
    yield layout
    layout.close()


def test_both_workers_answer_after_every_change(start, tmp_path, layout):
    for change in (applying, rolling_back, switching):
        assert every(start, tmp_path, change, lambda _: Calls(10**9), 1, layout.begin, layout.replicas) == 0


@pytest.mark.long
@pytest.mark.parametrize("change", [applying, following, rolling_back, rebuilding, switching])
@pytest.mark.parametrize("error", [MemoryError, pytest.param(OSError, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("count", [1, pytest.param(None, marks=pytest.mark.campaign)])
def test_failed_change_leaves_nothing_behind(start, tmp_path, layout, change, error, count):
    points = every(
        start, tmp_path, change, lambda number: Calls(number, error, count), 5, layout.begin, layout.replicas
    )
    assert points > 4
