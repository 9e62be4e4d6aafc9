"""A version's place where that is the folder it is read from; and a folder's changes, noticed once each."""

import os
import time

import pytest

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.repository import storage as storage_module
from freshet_serving.processor.repository.storage import FolderStorage, FolderWatch, newest
from tests.support.packages import write_package


@pytest.fixture
def storage(tmp_path):
    return FolderStorage(write_package(tmp_path))


def test_name_can_be_created_only_once(storage):
    storage.create("chain/0000000001.json", b"one")
    with pytest.raises(FileExistsError):
        storage.create("chain/0000000001.json", b"two")
    assert (storage.folder / "chain" / "0000000001.json").read_bytes() == b"one"


def test_replace_overwrites_a_file(storage):
    storage.replace("model.json", b"{}")
    assert (storage.folder / "model.json").read_bytes() == b"{}"


def test_removing_a_missing_file_is_allowed(storage):
    storage.remove("tables")
    storage.remove("tables")
    storage.remove("model.json")
    assert not storage.has("model.json")
    assert not (storage.folder / "tables").exists()


def test_existing_version_is_not_replaced(storage, tmp_path):
    (tmp_path / "built").mkdir()
    with pytest.raises(Conflict, match="already exists"):
        storage.install(tmp_path / "built")


def test_ended_version_leaves_nothing_visible(storage):
    storage.end()
    assert list(storage.folder.parent.iterdir()) == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_newest_number_is_found_in_logarithmic_time(count):
    looks = []
    assert newest(lambda number: looks.append(number) or number <= count) == count
    assert len(looks) <= 2 * count.bit_length() + 2


LONG_AGO_S = 1_600_000_000


@pytest.fixture
def root(tmp_path):
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def age(path, seconds=LONG_AGO_S):
    os.utime(path, (seconds, seconds))


def test_folder_counts_as_changed_first_and_then_only_after_changes(root):
    age(root)
    watch = FolderWatch(root)
    assert [watch.changed() for _ in range(3)] == [True, False, False]
    (root / "new").touch()
    age(root, LONG_AGO_S + 1)
    assert [watch.changed() for _ in range(3)] == [True, False, False]


def test_recently_changed_folder_counts_as_changed_next_time_too(root, monkeypatch):
    now_ns = time.time_ns()
    monkeypatch.setattr(storage_module.time, "time_ns", lambda: now_ns)
    os.utime(root, ns=(now_ns, now_ns - 1_000_000))
    watch = FolderWatch(root)
    assert [watch.changed() for _ in range(3)] == [True, True, True]
    now_ns += 3_000_000_000
    assert [watch.changed() for _ in range(3)] == [True, False, False]


def test_change_within_the_same_clock_tick_is_seen_next_time(root, monkeypatch):
    now_ns = time.time_ns()
    monkeypatch.setattr(storage_module.time, "time_ns", lambda: now_ns)
    os.utime(root, ns=(now_ns, now_ns))
    watch = FolderWatch(root)
    assert watch.changed()
    (root / "late").touch()
    os.utime(root, ns=(now_ns, now_ns))
    assert watch.changed()


def test_missing_folder_is_unchanged_until_it_appears_or_disappears(root):
    watch = FolderWatch(root / "deltas")
    assert [watch.changed() for _ in range(3)] == [True, False, False]
    (root / "deltas").mkdir()
    age(root / "deltas")
    assert [watch.changed() for _ in range(2)] == [True, False]
    (root / "deltas").rmdir()
    assert [watch.changed() for _ in range(2)] == [True, False]


def test_future_modification_time_does_not_report_changes_forever(root):
    age(root, int(time.time()) + 86_400)
    watch = FolderWatch(root)
    assert [watch.changed() for _ in range(3)] == [True, False, False]
