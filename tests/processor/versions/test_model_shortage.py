"""A change that fails for want of memory leaves nothing behind: at every point, then compared with a fresh server."""

import gc
import itertools
import logging
import os
import posix
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.extensions.remote_rows.remote_table import RemoteTable
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.package import TableDelta, TableEntry
from freshet_serving.processor.repository.log.history import History
from freshet_serving.processor.tables.table import RowVersions
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.processor.versions.models import open_model, publish
from tests.processor.versions.test_served_version import scores, scores_of
from tests.support.packages import delta_bytes, open_version, write_package
from tests.support.shortages import Calls, Objects
from tests.support.waiting import GIVE_UP_S

UNDO_DEPTH = 2
FAILED, WRONG = 3, 4
ASKED = [0, 3, 5, 15, 39, 77, 399, 1000]
STRIDES = {"rolling_back": 3, "rebuilding": 11, "switching": 11}
"""Stride between the points that are tried on every change of the code, 7 for other changes; long tests try all."""
KINDS = [(MemoryError, 1), (OSError, 1), (MemoryError, None), (OSError, None)]
"""(error that a call fails with, number of calls that fail; None for all that follow)."""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return started(tmp_path_factory.mktemp("start"))


def started(folder):
    """A repository with four deltas, two of them beyond the undo log: so settling is a part of the next."""
    root = folder / "repository"
    write_package(root, users=range(200))
    model = open_model(root, UNDO_DEPTH)
    for step in range(1, 5):
        seed = step if step == 2 else None
        users = range(step * 10, step * 10 + 30)
        model.apply_bytes(delta_bytes(step, users, removed=[step], tag=step, dense_seed=seed))
    return root


def begin(start, folder):
    """A server of a copy, which has applied all deltas one by one."""
    root = folder / "repository"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(start, root)
    return open_model(root, UNDO_DEPTH), root


def applying(model, root):
    data = delta_bytes(5, range(30, 400), removed=[3, 7, 29], tag=50, dense_seed=5)
    return lambda: model.apply_bytes(data)


def following(model, root):
    publish(root, 5, range(30, 400), removed=[3, 7, 29], tag=50, dense_seed=5)
    return model.poll


def rolling_back(model, root):
    return lambda: model.rollback(Generation(1, 3))


def rebuilding(model, root):
    return lambda: model.rollback(Generation(1, 1))


def switching(model, root):
    write_package(root, version=2, users=range(50), seed=3)
    return model.poll


CHANGES = [applying, following, rolling_back, rebuilding, switching]


def come_to_rest(model, newest=1):
    """Looks again, as the watcher does, until the server is well and serves this version."""
    for _ in range(100):
        try:
            model.poll()
        except Exception:
            continue
        version = model.pick() if newest in model.routes.served else None
        if version is not None and model.chain(newest).state == "CURRENT" and not version.torn:
            return
        if version is not None and model.chain(newest).state == "HELD":
            # Rolled back alone, for the record could not be written: it is asked for once more.
            model.rollback(version.generation)
        time.sleep(0.02)
    raise AssertionError(f"{model.routes.status()}, {model.routes.served and model.chain(max(model.routes.served))}")


def go_on(model, root):
    """The next delta: another one, small, on whatever is served."""
    here = model.pick().generation
    step = model._log_appliers[here.version].change_log.history.top + 1
    changes = {"removed": [20], "tag": step, "parent": here.step, "version": here.version}
    model.apply_bytes(delta_bytes(step, [5, 6, 901], **changes))


def own(model):
    """The replicas that read what is served: of this process alone."""
    return [model.pick().replicas]


