"""What is sent of a row: places where they are fewer than the columns that the rows make, the rest by the host."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.device_rows import slot_kernels
from freshet_serving.processor.extensions.device_rows.slot_layout import HostColumns, PoolKey, slot_layout
from freshet_serving.processor.features.plan import Pooling
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package.manifest_entries import TableEntry

TABLES = [TableEntry("a", 8, 10), TableEntry("b", 8, 10), TableEntry("c", 4, 10, "int8"), TableEntry("d", 8, 10)]
SUM, MEAN, ROOT, NONE = 0, 1, 2, 3


def pooling(*features):
    """Features side by side: (kind, table, combiner, max_length, width, codes)."""
    plan, at = np.zeros((len(features), pool.PLAN_FIELDS), np.int64), 0
    for row, (kind, table, combiner, most, width, codes) in enumerate(features):
        plan[row, [pool.KIND, pool.SOURCE, pool.TABLE, pool.COMBINER]] = kind, row, table, combiner
        plan[row, [pool.MAX_LENGTH, pool.OFFSET, pool.WIDTH, pool.CODES]] = most, at, width, codes
        at += width
    return Pooling(plan, np.zeros((len(features), pool.SCALING_FIELDS), np.float32)), at


ONE, MANY, FLOAT = pool.KIND_ONE, pool.KIND_MANY, pool.KIND_FLOAT


def test_pools_are_side_by_side_and_host_columns_follow():
    given, width = pooling(
        (ONE, 0, SUM, 0, 8, 1), (FLOAT, -1, SUM, 0, 1, 1), (FLOAT, -1, SUM, 0, 1, 1), (ONE, 2, SUM, 0, 4, 1),
        (MANY, 1, MEAN, 3, 8, 1), (FLOAT, -1, SUM, 0, 1, 1),
    )  # fmt: skip
    layout = slot_layout(given, width, TABLES, [10, 10, 10, 10])
    assert list(layout.pools) == [PoolKey("float32", 8), PoolKey("int8", 4)]
    assert [layout.span(key) for key in layout.pools] == [(0, 4), (4, 1)]
    assert layout.columns == [HostColumns(8, 2, 5), HostColumns(22, 1, 7)]
    assert (layout.line, layout.width) == (8, 23)
    assert layout.floats[:, slot_kernels.FLOAT_OFFSET].tolist() == [5, 6, 7]
    assert layout.host is None
    assert layout.lookups[:, slot_kernels.OFFSET].tolist() == [0, 1, 4]
    assert layout.lookups[:, slot_kernels.PLACES].tolist() == [1, 3, 1]
    assert [f.power for f in layout.pools[PoolKey("float32", 8)]] == [0, 1]


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        ((MANY, 0, SUM, 9, 8, 1), "more places than columns"),
        ((MANY, 0, SUM, 0, 8, 1), "a list without a bound"),
        ((MANY, 0, SUM, 4, 8, 2), "values of two codes"),
        ((ONE, 3, SUM, 0, 8, 1), "a table of the host"),
    ],
)
def test_features_that_the_host_fills(feature, reason):
    given, width = pooling(feature, (ONE, 0, SUM, 0, 8, 1))
    layout = slot_layout(given, width, TABLES, [10, 10, 10, 0])
    assert [f.row for fs in layout.pools.values() for f in fs] == [1], reason
    assert len(layout.host.plan) == 1


def test_nothing_on_the_device_has_no_layout():
    given, width = pooling((ONE, 0, SUM, 0, 8, 1))
    assert slot_layout(given, width, TABLES, [0, 0, 0, 0]) is None


def test_columns_at_the_end_are_left_to_others():
    given, width = pooling((MANY, 0, NONE, 5, 45, 1))
    layout = slot_layout(given, width + 5, TABLES, [10, 10, 10, 10])
    (feature,) = layout.pools[PoolKey("float32", 8)]
    assert (feature.masked, feature.places) == (True, 5)
    assert layout.rest == HostColumns(45, 5, 5)
    assert layout.line == 10
    assert layout.host is None
