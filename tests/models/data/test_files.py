"""Cells of CSV files, and lists that are text."""

import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.data.files import CsvFile
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.source import Field
from freshet_serving.models.data.tabular import open_table, unsigned_columns
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import plain


def read_csv_ids(tmp_path: Path, cells: list[str]) -> list[int]:
    (tmp_path / "c.csv").write_text("user,click\n" + "".join(f"{cell},1\n" for cell in cells))
    (batch,) = open_table(DataConfig(str(tmp_path / "c.csv"), "csv", "click"), [Field("user", "id")]).batches(10)
    return batch.columns["user"].tolist()


def test_csv_ids_are_decimal_and_of_64_bits(tmp_path):
    assert read_csv_ids(tmp_path, ["5", " 7", "9223372036854775808", "18446744073709551615"]) == [5, 7, -(2**63), -1]
    assert read_csv_ids(tmp_path, ["5.0", "-3"]) == [5, -3]


@pytest.mark.parametrize("cell", ["0x1f", "0X1F", "abc", "1.5"])
def test_csv_id_that_is_no_decimal_integer_is_refused(tmp_path, cell):
    with pytest.raises(BadInput, match=rf"column 'user': expected an .*got '?{cell}'? at row 1 of c.csv"):
        read_csv_ids(tmp_path, ["5", cell])


def test_lists_as_text_are_split_at_the_given_separator(tmp_path):
    pq.write_table(
        pa.table({"seen": ["1 2", "", None], "words": ["a b", None, "c"], "click": [0, 1, 0]}), tmp_path / "c.parquet"
    )
    (tmp_path / "c.csv").write_text("seen,words,click\n1 2,a b,0\n,,1\n,c,0\n")
    fields = [Field("seen", "ids"), Field("words", "strings")]
    for form in ("parquet", "csv"):
        (batch,) = open_table(
            DataConfig(str(tmp_path / f"c.{form}"), form, "click", list_separator=" "), fields
        ).batches(9)
        assert plain(batch.columns["seen"]) == [[1, 2], [], []]
        assert plain(batch.columns["words"]) == [[b"a", b"b"], [], [b"c"]]


def test_utf16_is_named(tmp_path):
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / "c.csv").write_text("user,click\n1,0\n", encoding=encoding)
        with pytest.raises(
            BadInput, match=r"^c.csv: expected UTF-8 text, got UTF-16; convert it: iconv -f UTF-16 -t UTF-8$"
        ):
            CsvFile(tmp_path / "c.csv")


def test_unsigned_ids_are_told_by_type_or_first_rows(tmp_path):
    (tmp_path / "c.csv").write_text("a,b,c,d\n18446744073709551615,-1,1.5,x\n5,18446744073709551615,2,y\n")
    assert unsigned_columns(DataConfig(str(tmp_path / "c.csv"), "csv", "d")) == {"a"}
    big, small = [decimal.Decimal(n) for n in (2**63, 1)], [decimal.Decimal(n) for n in (2**62, 1)]
    table = pa.table({"a": pa.array([1], pa.uint64()).take([0, 0]), "b": big, "c": small, "d": [1, 2]})
    pq.write_table(table, tmp_path / "c.parquet")
    assert unsigned_columns(DataConfig(str(tmp_path / "c.parquet"), "parquet", "d")) == {"a", "b"}
    assert unsigned_columns(DataConfig(str(tmp_path / "none.csv"), "csv", "d")) == frozenset()
