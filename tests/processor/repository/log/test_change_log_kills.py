"""An upload that ends at any of its steps, as a kill ends it: nothing is cleaned up, and nothing committed is lost."""

import os
import time
from pathlib import Path

import pytest

from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.pruning import prunable
from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import delta_bytes, make_delta, write_package

CALLS = "fsync", "link"
STEPS, NAMED = 6, 5
"""Calls of an upload that make durable, or name, what others see; after so many of them the record has its name."""


class Killed(BaseException):
    """Ends an upload; nothing that would clean up does anything from then on."""


def uploaded(root, step, tag, hold=False):
    """A delta that is kept, prepared, perhaps held, and committed."""
    change_log, delta = ChangeLog.of(version_in(root)), make_delta(step, [step], tag=tag)
    kept = change_log.keep(delta, delta_bytes(step, [step], tag=tag))
    change_log.prepare(delta, kept)
    if hold:
        change_log.hold("poisoned")
    return change_log.commit(delta, kept)


def version_in(root):
    return Repository(root).version("small", 1)


def killed_at(number, patch, act):
    """Act, ended before the call of CALLS after so many others; return True if it was."""
    left, real = [number], {name: getattr(os, name) for name in CALLS}

    def counted(call):
        def before(*args, **options):
            left[0] -= 1
            if left[0] < 0:
                for module, name in ((Path, "unlink"), (os, "unlink")):
                    patch.setattr(module, name, lambda *args, **options: None)
                raise Killed
            return call(*args, **options)

        return before

    for name, call in real.items():
        patch.setattr(os, name, counted(call))
    try:
        act()
    except Killed:
        return True
    return False


def assert_sound(root):
    """Every record and every delta of the log can be read; return the log."""
    change_log = ChangeLog.of(version_in(root), whole=True)
    for link in change_log.history.line()[1:]:
        assert change_log.read_delta(link).step == link.step
    return change_log


def hidden_in(root):
    return sorted(path.name for path in (root / "small" / "1").rglob(".*"))


@pytest.mark.parametrize("number", range(STEPS + 1))
def test_killed_upload_is_committed_or_can_be_sent_again(tmp_path, monkeypatch, number):
    write_package(tmp_path, users=range(6))
    uploaded(tmp_path, 1, 1)
    with monkeypatch.context() as patch:
        assert killed_at(number, patch, lambda: uploaded(tmp_path, 2, 2)) == (number < STEPS)
    head = assert_sound(tmp_path).history.head.step
    assert head == (2 if number >= NAMED else 1)
    assert uploaded(tmp_path, head + 1, 3).step == head + 1
    assert assert_sound(tmp_path).history.head.step == head + 1


@pytest.mark.parametrize("number", range(STEPS + 4))
def test_killed_upload_of_a_held_delta_serves_nothing(tmp_path, monkeypatch, number):
    write_package(tmp_path, users=range(6))
    uploaded(tmp_path, 1, 1)
    with monkeypatch.context() as patch:
        killed_at(number, patch, lambda: uploaded(tmp_path, 2, 2, hold=True))
    history = assert_sound(tmp_path).history
    assert history.target.step == 1


def test_leftovers_of_kills_are_hidden_and_are_pruned_after_a_day(tmp_path, monkeypatch):
    write_package(tmp_path, users=range(6))
    for number in range(NAMED):
        with monkeypatch.context() as patch:
            assert killed_at(number, patch, lambda: uploaded(tmp_path, 1, 1))
    change_log = assert_sound(tmp_path)
    assert len(hidden_in(tmp_path)) >= 4

    def listed(days):
        return prunable(change_log.storage, change_log.history, 9, time.time() + days * 86_400)

    assert {one.path.name for one in listed(0.9)} & set(hidden_in(tmp_path)) == set()
    for one in listed(1.1):
        one.remove()
    assert hidden_in(tmp_path) == []
    assert assert_sound(tmp_path).history.head.step == change_log.history.head.step


def test_record_is_created_where_a_cleaner_took_the_prepared_one(tmp_path):
    write_package(tmp_path, users=range(6))
    change_log, delta = ChangeLog.of(version_in(tmp_path)), make_delta(1, [1])
    kept = change_log.keep(delta, delta_bytes(1, [1]))
    change_log.prepare(delta, kept)
    for name in hidden_in(tmp_path):
        (tmp_path / "small" / "1" / "chain" / name).unlink()
    assert change_log.commit(delta, kept).step == 1
    assert assert_sound(tmp_path).history.head.step == 1
