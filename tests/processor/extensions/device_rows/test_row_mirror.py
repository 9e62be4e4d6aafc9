"""Rows on a device are the host's, at every epoch that a reader is pinned to, whatever changes meanwhile."""

import threading
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.processor.extensions.device_rows import row_mirror
from freshet_serving.processor.package.delta import TableDelta
from freshet_serving.processor.tables import table as table_module
from tests.processor.extensions.device_rows.mirrored import Mirrored, served_table

KEYS = range(30)
ROWS = 20
keys = st.lists(st.sampled_from(KEYS), unique=True, max_size=8)
steps = st.lists(
    st.tuples(st.sampled_from(["apply", "apply", "undo", "settle", "fill", "fill", "run"]), keys, keys), max_size=30
)


@pytest.fixture(autouse=True)
def small():
    """Few spare places, small updates, moves at every chance."""
    with ExitStack() as stack:
        for name, value in (("COPIED", (4, 16)), ("LEAST_SPARE", 10), ("SPARE", 10), ("TURN", 8), ("UPLOAD", 16)):
            stack.enter_context(mock.patch.object(row_mirror, name, value))
        stack.enter_context(mock.patch.object(table_module, "MIN_ARENA_SLOTS", 600))
        yield


@settings(max_examples=30, deadline=None)
@given(placed=st.sampled_from([ROWS, 6]), steps=steps, seed=st.integers(0, 100))
def test_lines_read_what_their_epoch_had_when_they_are_run_later(placed, steps, seed):
    live_through(Mirrored(served_table(range(ROWS)), placed), steps, seed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
@settings(max_examples=8, deadline=None)
@given(steps=steps, seed=st.integers(0, 100))
def test_rows_of_other_types_are_the_hosts(dtype, steps, seed):
    live_through(Mirrored(served_table(range(ROWS), 4, dtype), 8), steps, seed)


def live_through(mirrored, steps, seed):
    """Each filled line pins its epoch until it is run, as a batch does."""
    table, random = mirrored.table, np.random.default_rng(seed)
    epoch, newest, seq = 0, 0, 0
    undoable, waiting = [], []

    def oldest():
        return min([at for at, *_ in waiting], default=seq)

    def run():
        _, _, lines, expected = waiting.pop(0)
        np.testing.assert_array_equal(mirrored.read(lines)[:, 0], expected)

    for step, some, others in steps:
        if step == "apply" and len(some):
            newest += 1
            table.reclaim(oldest(), seq + 1, len(some))
            removed = [key for key in others if key not in some]
            rows = random.normal(size=(len(some), 4)).astype(np.float32)
            versions = table.apply(TableDelta(np.array(some), rows, np.array(removed, np.int64)), newest)
            undoable.append((epoch, versions))
            epoch, seq = newest, seq + 1
        elif step == "undo" and undoable:
            earlier, versions = undoable.pop()
            seq += 1
            while any(pinned >= epoch for _, pinned, *_ in waiting):
                run()
            table.undo(versions, seq + 1)
            epoch = earlier
        elif step == "settle":
            for _, versions in undoable:
                table.retire(versions, seq)
            undoable.clear()
            seq += 1
            table.reclaim(oldest(), seq + 1)
        elif step == "fill":
            asked = [*some, *random.choice(KEYS, 4)]
            waiting.append((seq, epoch, mirrored.fill(asked, epoch), mirrored.rows_of(asked, epoch)))
        elif step == "run" and waiting:
            run()
    while waiting:
        run()


def test_rows_move_to_the_device_when_they_are_read_often_and_back():
    mirrored = Mirrored(served_table(range(ROWS)), 6)
    for wanted in (range(10, 14), range(14, 18)):
        for _ in range(12):
            lines = mirrored.fill(wanted, 0)
            np.testing.assert_array_equal(mirrored.read(lines)[:, 0], mirrored.rows_of(wanted, 0))
        assert (lines.places > 0).all()
    assert mirrored.mirror.counts.moved_rows >= 8
    assert (mirrored.fill([0, 1], 0).places < 0).any(), "others had to go"


def test_rows_without_room_come_from_the_host():
    mirrored = Mirrored(served_table(range(ROWS)))
    spare = mirrored.mirror.pools[mirrored.key].size - mirrored.mirror.pools[mirrored.key].next
    some = np.arange(spare + 5)
    rows = np.random.default_rng(0).normal(size=(len(some), 4)).astype(np.float32)
    mirrored.table.apply(TableDelta(some, rows, np.empty(0, np.int64)), 1)
    lines = mirrored.fill(some, 1)
    assert (lines.places < 0).sum() == 5
    np.testing.assert_array_equal(mirrored.read(lines)[:, 0], rows)
    assert mirrored.mirror.counts.host_rows == 5
    assert mirrored.mirror.counts.changed_rows == spare


def test_rows_of_a_table_with_a_memory_budget_come_from_the_host():
    mirrored = Mirrored(served_table(range(ROWS), default=(1.0, 2.0, 3.0, 4.0)), budget=True)
    np.testing.assert_array_equal(mirrored.read(mirrored.fill([99, 1], 0))[:, 0], mirrored.rows_of([99, 1], 0))
    rows = np.ones((2, 4), np.float32)
    mirrored.table.apply(TableDelta(np.array([3, 5]), rows, np.empty(0, np.int64)), 1)
    for epoch in (0, 1):
        lines = mirrored.fill(range(ROWS), epoch)
        assert (lines.places < 0).all()
        np.testing.assert_array_equal(mirrored.read(lines)[:, 0], mirrored.rows_of(range(ROWS), epoch))
    assert mirrored.mirror.counts.changed_rows == 0


@pytest.mark.parametrize("default", [(), (1.0, 2.0, 3.0, 4.0)])
def test_unknown_keys_read_the_default_row_or_that_of_the_unknown_key(default):
    table = served_table(range(ROWS), default=default, unknown_key=-7)
    mirrored = Mirrored(table)
    np.testing.assert_array_equal(mirrored.read(mirrored.fill([99, 1], 0))[:, 0], mirrored.rows_of([99, 1], 0))
    rows = np.full((1, 4), 9, np.float32)
    table.apply(TableDelta(np.array([-7]), rows, np.empty(0, np.int64)), 1)
    np.testing.assert_array_equal(mirrored.read(mirrored.fill([99, 1], 1))[0, 0], rows[0])
    np.testing.assert_array_equal(mirrored.read(mirrored.fill([99, 1], 0))[0, 0], mirrored.rows_of([99], 0)[0])


def test_only_changed_rows_are_sent():
    mirrored = Mirrored(served_table(range(ROWS)))
    for epoch in range(1, 4):
        rows = np.full((2, 4), epoch, np.float32)
        mirrored.table.apply(TableDelta(np.array([3, 5]), rows, np.empty(0, np.int64)), epoch)
        mirrored.fill([3], epoch)
        mirrored.fill([3], epoch - 1)
    counts = mirrored.mirror.counts
    assert counts.changed_rows == 6
    assert counts.changed_nbytes == 3 * 4 * (4 + 16), "updates of four rows, each a place and four numbers"


def test_changes_wait_for_runs_and_runs_for_changes():
    mirrored = Mirrored(served_table(range(ROWS)))
    mirrored.table.apply(TableDelta(np.array([3]), np.ones((1, 4), np.float32), np.empty(0, np.int64)), 1)
    changed = threading.Thread(target=mirrored.mirror.catch_up, args=(mirrored.descriptors, 1))
    with mirrored.mirror.reading(), mirrored.mirror.reading():
        changed.start()
        changed.join(0.05)
        assert changed.is_alive()
    changed.join(10)
    assert mirrored.mirror.counts.changed_rows == 1
