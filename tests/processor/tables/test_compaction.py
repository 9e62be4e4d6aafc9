"""A chain folded into a snapshot: the same bits as the deltas lead to, whatever comes before, after, or in between."""

import os
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import Conflict, NotReady
from freshet_serving.processor.repository import DENSE, Repository, VersionWriter, table_file
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents, open_snapshot
from freshet_serving.processor.tables.compaction import compact
from freshet_serving.processor.tables.table import packed
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.support.packages import make_delta, make_weights, manifest, rows_of, tag_id, write_package

PLAN = [([1, 2, 30], [5], None), ([5, 2], [30, 7], 3), ([7], [1, 99], None), ([], [2], 5)]


def chained(repository, dtype="float32", plan=PLAN):
    """A version with a chain of deltas -> (its reader, its ledger, a ServedVersion that took every delta)."""
    write_package(repository, users=range(20), dtype=dtype)
    version = Repository(repository).version("small", 1)
    change_log, served = ChangeLog.of(version), ServedVersion(version, 9, SystemClock())
    for users, removed, dense_seed in plan:
        extend(change_log, served, users, removed, dense_seed)
    return version, change_log, served


def extend(change_log, served, users, removed=(), dense_seed=None):
    step, parent = change_log.history.top + 1, change_log.history.head.step
    delta = make_delta(step, users, removed, tags=["a", "new"], parent=parent, dense_seed=dense_seed)
    served.apply(delta, change_log.publish(delta).digest)


def held(served):
    tables, dense = served.export()
    parts = {f"{name}/{part}": a.tobytes() for name, pair in tables.items() for part, a in zip(("keys", "rows"), pair)}
    return parts | {name: a.tobytes() for name, a in dense.items()}


def started(version):
    """A version as a server that starts now has it: from the newest snapshot on."""
    change_log = ChangeLog.of(version)
    record = change_log.history.snapshot()
    served = ServedVersion(version if record is None else open_snapshot(version, record), 9, SystemClock())
    for link in change_log.history.line():
        if link.step > served.position.step:
            served.apply(change_log.read_delta(link), link.digest)
    return served


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_start_from_a_snapshot_equals_applying_the_deltas(tmp_path, dtype):
    version, change_log, served = chained(tmp_path, dtype)
    told = []

    link = compact(version, change_log, lambda done, whole: told.append((done, whole)))

    assert (link.step, told) == (4, [(1, 3), (2, 3), (3, 3)])
    again = started(version)
    assert again.files.snapshot.step == 4
    assert held(again) == held(served)
    assert (again.generation, again.digest) == (served.generation, served.digest)
    extend(change_log, served, [3, 40], [4], 9)
    assert held(started(version)) == held(served)


def test_second_snapshot_equals_the_deltas_and_allows_earlier_rollback(tmp_path):
    version, change_log, served = chained(tmp_path, "int8")
    compact(version, change_log)
    extend(change_log, served, [3, 40], [4], 9)
    assert compact(version, change_log).step == 5
    assert held(started(version)) == held(served)

    served.rollback(2)
    change_log.rollback(2)

    assert held(started(version)) == held(served)
    extend(change_log, served, [6], [8])
    assert compact(version, change_log).step == 6
    assert held(started(version)) == held(served)


def test_nothing_is_written_when_there_is_nothing_to_fold(tmp_path):
    version, change_log, served = chained(tmp_path, plan=[])
    assert compact(version, change_log) is None
    extend(change_log, served, [1])
    assert compact(version, change_log) is not None
    assert compact(version, change_log) is None
    assert len(list((version.folder / "snapshots").iterdir())) == 1


def test_compaction_folds_only_served_deltas_and_not_held_ones(tmp_path):
    version, change_log, served = chained(tmp_path, plan=PLAN[:2])
    change_log.hold("for a look")
    before = held(served)
    extend(change_log, served, [11])

    assert compact(version, change_log).step == 2

    assert held(started(version)) == before


