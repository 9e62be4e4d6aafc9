"""Places are those of the rows that the engine reads, for lists, one row for all, and rows beyond the device."""

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.processor.extensions.device_rows import slot_kernels
from freshet_serving.processor.package.delta import TableDelta
from tests.processor.extensions.device_rows.mirrored import Mirrored, served_table

ROWS = 40


@pytest.fixture(params=["by number", "by key"])
def keys(request):
    return list(range(ROWS)) if request.param == "by number" else [7 * n - 100 for n in range(ROWS)]


def test_places_of_a_file_are_its_rows_in_order(keys):
    mirrored = Mirrored(served_table(keys))
    lines = mirrored.fill(keys, 0)
    first = int(mirrored.mirror.devices[0, slot_kernels.FIRST])
    assert lines.places[:, 0].tolist() == list(range(first, first + ROWS))


@pytest.mark.parametrize("placed", [ROWS, 10])
def test_lists_end_in_zeros_and_are_cut(keys, placed):
    mirrored = Mirrored(served_table(keys), placed)
    lists = [[], keys[:1], keys[10:12], keys[5:20], [10**9], keys[30:33]]
    lines = mirrored.fill(lists, 0, listed=True)
    rows = mirrored.read(lines)
    for row, line, own in zip(rows, lines.places, lists):
        own = own[: lines.places.shape[1]]
        assert not line[len(own) :].any()
        assert line[: len(own)].all(), "0 is no value's place"
        if own:
            np.testing.assert_array_equal(row[: len(own)], mirrored.rows_of(own, 0))


def test_more_keys_than_a_block_are_found(keys):
    mirrored = Mirrored(served_table(keys))
    asked = np.random.default_rng(0).choice([*keys, 10**6], 200).tolist()
    np.testing.assert_array_equal(mirrored.read(mirrored.fill(asked, 0))[:, 0], mirrored.rows_of(asked, 0))


def test_changed_finds_slots_that_are_newer_and_no_tombstones(keys):
    table = served_table(keys)
    into = np.zeros(10, np.int64)

    def changed(epoch):
        return slot_kernels.changed(np.array(table.descriptor()), len(table.arrays["meta"]), epoch, into)

    assert changed(-1) == 0
    table.apply(TableDelta(np.array(keys[:3]), np.ones((3, 4), np.float32), np.array(keys[5:7])), 1)
    table.apply(TableDelta(np.array(keys[:1]), np.ones((1, 4), np.float32), np.empty(0, np.int64)), 2)
    assert changed(0) == 4
    assert changed(1) == 1
    assert changed(2) == 0
    assert slot_kernels.changed(np.array(table.descriptor()), len(table.arrays["meta"]), 0, into[:2]) == 4
