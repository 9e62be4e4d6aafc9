"""The read side of a version: what is prepared, what is flipped, what is forgotten."""

import gc
import weakref

import numpy as np
import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.versions import replica as replica_module
from freshet_serving.processor.versions import served_version as served
from freshet_serving.processor.versions.control import ENTRIES, IDLE, PINS, WORDS
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.support.packages import connect, make_delta, make_weights, open_version, row_of, write_package


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return write_package(tmp_path_factory.mktemp("repository"), users=range(6))


class Refusing:
    """Replicas that cannot prepare a frame."""

    def __init__(self, replicas):
        self.replicas, self.cost = replicas, {}

    def prepare(self, frame):
        raise BadInput("no")


def test_prepared_state_is_not_served_before_the_flip(package):
    version = open_version(package)
    change = version._next(Generation(1, 9), 1, dict(version.dense, **make_weights(9)))
    version.replicas.prepare(change.frame)
    with version.replicas.pinned(0) as state:
        assert state.generation == Generation(1, 0)
        before = state.executables
    version._publish(change)
    with version.replicas.pinned(0) as state:
        assert state.generation == Generation(1, 9)
        assert state.executables is not before
    assert version.replicas.generation == Generation(1, 9)


def test_replicas_of_two_processes_flip_together_and_pin_separately(package):
    version = ServedVersion(VersionReader(package), 4, SystemClock(), processes=2)
    replicas = [Replica(version.files, version.control, n, 1, SystemClock()) for n in range(2)]

    class Both:
        def prepare(self, frame):
            for replica in replicas:
                replica.prepare(frame)

        def forget(self, frame):
            for replica in replicas:
                replica.forget(frame)

    version.attach_replicas(Both())
    assert [r.generation.step for r in replicas] == [0, 0]
    version.apply(make_delta(1, [1]))
    assert [r.generation.step for r in replicas] == [1, 1]
    with replicas[1].pinned(0):
        assert np.flatnonzero(version.control.words[PINS:] != IDLE).tolist() == [WORDS]


def test_delta_that_a_replica_cannot_prepare_changes_nothing(package):
    version = open_version(package)
    replica = version._replicas
    version._replicas = Refusing(replica)
    with pytest.raises(BadInput, match="no"):
        version.apply(make_delta(1, [1, 77], tag=5, dense_seed=1))
    assert version.generation == replica.generation == Generation(1, 0)
    assert 77 not in version.export()[0]["user"][0]
    version._replicas = replica
    version.apply(make_delta(1, [1, 77], tag=6))
    keys, rows = version.export()[0]["user"]
    assert tuple(rows[keys == 77][0]) == tuple(row_of(77, 6))
    assert replica.generation == Generation(1, 1)


def test_deltas_applied_before_open_are_served_from_the_first_batch(package):
    version = ServedVersion(VersionReader(package), 4, SystemClock())
    version.apply(make_delta(1, [1], dense_seed=3))
    with pytest.raises(NotReady, match="is not open"):
        _ = version.replicas
    version.attach_replicas(connect(version))
    with version.replicas.pinned(0) as state:
        assert state.generation == Generation(1, 1)


def test_frames_are_forgotten_after_every_reader_passed_the_flip(package):
    version = open_version(package)
    for step in range(1, 6):
        version.apply(make_delta(step, [1], dense_seed=step))
        assert list(version.replicas._frames) == [version.change.frame.number]


def test_row_deltas_reuse_the_existing_frame(package):
    version = open_version(package)
    replica = version._replicas
    version._replicas = Refusing(replica)
    seen = []
    for step in range(1, 4):
        version.apply(make_delta(step, [1], tag=step))
        with replica.pinned(0) as state:
            seen.append(state)
        with replica.pinned(1) as again:
            assert again is state, "made once, for whoever comes next"
    version.rollback(1)
    with replica.pinned(0) as state:
        seen.append(state)
    assert [state.generation.step for state in seen] == [1, 2, 3, 1]
    assert len({state.publish_seq for state in seen}) == 4
    assert len({id(state.tables) for state in seen}) == len({id(state.executables) for state in seen}) == 1


