"""A folder's changes are noticed once each, also those within one tick of the clock."""

import os
import time

import pytest

from freshet_serving.processor.repository import storage
from freshet_serving.processor.repository.storage import FolderWatch

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
    monkeypatch.setattr(storage.time, "time_ns", lambda: now_ns)
    os.utime(root, ns=(now_ns, now_ns - 1_000_000))
    watch = FolderWatch(root)
    assert [watch.changed() for _ in range(3)] == [True, True, True]
    now_ns += 3_000_000_000
    assert [watch.changed() for _ in range(3)] == [True, False, False]


def test_change_within_the_same_clock_tick_is_seen_next_time(root, monkeypatch):
    now_ns = time.time_ns()
    monkeypatch.setattr(storage.time, "time_ns", lambda: now_ns)
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
