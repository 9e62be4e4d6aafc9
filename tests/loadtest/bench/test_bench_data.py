import io
import json

import pytest

pytest.importorskip("pyarrow", reason="reading needs the train extra")

from rich.console import Console

from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from loadtest.bench import bench_data
from loadtest.bench.bench_data import (
    COLUMNS,
    FIELDS,
    WAYS,
    made,
    measure,
    page,
    read_alone,
    read_batches,
    write_tables,
)
from tests.models.data.sources import everything


def test_parquet_and_text_tables_are_read_completely_by_both_sides(tmp_path):
    parquet, text = write_tables(tmp_path, 300)
    sides = [open_source(DataConfig(str(path), label="clicked"), FIELDS) for path in (parquet, text)]
    from_parquet, from_text = (list(map(everything, side.batches(64))) for side in sides)
    assert from_parquet == from_text
    assert read_batches(parquet) == read_batches(text) == 300
    assert [read_alone(parquet, way, threads) for way in WAYS for threads in (1, 2)] == [300] * 2 * len(WAYS)
    assert made(5, 1).equals(made(5, 1))
    assert made(1, 0).column_names == COLUMNS


@pytest.mark.long
@pytest.mark.tensorflow
def test_measurement_document_is_shown_on_the_page(monkeypatch):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    monkeypatch.setattr(bench_data, "BATCH_ROWS", 64)
    monkeypatch.setattr(bench_data, "TRIES", 1)
    found = measure(rows=200, rounds=2, text_rows=100, console=Console(file=io.StringIO()))
    assert json.loads(json.dumps(found)) == found
    assert [ratio["name"] for ratio in found["ratios"]] == [
        "Parquet into batches / CSV", "Parquet into batches / pyarrow alone",
    ]  # fmt: skip
    assert all(found["best"][side] in ways and min(ways.values()) > 0 for side, ways in found["rows_per_s"].items())
    assert list(found["stages"]) == ["read", "transform", "look up", "step", "update"]
    ratio = dict.fromkeys(("median", "low", "high"), 0.5) | {"name": "a / b", "a_ns": 500.0, "b_ns": 1000.0}
    about = {"machine": {"cores": 2, "cpu": "a CPU"}, "origin": {"command": "make -C loadtest data", "date": "today"}}
    told = page(about | found | {"ratios": [ratio]})
    assert "| a / b | 2.00 | 2.00 to 2.00 | 2,000,000 | 1,000,000 |" in told
    assert told.count("**") == 2 * len(found["best"])
