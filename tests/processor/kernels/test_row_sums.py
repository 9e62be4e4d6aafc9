"""Rows added up a tile at a time give what adding them one by one gives, to the bit, for every type and width."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.kernels.row_sums import SCALE, add_rows
from freshet_serving.processor.package.tensors import ROW_TYPES
from freshet_serving.processor.tables.quantise import dequantise, quantise

STRIDE = 48


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(sorted(ROW_TYPES)),
    width=st.integers(1, 200),
    rows=st.integers(1, 40),
    count=st.integers(0, 45),
    more=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_added_in_list_order_to_the_existing_sum(dtype, width, rows, count, more, seed):
    count = count if more else max(1, count)
    random = np.random.default_rng(seed)
    stored = quantise(
        (random.standard_normal((rows, width)) * 10.0 ** random.integers(-4, 5)).astype(np.float32), dtype
    )
    began = random.standard_normal(width + 2).astype(np.float32)
    target, listed = began.copy(), random.integers(0, rows, count)
    scales = np.ascontiguousarray(stored.scales, np.float32)
    told = np.zeros((count, STRIDE // 8), np.int64)
    told[:, 0] = stored.rows.ctypes.data + listed * stored.rows.strides[0]
    if ROW_TYPES[dtype].scaled:
        told[:, SCALE // 8] = scales.ctypes.data + 4 * listed

    add_rows(ROW_TYPES[dtype].code, target[1:].ctypes.data, told.ctypes.data, STRIDE, count, width, int(more))

    added = dequantise(stored, dtype)[listed]
    wanted = began[1:-1].copy() if more else added[0].copy()
    for row in added if more else added[1:]:
        wanted += row
    assert target[1:-1].tobytes() == wanted.tobytes()
    assert target[[0, -1]].tobytes() == began[[0, -1]].tobytes()


@pytest.mark.parametrize("width", [1, 7, 8, 63, 64, 65, 128])
def test_empty_row_list_leaves_the_sum_unchanged(width):
    target = np.arange(width, dtype=np.float32)
    add_rows(0, target.ctypes.data, 0, STRIDE, 0, width, 1)
    np.testing.assert_array_equal(target, np.arange(width))
