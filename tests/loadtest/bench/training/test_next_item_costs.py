"""The page of what counts cost: both sides, their ratio, and a row's numbers."""

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training.next_item_costs import SIDES, page


def test_page_has_both_sides_and_their_ratio():
    time = {"name": "scan", "a_ns": 3e6, "b_ns": 2e6, "median": 1.5, "low": 1.4, "high": 1.6}
    sizes = [{"numbers": 136, "table": 5440, "delta": 600}, {"numbers": 50, "table": 2000, "delta": 300}]
    about = {"machine": {"cores": 2, "cpu": "c"}, "origin": {"date": "2026-01-01", "command": "make"}}
    shown = page(about | {"times": {"scan": time}, "bytes": dict(zip(SIDES, sizes))})
    assert "| scan | 3.00 | 2.00 | 1.50 (1.40 to 1.60) |" in shown
    assert "| numbers of a row | 136 | 50 | 2.72 |" in shown
    assert "| table, bytes | 5,440 | 2,000 | 2.72 |" in shown