def assert_as_a_fresh_server(model, root, replicas=own):
    """replicas: returns those that answer, of a model."""
    version, fresh = model.pick(), open_model(root, UNDO_DEPTH).pick()
    assert (version.generation, version.digest) == (fresh.generation, fresh.digest)
    (tables, dense), (other_tables, other_dense) = version.export(), fresh.export()
    for name, (keys, rows) in tables.items():
        np.testing.assert_array_equal(keys, other_tables[name][0])
        np.testing.assert_array_equal(rows, other_tables[name][1])
        assert version.tables[name].rows == len(keys)
    for name, weights in dense.items():
        np.testing.assert_array_equal(weights, other_dense[name])
    wanted = scores(fresh, ASKED)
    for replica in replicas(model):
        got = scores_of(replica, ASKED)
        np.testing.assert_allclose(got[0], wanted[0], atol=1e-6)
        assert got[1] == wanted[1]
    locks = [model._lock, version.lock]
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(lock.acquire(blocking=False) for lock in locks))
    thread.start()
    thread.join()
    assert taken == [True, True]


def suffer(start, folder, change, injector, begin=begin, replicas=own):
    """One point: the change under a shortage, then the next one without; whether the shortage was met."""
    model, root = begin(start, folder)
    act = change(model, root)
    failed = None
    gc.disable()
    try:
        with injector:
            act()
    except Exception as error:
        failed = error
    finally:
        gc.enable()
    come_to_rest(model, 2 if change is switching else 1)
    go_on(model, root)
    assert_as_a_fresh_server(model, root, replicas)
    return failed


def every(start, folder, change, injector_of, stride, begin=begin, replicas=own):
    """Every `stride`th point until the change succeeds without having met the shortage; returns how many met it.
    begin, replicas: of the layout."""
    logging.disable(logging.CRITICAL)
    points = 0
    try:
        while True:
            injector = injector_of(points * stride)
            suffer(start, folder, change, injector, begin, replicas)
            if not injector.fired:
                return points
            points += 1
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("change", CHANGES)
def test_failed_change_leaves_nothing_behind(start, tmp_path, change):
    """Each point with the next kind of shortage."""
    kinds = itertools.cycle(KINDS)
    stride = STRIDES.get(change.__name__, 7)
    assert every(start, tmp_path, change, lambda number: Calls(number, *next(kinds)), stride) > 8


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("error", "count"), KINDS)
def test_change_failing_at_any_call_leaves_nothing_behind(start, tmp_path, change, error, count):
    assert every(start, tmp_path, change, lambda number: Calls(number, error, count), 1) > 20


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.skipif(not Objects.available, reason="this build of Python has no _testcapi")
@pytest.mark.parametrize("change", [applying, following, rolling_back])
@pytest.mark.parametrize("count", [1, 60])
def test_failed_object_creation_leaves_nothing_behind(start, tmp_path, change, count):
    """The interpreter does not say whether it has failed a request, so the end is many successes in a row."""
    ends = Counter()
    number, quiet = 1, 0
    while quiet < 8:
        end = apart(lambda number=number: suffer(start, tmp_path, change, Objects(number, count)))
        ends[end] += 1
        quiet = quiet + 1 if end == "succeeded" else 0
        number += 251
    assert ends["wrong"] == 0
    assert ends["failed"] > ends["crashed"]


def apart(act):
    """How a point ends in a process of its own, as libraries in C, and Python itself, may crash or hang where objects
    cannot be made: "succeeded", "failed" (the change did, and left nothing behind), "wrong" or "crashed"."""
    pid = os.fork()
    if not pid:
        # What counts lines may have held a lock in a thread that is not here; it also has an end of its own in os.
        sys.settrace(None)
        code = WRONG
        try:
            logging.disable(logging.CRITICAL)
            code = FAILED if act() is not None else 0
        except BaseException:
            traceback.print_exc()
        finally:
            posix._exit(code)
    child = os.pidfd_open(pid)
    if not select.select([child], [], [], GIVE_UP_S)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(child)
    _, status = os.waitpid(pid, 0)
    return {0: "succeeded", FAILED: "failed", WRONG: "wrong"}.get(os.waitstatus_to_exitcode(status), "crashed")


