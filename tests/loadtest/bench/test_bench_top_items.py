"""The best items of small tables are measured, and the report says what."""

from loadtest.bench import bench_top_items
from loadtest.bench.bench_top_items import measure, page
from loadtest.reports.report import machine, origin


def test_report_has_each_way_and_size():
    about = {"machine": machine(), "origin": origin("-C loadtest top-items", "ARGS", [])}
    text = page(about | {"sizes": [measure(rows, 2) for rows in (200, 300)]})
    assert "| processor time, ms | 200 items | 300 items |" in text
    assert text.count("| scan, ") == 7
    assert "scan with a filter that 10 % pass / product with a ready copy and a mask" in text
    assert "scan / product with a ready copy" in text
    assert bench_top_items.ITEMS == 100
