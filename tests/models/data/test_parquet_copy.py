"""A copy trains to the very same batches as what it was made of."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import default_features, open_source
from freshet_serving.models.data.parquet_copy import copy_to_parquet
from freshet_serving.models.data.source import Field
from freshet_serving.models.data.synthetic import SyntheticSource
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import everything, plain, real_data


class Told:
    def __init__(self):
        self.total, self.done = None, 0

    def begin(self, what, total):
        self.total = total

    def advance(self, done):
        self.done += done

    def note(self, text):
        pass


def check_copy(folder, data, fields, text=True):
    source, told = open_source(data, fields), Told()
    rows = copy_to_parquet(source, folder / "copy.parquet", told, text=text)
    schema = source.schema
    copied = open_source(
        DataConfig(str(folder / "copy.parquet"), "parquet", schema.label, schema.time, schema.weight), fields
    )

    assert rows == told.total == told.done == source.count_rows()
    assert list(map(everything, copied.batches(7))) == list(map(everything, source.batches(7)))
    for a, b in zip(copied.batches(5), source.batches(5)):
        assert (a.weight is None) == (b.weight is None)
        assert a.weight is None or a.weight.tolist() == b.weight.tolist()
    return pq.read_metadata(folder / "copy.parquet")


def test_text_with_lists_weights_and_several_labels_is_copied(tmp_path):
    lines = [
        f"{i},city {i % 3},a|b{'|ö' * (i % 2)},{i}|{-i},{i / 3},{i % 2},{i % 3 / 2},{i},{i * 1.5}" for i in range(40)
    ]
    (tmp_path / "x.csv").write_text("\n".join(["user,city,tags,seen,price,click,buy,w,ts", *lines]))
    kinds = {"user": "id", "city": "string", "tags": "strings", "seen": "ids", "price": "float", "ts": "seconds"}
    fields = [Field(name, kind) for name, kind in kinds.items()]
    metadata = check_copy(tmp_path, DataConfig(str(tmp_path / "x.csv"), "csv", ("click", "buy"), "ts", "w"), fields)

    assert metadata.num_row_groups == 1
    names = pq.read_schema(tmp_path / "copy.parquet").names
    assert names == ["user", "city", "tags", "seen", "price", "click", "buy", "w", "ts"]


def test_criteo_logs_with_missing_values_are_copied(tmp_path):
    line = "\t".join(["1", *["3", ""] * 6, "7", *["68fd1e64", ""] * 13])
    (tmp_path / "train.txt").write_text(f"{line}\n" * 9)
    data = DataConfig(str(tmp_path / "train.txt"), "criteo")
    fields = [Field(name, section["kind"]) for name, section in default_features("criteo", data.path).items()]
    check_copy(tmp_path, data, fields)


def test_movielens_is_copied_in_time_order(tmp_path):
    (tmp_path / "ratings.dat").write_text("".join(f"{i % 3}::{i % 2}::{i % 6}::{99 - i}\n" for i in range(20)))
    check_copy(
        tmp_path, DataConfig(str(tmp_path), "movielens"), [Field("user_id", "id"), Field("timestamp", "seconds")]
    )


def test_strings_that_are_not_utf8_are_copied_as_bytes(tmp_path):
    pq.write_table(pa.table({"s": pa.array([b"\xff\x00", b"ok", None]), "y": [0.0, 1.0, 0.0]}), tmp_path / "x.parquet")
    check_copy(tmp_path, DataConfig(str(tmp_path / "x.parquet"), "parquet", "y"), [Field("s", "string")], text=False)


def test_row_groups_are_limited_by_rows_or_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.models.data.parquet_copy.READ_ROWS", 100)
    monkeypatch.setattr("freshet_serving.models.data.parquet_copy.GROUP_ROWS", 250)
    copy_to_parquet(SyntheticSource(rows=1000), tmp_path / "a.parquet", Told())
    a = pq.read_metadata(tmp_path / "a.parquet")
    assert [a.row_group(i).num_rows for i in range(a.num_row_groups)] == [300, 300, 300, 100]
    monkeypatch.setattr("freshet_serving.models.data.parquet_copy.GROUP_NBYTES", 1)
    copy_to_parquet(SyntheticSource(rows=1000), tmp_path / "b.parquet", Told())
    b = pq.read_metadata(tmp_path / "b.parquet")
    assert [b.row_group(i).num_rows for i in range(b.num_row_groups)] == [100] * 10


def test_existing_file_is_replaced_only_with_overwrite(tmp_path):
    out = tmp_path / "a.parquet"
    out.write_bytes(b"mine")
    with pytest.raises(BadInput, match=r"a\.parquet already exists; --overwrite replaces it"):
        copy_to_parquet(SyntheticSource(rows=9), out, Told())
    assert out.read_bytes() == b"mine"
    copy_to_parquet(SyntheticSource(rows=9), out, Told(), overwrite=True)
    assert pq.read_metadata(out).num_rows == 9


def test_failing_source_leaves_nothing_behind(tmp_path):
    (tmp_path / "x.csv").write_text("user,click\n" + "1,0\n" * 100 + "x,0\n")
    source = open_source(DataConfig(str(tmp_path / "x.csv"), "csv", "click"), [Field("user", "id")])
    (tmp_path / "out").mkdir()
    with pytest.raises(BadInput, match="expected an integer, got 'x' at row 100"):
        copy_to_parquet(source, tmp_path / "out" / "a.parquet", Told())
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("a.csv", 9, r"expected a file that ends in \.parquet or \.pq"),
        ("none/a.parquet", 9, "output directory does not exist"),
        ("d.pq", 9, "expected a file, got the folder"),
        ("a.parquet", None, "the stream has no end"),
    ],
)
def test_invalid_file_name_or_endless_stream_is_refused(tmp_path, name, rows, message):
    (tmp_path / "d.pq").mkdir()
    with pytest.raises(BadInput, match=message):
        copy_to_parquet(SyntheticSource(rows=rows), tmp_path / name, Told())


def test_real_criteo_logs_are_copied(tmp_path):
    data = DataConfig(real_data("criteo/train_head10k.tsv.gz"), "criteo")
    fields = [Field(name, section["kind"]) for name, section in default_features("criteo", data.path).items()]
    source = open_source(data, fields)
    copy_to_parquet(source, tmp_path / "copy.parquet", Told())
    copied = open_source(DataConfig(str(tmp_path / "copy.parquet"), "parquet", source.schema.label), fields)

    for a, b in zip(copied.batches(512), source.batches(512), strict=True):
        assert a.label.tobytes() == b.label.tobytes()
        for name, column in a.columns.items():
            assert plain(column) == plain(b.columns[name])