def test_index_grown_for_a_refused_delta_is_published_later(package):
    version = open_version(package)
    replica = version._replicas
    version._replicas = Refusing(replica)
    with pytest.raises(BadInput, match="no"):
        version.apply(make_delta(1, range(1000, 1200)))
    assert replica.generation == Generation(1, 0)
    version._replicas = replica
    version.apply(make_delta(1, [1], tag=6))
    with replica.pinned(0) as state:
        assert state.tables[0, 0] == version.tables["user"].arrays["index"].ctypes.data


def test_idle_process_keeps_nothing_of_a_forgotten_frame(package):
    version = open_version(package)
    with version.replicas.pinned(0):
        pass
    assert version.replicas._newest is not None
    version.apply(make_delta(1, [1], dense_seed=1))
    assert version.replicas._newest is None


def test_stalled_session_keeps_its_state_and_blocks_overwriting_changes(package, monkeypatch):
    monkeypatch.setattr(served, "GRACE_TIMEOUT_S", -1.0)
    version = open_version(package)
    replica = version.replicas
    state = replica.pin(0)
    flips = 0
    while version.control.has_room(served.FLIPS):
        flips += 1
        with pytest.raises(NotReady, match="within a minute"):
            version.apply(make_delta(flips, [1], tag=flips))
        with replica.pinned(1) as newest:
            assert newest.generation.step == flips
    assert flips == ENTRIES - served.FLIPS
    kept = []
    for change in (
        lambda: version.apply(make_delta(flips + 1, [1]), keep=lambda: kept.append(1)),
        lambda: version.rollback(flips - 1),
    ):
        with pytest.raises(NotReady, match="within a minute"):
            change()
    assert not kept, "refused before anything is made durable"
    assert version.control.entry(state.publish_seq)[:3] == (0, 0, 0)
    replica.unpin(0)
    version.apply(make_delta(flips + 1, [1]))
    assert replica.generation == Generation(1, flips + 1)


def test_dropped_replica_is_freed_without_the_garbage_collector(package):
    """An unloaded version's memory must not wait for a collection of the oldest objects, which hardly ever comes."""
    version = open_version(package)
    replica, table = (weakref.ref(each) for each in (version.replicas, next(iter(version.tables.values()))))
    gc.disable()
    try:
        del version
        assert (replica(), table()) == (None, None)
    finally:
        gc.enable()


def test_new_version_of_the_same_programs_takes_over_their_costs(package, tmp_path, monkeypatch):
    version = open_version(package)
    replica = version.replicas
    bucket = min(replica.cost)
    replica.graphs.undivided.costs.cost[bucket] = 12.5
    monkeypatch.setattr(replica_module, "measure", forbidden)
    later = open_version(write_package(tmp_path, version=2, seed=3)).replicas
    assert later.cost == replica.cost
    later.graphs.undivided.costs.record_run(bucket, 1.0)
    assert replica.cost[bucket] == 12.5, "each learns for itself"


def test_version_without_a_loaded_one_of_its_programs_is_timed(package, monkeypatch):
    version = open_version(package)
    before = weakref.ref(version.replicas.graphs)
    del version
    gc.collect()
    assert before() is None
    monkeypatch.setattr(replica_module, "measure", forbidden)
    with pytest.raises(AssertionError, match="timed"):
        open_version(package)


def test_new_weights_of_a_version_are_not_timed(package, monkeypatch):
    version = open_version(package)
    monkeypatch.setattr(replica_module, "measure", forbidden)
    version.apply(make_delta(1, [1], dense_seed=1))
    assert version.replicas.generation == Generation(1, 1)


def forbidden(*_):
    raise AssertionError("timed")
