"""What extensions keep beside rows is told of changes before they are published, and catches up behind readers."""

import numpy as np
import pytest

from freshet_serving.processor import ports
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.versions.control import Pins
from tests.support.packages import make_delta, open_version, write_package

USERS = range(20)


class Watcher:
    def __init__(self, slices=1):
        self.seen, self.left, self.slices, self.fails = [], slices, slices, False
        self.mine = {"user": {"user_notes": np.zeros(3)}}
        self.version = None

    @property
    def arrays(self):
        return self.mine

    @property
    def nbytes(self):
        return 7

    def changing(self, keys):
        served = str(self.version.generation) if self.version else None
        self.seen.append((served, {name: sorted(np.concatenate(some).tolist()) for name, some in keys.items()}))
        self.left = self.slices

    def refresh(self, epoch):
        if self.fails:
            raise MemoryError
        self.left -= 1
        self.seen.append(epoch)
        return self.left > 0


@pytest.fixture
def watched(tmp_path, monkeypatch):
    watcher = Watcher()
    extensions = {"toy": ports.Extension(row_watchers={"toy": lambda manifest, tables, tensors: watcher})}
    monkeypatch.setattr(ports.ENGINE, "all", lambda: extensions)
    watcher.version = open_version(write_package(tmp_path / "repository", users=USERS), 4)
    return watcher


def test_changes_are_told_before_they_are_published(watched):
    version = watched.version
    watched.seen.clear()
    version.apply(make_delta(1, [3, 33], [7], tag=5))
    version.apply(make_delta(2, [4], tag=6))
    version.rollback(0)
    told = [entry for entry in watched.seen if isinstance(entry, tuple)]
    assert [served for served, _ in told] == ["1.0", "1.1", "1.2", "1.2"]
    assert [keys["user"] for _, keys in told] == [[3, 7, 33], [4], [3, 7, 33], [4]]
    # After each delta; what a rollback changed is left to maintain().
    assert watched.seen.index(1) == 1
    assert watched.left
    version.maintain()
    assert not watched.left


def test_refused_delta_is_told_too(watched):
    def refuse(change):
        raise BadInput("no")

    watched.seen.clear()
    with pytest.raises(BadInput):
        watched.version.apply(make_delta(1, [3], tag=5), examine=refuse)
    assert watched.seen == [("1.0", {"user": [3], **{n: [] for n in watched.seen[0][1] if n != "user"}})]


def test_nothing_catches_up_while_an_older_state_is_read(watched):
    version = watched.version
    while version.maintain():
        pass
    version.apply(make_delta(1, [3], tag=5))
    pins = Pins(version.control, 0)
    pins.pin(5)
    version._publish(version._next(version.generation, version.change.epoch, version.dense))
    version._watchers.changing({"user": [np.array([3])]})
    watched.seen.clear()
    assert version.maintain()
    assert watched.seen == []
    pins.unpin(5)
    assert not version.maintain()
    assert watched.seen == [version.change.epoch]


def test_shortage_of_memory_is_tried_again(watched):
    watched.fails = True
    watched.version.apply(make_delta(1, [3], tag=5))
    assert str(watched.version.generation) == "1.1"
    assert watched.version.maintain()
    watched.fails = False
    assert not watched.version.maintain()


def test_readers_map_its_arrays_and_new_ones_make_a_new_frame(watched):
    version = watched.version
    frame = version.change.frame
    (notes,) = [arrays["user_notes"] for arrays in frame.arrays if "user_notes" in arrays]
    assert notes is watched.mine["user"]["user_notes"]
    version.apply(make_delta(1, [3], tag=5))
    assert version.change.frame is frame
    watched.mine = {"user": {"user_notes": np.ones(4)}}
    version.apply(make_delta(2, [4], tag=6))
    assert version.change.frame.number == frame.number + 1
    assert version.memory()["beside"] == 7
