"""Columns that are only in folder names."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving import Dataset
from freshet_serving.models.data import tabular
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.source import Field
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import plain

DAYS = ("2026-01-01", "2026-01-02")


@pytest.fixture(params=["parquet", "csv"])
def days(request, tmp_path):
    for number, day in enumerate(DAYS):
        folder = tmp_path / f"dt={day}" / f"shop={number + 3}"
        folder.mkdir(parents=True)
        table = pa.table({"user": [number, number + 10], "click": [0, 1]})
        if request.param == "parquet":
            pq.write_table(table, folder / "part.parquet")
        else:
            rows = "".join(f"{user},{click}\n" for user, click in zip(*table.to_pydict().values()))
            (folder / "part.csv").write_text(f"user,click\n{rows}")
    return DataConfig(str(tmp_path), request.param, "click", time="dt")


def test_folder_is_a_column_of_the_kind_that_is_requested(days):
    source = tabular.open_table(days, [Field("user", "id"), Field("shop", "id"), Field("shop_name", "string")][:2])
    (batch,) = source.batches(10)
    assert {name: plain(column) for name, column in batch.columns.items()} == {
        "user": [0, 10, 1, 11],
        "shop": [3, 3, 4, 4],
    }
    assert (batch.time == [1767225600.0] * 2 + [1767312000.0] * 2).all()
    text = DataConfig(days.path, days.format, "click")
    (batch,) = tabular.open_table(text, [Field("dt", "string"), Field("shop", "string")]).batches(10, 1)
    assert plain(batch.columns["dt"]) == [b"2026-01-01", b"2026-01-02", b"2026-01-02"]
    assert plain(batch.columns["shop"]) == [b"3", b"4", b"4"]


def test_columns_of_folders_are_inferred(days):
    kinds = {f.name: f.kind for f in Dataset(days.path, format=days.format, label="click").schema.fields}
    assert kinds == {"user": "id", "dt": "string", "shop": "id"}


def test_encoded_and_missing_values_are_read_as_hive_means_them(tmp_path):
    for value in ("a%2Fb", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / f"city={value}"
        folder.mkdir()
        pq.write_table(pa.table({"click": [1]}), folder / "part.parquet")
    (batch,) = tabular.open_table(DataConfig(str(tmp_path), "parquet", "click"), [Field("city", "string")]).batches(9)
    assert plain(batch.columns["city"]) == [b"", b"a/b"]


def test_file_without_the_folder_is_refused_by_name(days, tmp_path):
    (tmp_path / f"z.{days.format}").write_bytes(
        (tmp_path / "dt=2026-01-01" / "shop=3").glob("*").__next__().read_bytes()
    )
    with pytest.raises(BadInput, match=r"column 'shop': expected exactly one in z\.\w+, got 0"):
        list(tabular.open_table(DataConfig(days.path, days.format, "click"), [Field("shop", "id")]).batches(9))


def test_id_of_a_folder_has_64_bits(tmp_path):
    folder = tmp_path / "shop=9223372036854775813"
    folder.mkdir()
    pq.write_table(pa.table({"click": [1]}), folder / "part.parquet")
    (batch,) = tabular.open_table(DataConfig(str(tmp_path), "parquet", "click"), [Field("shop", "id")]).batches(9)
    assert plain(batch.columns["shop"]) == [5 - 2**63]


def test_value_of_another_type_is_refused_by_folder(tmp_path):
    for value in ("3", "x"):
        (tmp_path / f"shop={value}").mkdir()
        pq.write_table(pa.table({"click": [1]}), tmp_path / f"shop={value}" / "part.parquet")
    with pytest.raises(BadInput, match=r"shop"):
        list(tabular.open_table(DataConfig(str(tmp_path), "parquet", "click"), [Field("shop", "id")]).batches(9))
