"""Data in an object store: the same rows in the same order as from a folder, by ranges; one line for what is wrong."""

import gzip
import itertools
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from freshet_serving.models.data.dataset import Dataset
from freshet_serving.models.data.files import find_files
from freshet_serving.models.data.formats import format_of
from freshet_serving.models.data.object_files import BLOCK_NBYTES, glob_pattern, is_object_url, open_bytes, stored_files
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.object_stores.object_store import open_store
from tests.support.object_server import ObjectServer

NAMES = ["b/part-2", "a-1/part-0", "a/part-10", "a/part-9", ".hidden/part-1", "a/_part-1", "part-0", "a/b/c/part-1"]
prefixes = itertools.count()


@pytest.fixture(scope="module")
def server():
    with ObjectServer() as server:
        yield server


@pytest.fixture
def address(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return server.address(f"data-{next(prefixes)}")


def upload(folder, address):
    store = open_store(address)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path)
    return store


def table(first, rows):
    ids = np.arange(first, first + rows)
    texts = [f"käse {n % 7}" for n in ids]
    return pa.table({"user": ids, "item": texts, "label": (ids % 2).astype(np.float32), "ts": ids.astype(np.float64)})


def everything(path, **options):
    batches = list(Dataset(str(path), label="label", time="ts", batch_rows=100, **options))
    columns = [[batch.columns[name].tolist() for batch in batches] for name in ("user", "item")]
    return columns, [batch.label.tolist() for batch in batches]


@pytest.mark.parametrize(
    "pattern", ["", "/a", "/*/part-*", "/**/part-*", "/a/part-[19]*", "/**", "/a*/**/part-?.parquet"]
)
def test_object_files_are_listed_in_the_order_of_a_folder(tmp_path, address, pattern):
    for name in NAMES:
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    upload(tmp_path, address)
    local = [path.relative_to(tmp_path).as_posix() for path in find_files(f"{tmp_path}{pattern}")]
    assert [str(file).removeprefix(f"{address}/") for file in find_files(f"{address}{pattern}")] == local


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz", ".tsv"])
def test_object_rows_equal_those_of_a_folder(tmp_path, address, ending):
    for n in range(3):
        path, rows = tmp_path / f"part-{n}{ending}", table(n * 300, 300)
        if ending == ".parquet":
            pyarrow.parquet.write_table(rows, path, row_group_size=70)
        else:
            with gzip.open(path, "wb") if ending.endswith(".gz") else open(path, "wb") as file:
                options = pyarrow.csv.WriteOptions(delimiter="\t" if ending == ".tsv" else ",")
                pyarrow.csv.write_csv(rows, file, options)
    upload(tmp_path, address)
    assert format_of(address) == format_of(str(tmp_path)) == ("parquet" if ending == ".parquet" else "csv")
    wanted = everything(tmp_path)
    assert everything(address) == wanted
    assert everything(f"{address}/part-*{ending}", threads=3) == wanted
    assert everything(f"{address}/part-1{ending}") == everything(tmp_path / f"part-1{ending}")


def test_object_is_read_in_blocks_from_any_offset(tmp_path, address):
    content = os.urandom(BLOCK_NBYTES * 2 + 12345)
    (tmp_path / "x.csv").write_bytes(content)
    upload(tmp_path, address)
    (file,) = stored_files(address)
    asked = []
    real = file.read_range
    file.read_range = lambda start, nbytes: asked.append((start, nbytes)) or real(start, nbytes)
    with open_bytes(file) as opened:
        assert opened.read() == content
        assert opened.seek(1000) == 1000
        assert opened.read(10) == content[1000:1010]
    assert {start for start, _ in asked} <= {0, BLOCK_NBYTES, 2 * BLOCK_NBYTES, 1000, 1000 + BLOCK_NBYTES}
    assert max(nbytes for _, nbytes in asked) == BLOCK_NBYTES
    with open_bytes(file, ahead=False) as opened:
        opened.seek(-5, os.SEEK_END)
        assert opened.read(100) == content[-5:]
        assert opened.read(1) == b""


def test_object_replaced_during_the_read_is_reported(tmp_path, address):
    (tmp_path / "x.csv").write_text("user,label,ts\n1,0,1\n")
    store = upload(tmp_path, address)
    dataset = Dataset(address, ["user"], label="label")
    store.put("x.csv", b"user,label,ts\n2,0,1\n")
    with pytest.raises(BadInput, match=r"^data.path: 'x.csv' was replaced or removed while it was read$"):
        list(dataset)


def test_unreadable_object_gives_a_one_line_error(server, tmp_path, address):
    for path, said in (
        (f"{address}/none", "expected at least one data file, got none"),
        (f"{address}/*.csv", "expected at least one data file, got none"),
        ("s3://none/x.csv", "bucket 'none' does not exist"),
    ):
        with pytest.raises(BadInput, match=f"^data.path: {said}"):
            find_files(path)
    with pytest.raises(
        BadInput, match=r"^data\.path: expected a URL with scheme redis, rediss, kafka, s3, gs, az, got 'ftp'"
    ):
        format_of("ftp://x/y.csv")
    open_store(address).put("broken.parquet", b"not a Parquet file at all")
    with pytest.raises(BadInput, match=r"^broken\.parquet: cannot be read as a Parquet file"):
        Dataset(address)
    server.refuse()
    try:
        with pytest.raises(NotReady, match=r"^data\.path: the object store cannot be reached: no connection$"):
            find_files(address)
    finally:
        server.serve()


def test_glob_patterns_match_like_on_a_disk():
    assert is_object_url("s3://a/b")
    assert not is_object_url("redis://a/b")
    assert glob_pattern("a.b/[!x]?.csv").fullmatch("a.b/yz.csv")
    assert not glob_pattern("a.b/[!x]?.csv").fullmatch("a.b/xz.csv")
    assert not glob_pattern("*.csv").fullmatch(".a.csv")
    assert isinstance(glob_pattern("**"), re.Pattern)
