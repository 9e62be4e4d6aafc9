"""Places are those of the rows that the engine reads, for lists, one row for all, and rows beyond the device."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.processor.extensions.device_rows import slot_kernels
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package.delta import TableDelta
from tests.processor.extensions.device_rows.mirrored import Mirrored, served_table

ROWS = 40
LOOKED_UP, SCALED = [(0, 1), (1, 0), (1, 1)], [(2, 0), (3, 1), (3, 0)]
"""Features: input and column. Inputs 0 and 2 may have one row for all."""
NUMBERED = Mirrored(served_table(range(ROWS)))


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


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 150), st.booleans()), min_size=1, max_size=4),
    st.sampled_from([0.0, np.nan, np.inf]),
    st.integers(0, 2**32 - 1),
)
def test_rows_of_several_requests_are_those_of_each_place_and_number(requests, odd, seed):
    """What all rows share and what each has, first rows that are not 0, and more rows than are filled together."""
    random, mirrored = np.random.default_rng(seed), NUMBERED
    sources, inputs, spans, expected = [], [], [], []
    for first, rows, shared in requests:
        counts = [1 if shared else first + rows, first + rows] * 2
        ids = [random.integers(-1, ROWS + 1, (count, 2)) for count in counts[:2]]
        numbers = [random.normal(size=(count, 2)).astype(np.float32) for count in counts[2:]]
        numbers[1][-1, 0] = odd
        sources += [*ids, *numbers]
        inputs.append([[a.ctypes.data, len(a), 2, 0, pool.SENT] for a in (*ids, *numbers)])
        spans.append([first, rows])
        wide = [np.broadcast_to(a, (first + rows, 2))[first:] for a in (*ids, *numbers)]
        expected.append([np.stack([wide[n][:, c] for n, c in columns], 1) for columns in (LOOKED_UP, SCALED)])
    lookups = np.zeros((len(LOOKED_UP), slot_kernels.LOOKUP_FIELDS), np.int64)
    lookups[:, [slot_kernels.SOURCE, slot_kernels.COLUMN]] = LOOKED_UP
    lookups[:, slot_kernels.OFFSET], lookups[:, slot_kernels.PLACES] = range(len(LOOKED_UP)), 1
    floats = np.array([[source, column, 3 + n] for n, (source, column) in enumerate(SCALED)], np.int64)
    scaling = np.array([[n % 2, 0.5, 2.0, 1e30] for n in range(len(SCALED))], np.float32)
    lines = np.zeros((sum(rows for _, rows, _ in requests), 7), np.float32)
    counted = np.zeros((1, 2), np.int64)
    absent, non_finite = slot_kernels.fill(
        mirrored.descriptors, mirrored.mirror.devices, lookups, floats, scaling, np.array(inputs, np.int64),
        np.array(spans), 0, lines, counted,
    )  # fmt: skip
    keys, raw = (np.concatenate([parts[n] for parts in expected]) for n in range(2))
    start, default = (int(mirrored.mirror.devices[0, n]) for n in (slot_kernels.FIRST, slot_kernels.DEFAULT))
    places = np.where((keys >= 0) & (keys < ROWS), start + keys, default)
    np.testing.assert_array_equal(lines[:, :3].view(np.int32), places)
    host = np.zeros_like(lines)
    plan = np.zeros((len(SCALED), pool.PLAN_FIELDS), np.int64)
    plan[:, [pool.SOURCE, pool.COLUMN, pool.OFFSET]], plan[:, [pool.TABLE, pool.WIDTH]] = floats, (-1, 1)
    plan[:, pool.KIND] = pool.KIND_FLOAT
    flagged = pool.run(
        mirrored.descriptors, plan, scaling, np.array(inputs, np.int64), np.array(spans), 0, host, counted
    )
    np.testing.assert_array_equal(lines[:, 3:6], host[:, 3:6])
    assert (absent, non_finite) == (0, flagged)
    assert flagged == np.isinf(raw).any()
    assert not lines[:, 6].any(), "a column of others"


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
