import json

import pytest

pytest.importorskip("pyarrow", reason="reading needs the train extra")

from loadtest.bench.bench_data import COLUMNS, FIELDS, made, measure, read_alone, read_batches, write_tables
from models.data.formats import DataConfig
from models.data.open_data import open_source
from tests.models.data.sources import everything


def test_both_tables_hold_the_same_rows_and_both_sides_read_all_of_them(tmp_path):
    parquet, text = write_tables(tmp_path, 300)
    sides = [open_source(DataConfig(str(path), label="clicked"), FIELDS) for path in (parquet, text)]
    from_parquet, from_text = (list(map(everything, side.batches(64))) for side in sides)
    assert from_parquet == from_text
    assert read_batches(parquet) == read_batches(text) == read_alone(parquet) == 300
    assert made(5, 1).equals(made(5, 1))
    assert made(1, 0).column_names == COLUMNS


def test_a_measurement_is_a_document_of_ratios():
    found = measure(rows=200, rounds=2, text_rows=100)
    assert json.loads(json.dumps(found)) == found
    assert [ratio["name"] for ratio in found["ratios"]] == [
        "Parquet into batches / CSV", "Parquet into batches / pyarrow alone",
    ]  # fmt: skip
    assert all(rate > 0 for rate in found["rows_per_s"].values())