def test_existing_key_keeps_its_frequency_and_new_ones_have_one(tmp_path):
    keys, tags = np.arange(10, dtype=np.int64), np.array([tag_id("a")], np.int64)
    with VersionWriter(tmp_path, "small", 1) as writer:
        writer.tensors(table_file("user"), packed(keys, rows_of(keys, 0), "int8", (keys * 7).astype(np.uint32)))
        writer.tensors(table_file("tag"), packed(tags, rows_of(tags, 0), "int8"))
        writer.tensors(DENSE, make_weights(0))
        drafted = manifest(1, 10, 1, "small", "int8")
        drafted.executables.clear()
        writer.commit(drafted)
    version = Repository(tmp_path).version("small", 1)
    change_log = ChangeLog.of(version)
    change_log.publish(make_delta(1, [3, 50, 40], [7]))
    compact(version, change_log)
    snapshot = open_snapshot(version, change_log.history.snapshot())
    arrays = snapshot.tensors(table_file("user"))
    met = dict(zip(arrays["keys"].tolist(), arrays["frequencies"].tolist(), strict=True))
    assert met == {key: key * 7 for key in range(10) if key != 7} | {50: 1, 40: 1}
    assert "frequencies" not in snapshot.tensors(table_file("tag"))


class Killed(BaseException):
    """Stands for kill -9: nothing that catches Exception may catch it."""


def test_compaction_killed_before_any_write_can_be_repeated(tmp_path, monkeypatch):
    version, change_log, served = chained(tmp_path / "whole", "int8", PLAN)
    wanted, moments, real = held(served), [], os.fsync
    disks = tmp_path / "disks"

    def before(fd):
        shutil.copytree(tmp_path / "whole", disks / str(len(moments)))
        moments.append(fd)
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", before)
        compact(version, change_log)
    assert len(moments) > 8

    for n in range(len(moments)):
        left = Repository(disks / str(n)).version("small", 1)
        assert held(started(left)) == wanted
        again = ChangeLog.of(left)
        compact(left, again)
        assert again.history.snapshot().step == 4
        assert held(started(left)) == wanted


def test_generation_rolled_back_during_compaction_leaves_no_snapshot(tmp_path):
    version, change_log, _ = chained(tmp_path)
    with pytest.raises(Conflict, match="not on the current line"):
        compact(version, change_log, lambda done, whole: ChangeLog.of(version).rollback(2) if done == 1 else None)
    assert list((version.folder / "snapshots").iterdir()) == []
    assert compact(version, change_log).step == 2


def test_full_disk_is_reported_in_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    version, change_log, served = chained(tmp_path)

    def full(fd):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NotReady, match="No space left"):
            compact(version, change_log)
    assert list((version.folder / "snapshots").iterdir()) == []
    assert held(started(version)) == held(served)


KEYS = st.lists(st.integers(0, 25), unique=True, max_size=6)
STEPS = st.lists(st.one_of(st.tuples(KEYS, KEYS), st.just("fold"), st.integers(0, 5)), min_size=2, max_size=10)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, dtype=st.sampled_from(["float32", "int8"]))
def test_start_equals_the_deltas_after_any_mix_of_changes(tmp_path_factory, steps, dtype):
    version, change_log, _ = chained(tmp_path_factory.mktemp("any"), dtype, plan=[])
    whole = {0: held(started(version))}
    for step in steps:
        if step == "fold":
            compact(version, change_log)
        elif isinstance(step, int):
            line = list(change_log.history.back(change_log.history.head))
            change_log.rollback(line[min(step, len(line) - 1)].step)
        else:
            users, removed = step
            number, parent = change_log.history.top + 1, change_log.history.head.step
            removed = [key for key in removed if key not in users]
            change_log.publish(make_delta(number, users, removed, tags=["b"], parent=parent))
            whole[number] = held(replayed(version, change_log))
        assert held(started(version)) == whole[change_log.history.head.step]
        contents = VersionContents(version, change_log, change_log.history.head)
        assert contents.table("user")[1].tobytes() == whole[change_log.history.head.step]["user/rows"]


def replayed(version, change_log):
    """The version as published, and every delta of the line."""
    served = ServedVersion(version, 9, SystemClock())
    for link in change_log.history.line():
        if link.record is not None:
            served.apply(change_log.read_delta(link), link.digest)
    return served
