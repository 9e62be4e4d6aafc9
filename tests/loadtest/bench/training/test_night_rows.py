"""Rows of nights: a window in memory, and what a broken pipeline makes of it."""

import numpy as np
import pytest

from loadtest.bench.shop_streams import ShopKind, ShopSource
from loadtest.bench.training.night_rows import ROW_FAULTS, NightRows, read_rows, twice

SHOP = ShopSource(ShopKind("shop"))
WINDOW = read_rows(SHOP, 1500, 700)


def test_rows_are_those_of_the_stream_counted_from_zero():
    assert (WINDOW.start, len(WINDOW)) == (0, 700)
    assert np.array_equal(WINDOW.columns["user"], next(SHOP.batches(700, 1500)).columns["user"])


def test_source_ends_with_its_rows():
    source = NightRows(SHOP.schema, WINDOW)
    batches = list(source.batches(256, 100))
    assert source.count_rows() == 700
    assert [batch.start for batch in batches] == [100, 356, 612]
    assert sum(map(len, batches)) == 600


@pytest.mark.parametrize("fault", ROW_FAULTS)
def test_fault_changes_a_column_the_labels_or_the_number_of_rows(fault):
    bad = ROW_FAULTS[fault](WINDOW)
    if len(bad) < len(WINDOW):
        assert len(bad) == 70
        return
    differing = [name for name in WINDOW.columns if not np.array_equal(WINDOW.columns[name], bad.columns[name])]
    assert len(differing) + int(not np.array_equal(WINDOW.label, bad.label)) == 1
    assert bad.label.dtype == np.float32


def test_newest_rows_are_there_twice_in_order_of_time():
    doubled = twice(WINDOW, 100)
    assert len(doubled) == 700
    assert (np.diff(doubled.time) >= 0).all()
    assert np.array_equal(doubled.time[-200:], np.repeat(WINDOW.time[-100:], 2))
