"""Threads that give way: they, what they start, and nobody else."""

import os
import sys
import threading

import pytest

from freshet_serving.serving.loading.priority import NICE, low_priority_pool, lower_priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")


def priority():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_bulk_threads_and_their_children_have_lower_priority():
    before = priority()
    found = []

    def act():
        started = threading.Thread(target=lambda: found.append(priority()))
        started.start()
        started.join()
        return priority()

    with low_priority_pool() as bulk:
        assert bulk.submit(act).result() == min(19, before + NICE)
    assert found == [min(19, before + NICE)]
    assert priority() == before


def test_thread_continues_when_changing_priority_is_forbidden(monkeypatch):
    def refuse(*args):
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    before = priority()
    lower_priority()
    assert priority() == before