moves = st.lists(
    st.tuples(st.sampled_from(["apply", "apply", "rollback"]), st.integers(0, 90), st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=moves)
def test_any_mix_of_failing_changes_ends_like_a_fresh_server(start, tmp_path_factory, moves):
    model, root = begin(start, tmp_path_factory.mktemp("mix"))
    logging.disable(logging.CRITICAL)
    try:
        for move, first, length, fails in moves:
            here = model.pick().generation
            step = model._log_appliers[1].change_log.history.top + 1
            users = range(first, first + 40 * length)
            data = delta_bytes(step, users, tag=step, parent=here.step, dense_seed=step)
            injector = Calls(first, count=length) if fails else Calls(10**9)
            try:
                with injector:
                    if move == "apply":
                        model.apply_bytes(data)
                    else:
                        model.rollback(Generation(1, max(0, here.step - length)))
            except (MemoryError, OSError, FreshetError):
                pass
            come_to_rest(model)
        go_on(model, root)
        assert_as_a_fresh_server(model, root)
    finally:
        logging.disable(logging.NOTSET)


def test_refused_rows_are_not_served_by_the_next_delta(start, tmp_path, monkeypatch):
    model, root = begin(start, tmp_path)
    before, _ = scores(model.pick(), [60])
    plain = ServedVersion._prepare

    def short(self, change):
        raise MemoryError

    monkeypatch.setattr(ServedVersion, "_prepare", short)
    with pytest.raises(MemoryError):
        applying(model, root)()
    monkeypatch.setattr(ServedVersion, "_prepare", plain)
    go_on(model, root)
    after, generation = scores(model.pick(), [60])
    assert str(generation) == "1.5"
    assert after[0] == before[0]


def test_version_whose_undo_fails_is_reopened(start, tmp_path, monkeypatch):
    model, root = begin(start, tmp_path)
    version = model.pick()
    with monkeypatch.context() as patch:
        patch.setattr(ServedVersion, "_prepare", lambda *_: 1 / 0)
        patch.setattr(type(version.tables["user"]), "undo", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            applying(model, root)()
    assert version.torn
    with pytest.raises(FreshetError, match="no longer served"):
        version.apply(None)
    events = model.poll()
    assert any("no longer served: change: one failed and could not be undone" in line for line in events)
    assert model.damaged == {"change": 1}
    assert model.pick() is not version
    go_on(model, root)
    assert_as_a_fresh_server(model, root)


def test_failing_undo_of_one_table_is_completed_in_the_others(tmp_path, monkeypatch):
    version = open_version(write_package(tmp_path, users=range(20)))
    undone = []
    for name, table in version.tables.items():
        plain = table.undo

        def undo(*arguments, name=name, plain=plain):
            undone.append(name)
            if name == "user":
                raise MemoryError
            plain(*arguments)

        monkeypatch.setattr(table, "undo", undo)
    with pytest.raises(MemoryError):
        version._remove_staged(dict.fromkeys(version.tables, RowVersions()))
    assert undone == ["user", "tag"]


def test_remote_table_undoes_a_partly_staged_delta(monkeypatch):
    table = RemoteTable(TableEntry("t", 4, 0))
    rows = np.ones((3, 4), np.float32)
    table.apply(TableDelta(np.array([1, 2, 3]), rows, np.array([9])), 1)
    before, held = table.export(1), table._slots.used
    versions = RowVersions()

    def short(*_):
        raise MemoryError

    monkeypatch.setattr(row_kernels, "add_tombstones", short)
    with pytest.raises(MemoryError):
        table.apply(TableDelta(np.array([2, 5]), 2 * rows[:2], np.array([1])), 2, versions)
    table.undo(versions, 2)
    for got, wanted in zip(table.export(9), before):
        np.testing.assert_array_equal(got, wanted)
    assert table._slots.used == held
    assert not table.torn


def test_committed_record_keeps_its_delta_file(start, tmp_path, monkeypatch):
    model, root = begin(start, tmp_path)

    def short(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(History, "take", short)
        with pytest.raises(MemoryError):
            applying(model, root)()
    come_to_rest(model)
    assert str(model.pick().generation) == "1.5"
    go_on(model, root)
    assert_as_a_fresh_server(model, root)
