"""The read side of a version: what is prepared, what is flipped, what is forgotten."""

import numpy as np
import pytest

from processor.clock import SystemClock
from processor.errors import BadInput, NotReady
from processor.generation import Generation
from processor.package.version import VersionReader
from processor.replica import IDLE, READERS, Replica, control_words
from processor.served import ServedVersion
from tests.packages import connect, make_delta, open_version, row_of, write_package


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return write_package(tmp_path_factory.mktemp("repository"), users=range(6))


class Refusing:
    """Readers that cannot prepare."""

    def __init__(self, readers):
        self.readers, self.cost = readers, {}

    def prepare(self, change):
        raise BadInput("no")


def test_control_words_start_with_nobody_reading():
    words = control_words(3)
    assert len(words) == 1 + 3 * READERS
    assert words[0] == 0
    assert (words[1:] == IDLE).all()


def test_what_is_prepared_is_served_by_nobody_until_the_flip(package):
    version = open_version(package)
    version.readers.prepare(version._next(Generation(1, 9), 1, version.dense))
    with version.readers.pinned(0) as state:
        assert state.generation == Generation(1, 0)
    version._flip(version._next(Generation(1, 9), 1, version.dense))
    with version.readers.pinned(0) as state:
        assert state.generation == Generation(1, 9)
    assert version.readers.generation == Generation(1, 9)


def test_a_pin_is_seen_by_the_writer_and_gone_after(package):
    version = open_version(package)
    version.apply(make_delta(1, [1]))
    with version.readers.pinned(5):
        assert version._oldest_pin() == version.change.flip
    assert version._oldest_pin() == IDLE


def test_replicas_of_two_processes_flip_together_and_pin_apart(package):
    version = ServedVersion(VersionReader(package), 4, SystemClock(), processes=2)
    replicas = [Replica(version.reader, version.control, n, 1, SystemClock()) for n in range(2)]

    class Both:
        def prepare(self, change):
            for replica in replicas:
                replica.prepare(change)

        def forget(self, flip):
            for replica in replicas:
                replica.forget(flip)

    version.open(Both())
    assert [r.generation.step for r in replicas] == [0, 0]
    version.apply(make_delta(1, [1]))
    assert [r.generation.step for r in replicas] == [1, 1]
    with replicas[1].pinned(0):
        assert np.flatnonzero(version.control[1:] != IDLE).tolist() == [READERS]


def test_a_delta_that_a_reader_cannot_prepare_changes_nothing_and_the_next_one_goes_on(package):
    version = open_version(package)
    replica = version._readers
    version._readers = Refusing(replica)
    with pytest.raises(BadInput, match="no"):
        version.apply(make_delta(1, [1, 77], tag=5))
    assert version.generation == replica.generation == Generation(1, 0)
    assert 77 not in version.export()[0]["user"][0]
    version._readers = replica
    version.apply(make_delta(1, [1, 77], tag=6))
    keys, rows = version.export()[0]["user"]
    assert tuple(rows[keys == 77][0]) == tuple(row_of(77, 6))
    assert replica.generation == Generation(1, 1)


def test_deltas_before_open_are_served_from_the_first_batch_on(package):
    version = ServedVersion(VersionReader(package), 4, SystemClock())
    version.apply(make_delta(1, [1], dense_seed=3))
    with pytest.raises(NotReady, match="is not open"):
        _ = version.readers
    version.open(connect(version))
    with version.readers.pinned(0) as state:
        assert state.generation == Generation(1, 1)


def test_states_are_forgotten_once_the_flip_has_passed_every_reader(package):
    version = open_version(package)
    for step in range(1, 6):
        version.apply(make_delta(step, [1]))
    assert list(version.readers._states) == [version.change.flip]
