"""A version's contents as of a generation, against the tables that a server keeps."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents, narrowed, stored
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.tables.quantise import dequantise, quantise
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.support.packages import make_delta, make_weights, write_package

FLOATS = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@given(rows=st.lists(st.lists(FLOATS, min_size=5, max_size=5), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_rows_are_rounded_to_the_bits_that_serving_stores(dtype, rows):
    rows = np.array(rows, np.float32)
    wanted = quantise(rows, dtype)
    got, scales = narrowed(rows, dtype)
    assert got.dtype == wanted.rows.dtype
    assert got.tobytes() == wanted.rows.tobytes()
    assert scales.tobytes() == wanted.scales.tobytes()
    assert stored(rows, dtype).tobytes() == dequantise(wanted, dtype).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_contents_equal_what_a_server_has_at_every_generation(tmp_path, dtype):
    folder = write_package(tmp_path, users=range(20), dtype=dtype)
    version = Repository(tmp_path).version("small", 1)
    change_log, served = ChangeLog.of(version), ServedVersion(version, 9, SystemClock())
    plan = [([1, 2, 30], [5], None), ([5, 2], [30, 7], 3), ([7], [1, 99], None), ([], [2], 5)]
    for step, (users, removed, dense_seed) in enumerate(plan, start=1):
        delta = make_delta(step, users, removed, tags=["a", "new"], dense_seed=dense_seed)
        change_log.publish(delta)
        served.apply(delta)
    assert folder == version.folder

    for link in reversed(change_log.history.line()):
        if link.step != served.position.step:
            served.rollback(link.step)
        contents = VersionContents(version, change_log, link)
        tables, dense = served.export()
        for name, (keys, rows) in tables.items():
            got_keys, got_rows = contents.table(name)
            assert got_keys.tolist() == keys.tolist(), (link.step, name)
            assert got_rows.tobytes() == rows.tobytes(), (link.step, name)
            asked = np.array([*keys[:4], 10**9], np.int64)
            there, found = contents.rows(name, asked)
            assert there.tolist() == [True] * (len(asked) - 1) + [False]
            assert found[:-1].tobytes() == rows[:4].tobytes()
        assert {n: a.tobytes() for n, a in contents.dense.items()} == {n: a.tobytes() for n, a in dense.items()}
    assert set(contents.dense) == set(make_weights(0))


def test_change_log_may_exceed_the_open_file_limit(tmp_path):
    write_package(tmp_path, users=range(20))
    version = Repository(tmp_path).version("small", 1)
    change_log = ChangeLog.of(version)
    opened = len(os.listdir("/proc/self/fd"))
    count = 40
    for step in range(1, count + 1):
        change_log.publish(make_delta(step, [step % 20], dense_seed=step))
    contents = VersionContents(version, change_log, change_log.history.head)
    assert len(os.listdir("/proc/self/fd")) - opened < count // 2
    assert len(contents.changes["user"].keys) == 20
