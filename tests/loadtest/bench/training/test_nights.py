"""The nights of the campaign: a window of a stream, and what is done to it."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.shop_streams import ShopKind, ShopSource
from loadtest.bench.training.nights import FAULTS, NightRows, _zeroed, page, same

pytestmark = pytest.mark.tensorflow


def test_window_counts_its_rows_from_zero_and_ends():
    source = ShopSource(ShopKind("shop"))
    rows = NightRows(source, 1500, 700, same)
    batches = list(rows.batches(256, 100))
    assert rows.count_rows() == 700
    assert [batch.start for batch in batches] == [100, 356, 612]
    assert sum(map(len, batches)) == 600
    assert np.array_equal(batches[0].columns["user"], next(source.batches(256, 1600)).columns["user"])


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_changes_a_column_or_the_labels(fault):
    batch = next(ShopSource(ShopKind("shop")).batches(256))
    bad = FAULTS[fault](batch)
    differing = [name for name in batch.columns if not np.array_equal(batch.columns[name], bad.columns[name])]
    assert len(differing) + int(not np.array_equal(batch.label, bad.label)) == 1
    assert bad.label.dtype == np.float32


def test_largest_table_is_zeroed():
    seen = {}
    publish = _zeroed(lambda repository, draft, tables: seen.update(tables))
    publish(None, None, {"a": (np.arange(2), np.ones((2, 1))), "b": (np.arange(3), np.ones((3, 1)))})
    assert seen["a"][1].all()
    assert not seen["b"][1].any()


def test_page_counts_refusals_by_fault():
    made = {
        "machine": {"cores": 2, "cpu": "x"},
        "origin": {"date": "2026-01-01", "command": "make -C loadtest nights"},
        "streams": {"a shop": [{"": ""}, {"": "", "labels inverted": "it orders the rows"}]},
        "skipped": {"Criteo": "its rows are not there"},
    }
    text = page(made)
    assert "| good nights | 0 of 2 |  |" in text
    assert "| labels inverted | 1 of 1 | it orders the rows |" in text
    assert "Criteo was not tried: its rows are not there." in text
