"""`make bench-admission`: every setting is measured on rows of its own, told and drawn."""

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")
pytest.importorskip("matplotlib", reason="pictures need the loadtest extra")

from loadtest.bench import bench_admission
from loadtest.bench.bench_admission import KINDS, SparedTable, draw, page
from loadtest.bench.labelled_tables import TABLES

pytestmark = pytest.mark.tensorflow


def test_a_table_is_spared_in_every_way_and_the_page_tells_it(tmp_path, monkeypatch):
    for name, few in (("ADMITTED", (2,)), ("KEPT_SHARES", (0.2,)), ("NORMS", (0.5,)), ("HASHED_SHARES", (0.1,))):
        monkeypatch.setattr(bench_admission, name, few)
    monkeypatch.setattr(bench_admission, "SMALL", 20)
    table, results = SparedTable(TABLES["synthetic, 10,000 rows"], tmp_path, 600), []
    for what, amount, tables in table.settings():
        if what not in KINDS or what == "binary_code":
            results.append({"what": what, "amount": amount} | table.measure(tables, 0))
    assert [r["what"] for r in results] == ["all rows", "admission", "eviction, steps", "eviction, norm", "binary_code"]
    whole, *others = results
    assert all(r["rows"] < whole["rows"] and r["nbytes"] < whole["nbytes"] for r in others)
    assert all(r["default"] > whole["default"] for r in others[:3])
    assert others[3]["default"] < whole["default"]
    assert all(0 <= r["auc"] <= 1 for r in results)
    origin = {"command": "make bench-admission", "date": "today"}
    told = page({"machine": {"cores": 2}, "origin": origin, "tables": {"synthetic, 10,000 rows": results}})
    assert told.count("\n| ") == 1 + len(results)
    draw("synthetic", results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
