"""`make -C loadtest admission`: every setting is measured on rows of its own, told and drawn."""

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")
pytest.importorskip("matplotlib", reason="pictures need the loadtest extra")

from loadtest.bench import bench_admission
from loadtest.bench.bench_admission import KINDS, SparedTable, draw, page, summary
from loadtest.bench.labelled_tables import TABLES

pytestmark = pytest.mark.tensorflow
ABOUT = {"machine": {"cores": 2, "cpu": "a CPU"}, "origin": {"command": "make -C loadtest admission", "date": "today"}}


def line(what, amount, nbytes, *aucs):
    runs = [{"rows": nbytes / 64, "nbytes": nbytes, "auc": auc, "default": 0.1, "collisions": 0.0} for auc in aucs]
    return summary(what, amount, runs)


@pytest.mark.long
def test_every_admission_setting_is_measured_and_reported(tmp_path, monkeypatch):
    for name, few in (("ADMITTED", (2,)), ("KEPT_SHARES", (0.2,)), ("NORMS", (0.5,)), ("HASHED_SHARES", (0.1,))):
        monkeypatch.setattr(bench_admission, name, few)
    monkeypatch.setattr(bench_admission, "SMALL", 20)
    monkeypatch.setattr(bench_admission, "WHOLE_RATE_SHARE", 0.1)
    table, results = SparedTable(TABLES["synthetic, 10,000 rows"], tmp_path, 600), []
    for what, amount, tables in table.settings():
        if what not in KINDS or what == "binary_code":
            results.append(summary(what, amount, [table.measure(tables, 0)]))
    whole, *others = results
    assert [r["what"] for r in results] == [
        "all rows", "admission", "admission, filter", "eviction, steps", "admission and eviction", "eviction, norm",
        "binary_code", "binary_code, whole rate",
    ]  # fmt: skip
    assert all(r["rows"] < whole["rows"] and r["nbytes"] < whole["nbytes"] for r in others)
    assert all(r["default"] > whole["default"] for r in others[:5])
    assert others[3]["rows"] < min(others[0]["rows"], others[2]["rows"])
    assert others[5]["default"] < whole["default"]
    assert others[5]["nbytes"] == others[6]["nbytes"]
    assert all(0 <= r["auc"] <= 1 for r in results)
    told = page(ABOUT | {"tables": {"synthetic, 10,000 rows": results}})
    assert all(f"\n| {r['what']} | {r['amount']} | {r['rows']:,.0f} (" in told for r in results)
    draw("synthetic", results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_differences_are_per_seed_and_the_smallest_cheap_table_named():
    results = [
        line("all rows", "", 6400, 0.8, 0.7),
        line("k_way", "50%", 3200, 0.801, 0.702),
        line("k_way", "20%", 1280, 0.799, 0.699),
        line("k_way", "10%", 640, 0.79, 0.69),
        line("binary_code", "50%", 3200, 0.79, 0.69),
    ]
    told = page(ABOUT | {"tables": {"a table": results}})
    assert "| k_way | 50% | 50 (50%) | 0.00 | 2.0 | 0.7515 | +0.0015 (+0.0010 to +0.0020) | 10.00% | 0.00% |" in told
    assert "| k_way | 20% | 5.0 |" in told
    assert "| binary_code | none |  |" in told
