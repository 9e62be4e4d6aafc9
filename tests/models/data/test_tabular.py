import gzip
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.models.data import tabular
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.source import Field
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import check_batches, everything, joined, plain

FIELDS = [
    Field("user", "id"),
    Field("city", "string"),
    Field("price", "float"),
    Field("seen", "ids"),
    Field("tags", "strings"),
]
quick = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def open_table(path, form, label, time, fields, threads=0, weight=""):
    return tabular.open_table(DataConfig(path, form, label, time, weight), fields, threads)


def clicks(rows: int) -> pa.Table:
    at = range(rows)
    return pa.table({
        "click": pa.array([i % 3 == 0 for i in at]),
        "user": pa.array([i * 7 for i in at], pa.int32()),
        "unused": pa.array(["x" * 50] * rows),
        "tags": pa.array([[f"t{j}" for j in range(i % 4)] for i in at], pa.list_(pa.string())),
        "city": pa.array([f"city {i % 5}" if i % 5 else None for i in at]),
        "price": pa.array([i / 2 if i % 7 else None for i in at]),
        "seen": pa.array([[i, -i] if i % 2 else None for i in at], pa.list_(pa.int64())),
        "ts": pa.array([1_700_000_000_000 + 250 * i for i in at], pa.timestamp("ms")),
    })  # fmt: skip


def write_csv(path: Path, table: pa.Table, header: bool = True) -> None:
    """The table as CSV text: lists joined by '|', nulls empty."""
    cells = []
    for name in table.column_names:
        values = table[name].to_pylist()
        if pa.types.is_list(table[name].type):
            values = ["|".join(str(v) for v in row or []) for row in values]
        cells.append(["" if v is None else str(v) for v in values])
    lines = [table.column_names] * header + list(zip(*cells))
    text = "".join(",".join(f'"{c}"' if " " in c else c for c in line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def save(path: Path, table: pa.Table) -> str:
    if ".csv" in path.name:
        write_csv(path, table)
        return "csv"
    pq.write_table(table, path, row_group_size=37)
    return "parquet"


def expected(rows: int) -> dict[str, list]:
    table = clicks(rows).to_pydict()
    return {
        "user": table["user"],
        "city": [(c or "").encode() for c in table["city"]],
        "price": table["price"],
        "seen": [s or [] for s in table["seen"]],
        "tags": [[t.encode() for t in tags] for tags in table["tags"]],
        "label": [float(c) for c in table["click"]],
        "time": [1_700_000_000 + i / 4 for i in range(rows)],
    }


@pytest.mark.parametrize("name", ["clicks.parquet", "clicks.csv", "clicks.csv.gz"])
def test_every_column_is_read_completely_in_order(tmp_path, name):
    form = save(tmp_path / name, clicks(100))
    source = open_table(str(tmp_path / name), form, "click", "ts", FIELDS)

    assert joined(list(source.batches(33))) == expected(100)
    assert source.count_rows() == 100


@pytest.mark.parametrize("name", ["clicks.parquet", "clicks.csv"])
@pytest.mark.parametrize("rows", [1, 10, 37, 64, 1000])
def test_resumed_reader_yields_the_remaining_batches(tmp_path, name, rows):
    form = save(tmp_path / name, clicks(110 if rows > 1 else 12))
    source = open_table(str(tmp_path / name), form, "click", "ts", FIELDS)

    check_batches(source, rows, source.count_rows())


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_files_of_a_folder_or_glob_form_one_ordered_stream(tmp_path, suffix):
    table = clicks(90)
    for i, part in enumerate([table.slice(0, 25), table.slice(25, 0), table.slice(25, 40), table.slice(65)]):
        form = save(tmp_path / f"part-{i}.{suffix}", part)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / f".part-0.{suffix}").write_text("not data")
    for path in (tmp_path, tmp_path / f"part-*.{suffix}"):
        source = open_table(str(path), form, "click", "ts", FIELDS)

        assert joined(list(source.batches(16))) == expected(90)
        check_batches(source, 16, 90)


def test_files_may_differ_in_the_width_of_their_types(tmp_path):
    for i, t in enumerate([pa.int32(), pa.uint8(), pa.int64()]):
        pq.write_table(pa.table({"user": pa.array([i], t), "click": [i % 2]}), tmp_path / f"{i}.parquet")
    source = open_table(str(tmp_path), "parquet", "click", "", FIELDS[:1])

    (batch,) = source.batches(10)
    assert batch.columns["user"].tolist() == [0, 1, 2]
    assert batch.time is None


def test_unneeded_parquet_columns_are_not_read(tmp_path):
    path = tmp_path / "clicks.parquet"
    pq.write_table(clicks(100), path, compression="none", use_dictionary=False)
    meta = pq.read_metadata(path).row_group(0)
    (unused,) = (c for c in map(meta.column, range(meta.num_columns)) if c.path_in_schema == "unused")
    with open(path, "r+b") as file:
        file.seek(unused.data_page_offset)
        file.write(b"\xff" * unused.total_compressed_size)

    source = open_table(str(path), "parquet", "click", "ts", FIELDS)
    assert joined(list(source.batches(33))) == expected(100)
    damaged = open_table(str(path), "parquet", "click", "ts", [Field("unused", "string")])
    with pytest.raises(BadInput, match=r"clicks\.parquet: cannot be read as a Parquet file"):
        list(damaged.batches(33))


def test_unneeded_csv_columns_are_not_decoded(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_bytes(b"user,unused,click\n1,5,0\n2,\xff\xfe,1\n")
    source = open_table(str(path), "csv", "click", "", FIELDS[:1])

    assert joined(list(source.batches(10))) == {"user": [1, 2], "label": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("rows", "group", "threads", "share"),
    [
        pytest.param(400_000, 20_000, 0, 0.5, id="small groups"),
        pytest.param(1_200_000, 1_200_000, 4, 1.0, id="one group"),
    ],
)
def test_parquet_is_streamed_and_not_loaded_whole(tmp_path, rows, group, threads, share):
    path = tmp_path / "large.parquet"
    # Random numbers, so that no encoding shrinks them.
    wide = np.random.default_rng(0).integers(0, 2**62, (8, rows))
    table = pa.table({f"c{i}": c for i, c in enumerate(wide)} | {"click": np.zeros(rows)})
    pq.write_table(table, path, row_group_size=group, compression="none", use_dictionary=False)
    del table
    source = open_table(str(path), "parquet", "click", "", [Field(f"c{i}", "id") for i in range(8)], threads)
    before = pa.total_allocated_bytes()
    most = 0
    for i, batch in enumerate(source.batches(4096)):
        most = max(most, pa.total_allocated_bytes() - before)
        assert batch.columns["c3"][0] == wide[3, i * 4096]

    assert most < share * wide.nbytes


def test_dictionary_and_large_parquet_columns_are_read(tmp_path):
    path = tmp_path / "x.parquet"
    city = pa.array(["a", "bb", None, "a"]).dictionary_encode()
    tags = pa.array([["x"], None, [], ["y", "zz"]], pa.large_list(pa.large_string()))
    pq.write_table(pa.table({"city": city, "tags": tags, "click": [0, 1, 0, 1]}), path)
    source = open_table(str(path), "parquet", "click", "", [Field("city", "string"), Field("tags", "strings")])

    (batch,) = source.batches(10)
    assert plain(batch.columns["city"]) == [b"a", b"bb", b"", b"a"]
    assert plain(batch.columns["tags"]) == [[b"x"], [], [], [b"y", b"zz"]]


@quick
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.text(max_size=6),
            st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
            st.none() | st.lists(st.none() | st.text(max_size=4), max_size=4),
        ),
        min_size=1,
        max_size=30,
    ),
    size=st.integers(1, 12),
    group=st.integers(1, 12),
    packed=st.booleans(),
)
def test_strings_and_ragged_rows_round_trip_through_parquet(tmp_path, rows, size, group, packed):
    name, ids, tags = zip(*rows)
    columns = {
        "name": pa.array(name, pa.string()),
        "ids": pa.array(ids, pa.list_(pa.int64())),
        "tags": pa.array(tags, pa.list_(pa.string())),
        "y": np.zeros(len(rows)),
    }
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=group, use_dictionary=packed)
    fields = [Field("name", "string"), Field("ids", "ids"), Field("tags", "strings")]
    read = joined(list(open_table(str(path), "parquet", "y", "", fields).batches(size)))

    assert read["name"] == [(n or "").encode() for n in name]
    assert read["ids"] == [i or [] for i in ids]
    assert read["tags"] == [[(t or "").encode() for t in row or []] for row in tags]


@quick
@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=6),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
            st.floats(-1e6, 1e6, width=32),
        ),
        min_size=1,
        max_size=20,
    ),
    size=st.integers(1, 7),
)
def test_strings_ids_and_numbers_round_trip_through_csv(tmp_path, rows, size):
    path = tmp_path / "x.csv"
    lines = ["name,ids,x,y"]
    for name, ids, x in rows:
        quoted = name.replace('"', '""')
        lines.append(f'"{quoted}",{"|".join(map(str, ids))},{x!r},1')
    path.write_text("\n".join(lines), encoding="utf-8")
    fields = [Field("name", "string"), Field("ids", "ids"), Field("x", "float")]
    read = joined(list(open_table(str(path), "csv", "y", "", fields).batches(size)))

    assert read["name"] == [name.encode() for name, _, _ in rows]
    assert read["ids"] == [ids for _, ids, _ in rows]
    assert read["x"] == [x for _, _, x in rows]


def test_blank_csv_lines_do_not_shift_a_resumed_reader(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("user\tclick\n1\t0\n\n2\t1\n\n\n3\t0\n4\t1\n")
    source = open_table(str(path), "csv", "click", "", FIELDS[:1])

    assert joined(list(source.batches(2)))["user"] == [1, 2, 3, 4]
    check_batches(source, 2, 4)


def test_csv_times_may_be_dates_or_numbers(tmp_path):
    for name, cells in {
        "a.csv": ["2024-01-01 00:00:00", "2024-01-01 00:00:01"],
        "b.csv": ["1704067200", "1704067201"],
    }.items():
        (tmp_path / name).write_text(f"user,click,ts\n1,true,{cells[0]}\n2,false,{cells[1]}\n")
        (batch,) = open_table(str(tmp_path / name), "csv", "click", "ts", FIELDS[:1]).batches(5)

        assert batch.time.tolist() == [1704067200.0, 1704067201.0]
        assert batch.label.tolist() == [1.0, 0.0]


def refusal(path: Path, form: str, fields: list[Field] = FIELDS[:1], time: str = "", weight: str = "") -> str:
    """The one line by which a table is refused, at opening or while reading."""
    with pytest.raises(BadInput) as caught:
        list(open_table(str(path), form, "click", time, fields, weight=weight).batches(10))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_column_with_a_wrong_type_is_refused_before_any_batch(tmp_path):
    form = save(tmp_path / "c.parquet", clicks(3))
    with pytest.raises(BadInput, match=r"features\.city: expected integers for kind 'id', got a column of type string"):
        open_table(str(tmp_path / "c.parquet"), form, "click", "", [Field("city", "id")])


def test_null_id_is_refused_by_its_row_in_its_file(tmp_path):
    for name, users in {"a": [1, 2], "b": [3, None]}.items():
        pq.write_table(pa.table({"user": users, "click": [0, 1]}), tmp_path / f"{name}.parquet")

    assert refusal(tmp_path, "parquet") == "column 'user': expected an id, got a null at row 1 of b.parquet"


def test_error_rows_count_from_the_file_start_after_a_resume(tmp_path):
    pq.write_table(pa.table({"user": [1, 2, 3, 4, None], "click": [0] * 5}), tmp_path / "c.parquet", row_group_size=2)
    source = open_table(str(tmp_path / "c.parquet"), "parquet", "click", "", FIELDS[:1])
    with pytest.raises(BadInput, match=r"a null at row 4 of c\.parquet"):
        list(source.batches(2, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("usr,click\n1,0\n", "column 'user': expected exactly one in c.csv, got 0 (did you mean 'usr'?)"),
        ("user,user,click\n1,2,0\n", "column 'user': expected exactly one in c.csv, got 2"),
        ("user,click\n1,0\nx,1\n", "column 'user': expected an integer, got 'x' at row 1 of c.csv"),
        ("user,click\n1,0\n,1\n", "column 'user': expected an id, got a null at row 1 of c.csv"),
        ("user,click\n1,0\n2,\n", "column 'click': expected a label, got a null at row 1 of c.csv"),
        ("user,click\n1,0\n2,7\n", "column 'click': expected a label from 0 to 1, got 7.0 at row 1 of c.csv"),
        ("user,click\n1,0\n2\n", "c.csv: expected 2 columns, got 1 at row 1"),
        ("user,click\n", "c.csv: expected rows, got an empty table"),
        ("", "c.csv: expected rows, got an empty file"),
        ("user;click\n1;0\n", "c.csv: expected columns separated by ',', got a header with ';'"),
    ],
)
def test_malformed_csv_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "c.csv").write_text(text)

    assert refusal(tmp_path / "c.csv", "csv") == message


@pytest.mark.parametrize(
    ("kind", "cells", "message"),
    [
        ("string", b"Paris K\xf6ln", "expected text, got bytes that are not UTF-8 at row 1"),
        ("ids", b"1|2 3||4", "expected integers between '|', got '3||4' at row 1"),
        ("floats", b"1.5|2 1.5|x", "expected numbers between '|', got '1.5|x' at row 1"),
    ],
)
def test_malformed_cell_of_csv_is_refused_by_its_row(tmp_path, kind, cells, message):
    (tmp_path / "c.csv").write_bytes(b"cell,click\n%s,0\n%s,1\n" % tuple(cells.split()))

    assert refusal(tmp_path / "c.csv", "csv", [Field("cell", kind)]) == f"column 'cell': {message} of c.csv"


def test_csv_lists_of_numbers_are_read(tmp_path):
    (tmp_path / "c.csv").write_text("spent,click\n1.5|2,0\n,1\n-3e2,1\n")
    source = open_table(str(tmp_path / "c.csv"), "csv", "click", "", [Field("spent", "floats")])
    assert joined(list(source.batches(2)))["spent"] == [[1.5, 2.0], [], [-300.0]]


def test_truncated_gzip_is_refused(tmp_path):
    write_csv(tmp_path / "c.csv.gz", clicks(2000))
    packed = (tmp_path / "c.csv.gz").read_bytes()
    (tmp_path / "c.csv.gz").write_bytes(packed[: len(packed) // 2])

    assert refusal(tmp_path / "c.csv.gz", "csv").startswith("c.csv.gz: cannot be read as a CSV file")


def test_file_that_is_not_parquet_is_refused(tmp_path):
    (tmp_path / "c.parquet").write_bytes(b"user,click\n")

    assert refusal(tmp_path / "c.parquet", "parquet") == (
        'c.parquet: expected a Parquet file, got text with commas, which looks like CSV (data.format = "csv")'
    )
    (tmp_path / "c.parquet").write_bytes(b"PAR1\x15\x04")
    assert refusal(tmp_path / "c.parquet", "parquet").endswith("got a truncated one")
    (tmp_path / "c.parquet").write_bytes(b"\0" * 20)
    assert refusal(tmp_path / "c.parquet", "parquet").startswith("c.parquet: cannot be read as a Parquet file")


def test_missing_header_is_reported(tmp_path):
    (tmp_path / "c.csv").write_text("1,0\n2,1\n")
    assert refusal(tmp_path / "c.csv", "csv").endswith("is not a header: expected column names")


def test_invalid_time_is_refused_by_its_row(tmp_path):
    (tmp_path / "c.csv").write_text("user,click,at\n1,0,2026-11-24 10:00:00\n2,1,17\n")
    told = refusal(tmp_path / "c.csv", "csv", time="at")
    assert told == "column 'at': expected a date and time, got '17' at row 1 of c.csv"


def test_empty_parquet_table_is_refused(tmp_path):
    form = save(tmp_path / "c.parquet", clicks(0))

    assert refusal(tmp_path / "c.parquet", form) == "c.parquet: expected rows, got an empty table"


def test_path_without_a_file_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()

    assert refusal(tmp_path / "gone.csv", "csv").endswith("gone.csv' does not exist")
    assert refusal(tmp_path / "*.csv", "csv").startswith("data.path: expected at least one .csv or")
    assert refusal(tmp_path / "empty", "csv").startswith("data.path: expected at least one .csv or")


@pytest.mark.parametrize(
    ("files", "place"), [([[1, 3, 2]], "row 2 of 0.parquet"), ([[3, 4, 4], [1, 2, 5]], "row 0 of 1.parquet")]
)
def test_unsorted_rows_are_refused_with_the_column_to_sort_by(tmp_path, files, place):
    for n, times in enumerate(files):
        pq.write_table(pa.table({"user": [1, 2, 3], "click": [0] * 3, "ts": times}), tmp_path / f"{n}.parquet")

    assert refusal(tmp_path, "parquet", time="ts") == (
        f"column 'ts': expected rows sorted by time, got an earlier time at {place}; sort the data by 'ts'"
    )


def test_rows_with_equal_times_count_as_sorted(tmp_path):
    pq.write_table(pa.table({"user": [1, 2], "click": [0, 1], "ts": [5, 5]}), tmp_path / "c.parquet")
    (batch,) = open_table(str(tmp_path / "c.parquet"), "parquet", "click", "ts", FIELDS[:1]).batches(9)

    assert batch.time.tolist() == [5.0, 5.0]
    assert batch.label.tolist() == [0, 1]


@quick
@given(
    files=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4),
    size=st.integers(1, 9),
    start=st.integers(0, 40),
    threads=st.integers(2, 4),
    piece_rows=st.integers(1, 9),
)
def test_batches_are_equal_for_any_number_of_threads(tmp_path_factory, files, size, start, threads, piece_rows):
    """files: the rows of each row group of each. piece_rows: of row groups that are read together."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("freshet_serving.models.data.files.PIECE_ROWS", piece_rows)
        patched.setattr(tabular, "SMALL_NBYTES", 0)
        check_threads(tmp_path_factory, files, size, start, threads)


def check_threads(tmp_path_factory, files, size, start, threads):
    folder, row = tmp_path_factory.mktemp("parts"), 0
    for i, groups in enumerate(files):
        table = clicks(40)
        with pq.ParquetWriter(folder / f"{i}.parquet", table.schema) as writer:
            for rows in groups:
                writer.write_table(table.slice(row % 20, rows))
                row += rows
    if not row:
        return
    alone, together = (open_table(str(folder), "parquet", "click", "", FIELDS, n) for n in (1, threads))
    written = [row for path in sorted(folder.iterdir()) for row in pq.read_table(path)["user"].to_pylist()]

    assert joined(list(alone.batches(size, start))).get("user", []) == written[start:]
    assert list(map(everything, together.batches(size, start))) == list(map(everything, alone.batches(size, start)))


@pytest.mark.parametrize("threads", [1, 3])
def test_error_follows_the_batches_before_it_for_any_threads(tmp_path, threads, monkeypatch):
    monkeypatch.setattr("freshet_serving.models.data.files.PIECE_ROWS", 1)
    users = [*range(100), None]
    pq.write_table(pa.table({"user": users, "click": [0] * 101}), tmp_path / "c.parquet", row_group_size=10)
    batches = open_table(str(tmp_path / "c.parquet"), "parquet", "click", "", FIELDS[:1], threads).batches(10)

    assert [len(next(batches)) for _ in range(10)] == [10] * 10
    with pytest.raises(BadInput, match=r"a null at row 100 of c\.parquet"):
        next(batches)


def test_row_groups_before_the_start_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tabular, "SMALL_NBYTES", 0)
    path = tmp_path / "c.parquet"
    pq.write_table(clicks(100), path, row_group_size=10, compression="none", use_dictionary=False)
    metadata = pq.read_metadata(path)
    with open(path, "r+b") as file:
        for group in range(5):
            for column in range(metadata.num_columns):
                found = metadata.row_group(group).column(column)
                file.seek(found.data_page_offset)
                file.write(b"\xff" * found.total_compressed_size)
    source = open_table(str(path), "parquet", "click", "ts", FIELDS)

    assert joined(list(source.batches(20, 50)))["user"] == [i * 7 for i in range(50, 100)]


@pytest.mark.parametrize("name", ["c.parquet", "c.csv"])
def test_weights_and_several_labels_stay_with_their_rows(tmp_path, name):
    table = pa.table({
        "user": [1, 2, 3],
        "click": [0, 1, 1],
        "buy": [0.0, 0.0, 1.0],
        "dwell": [0.5, 0, 30],
    })  # fmt: skip
    form = save(tmp_path / name, table)
    source = open_table(str(tmp_path / name), form, ("click", "buy"), "", FIELDS[:1], weight="dwell")
    (batch,) = source.batches(9)

    assert source.schema.labels == ("click", "buy")
    assert batch.label.tolist() == [[0, 0], [1, 0], [1, 1]]
    assert (batch.label.dtype, batch.weight.dtype) == (np.float32, np.float32)
    assert batch.weight.tolist() == [0.5, 0, 30]
    assert batch.slice(1, 2).weight.tolist() == [0]
    assert [len(b.label) for b in source.batches(2)] == [2, 1]


@pytest.mark.parametrize(
    ("weight", "wanted"),
    [
        ("-1", "expected a weight of 0 or more, got -1.0"),
        ("nan", "expected a weight, got a null"),
        ("inf", "expected a number within float32, got inf"),
        ("1e39", "expected a number within float32, got 1e+39"),
        ("", "expected a weight, got a null"),
    ],
)
def test_invalid_weight_is_refused_by_its_row(tmp_path, weight, wanted):
    (tmp_path / "c.csv").write_text(f"user,click,w\n1,0,1\n2,1,{weight}\n")

    assert refusal(tmp_path / "c.csv", "csv", weight="w") == f"column 'w': {wanted} at row 1 of c.csv"


@pytest.mark.parametrize("name", ["c.parquet", "c.csv"])
def test_time_may_also_be_read_as_whole_seconds(tmp_path, name):
    form = save(tmp_path / name, clicks(9).select(["user", "click", "ts"]))
    (batch,) = open_table(str(tmp_path / name), form, "click", "ts", [Field("ts", "seconds")]).batches(9)

    assert batch.columns["ts"].dtype == np.int64
    assert batch.columns["ts"].tolist() == [1_700_000_000 + i // 4 for i in range(9)]
    assert batch.time.tolist() == [1_700_000_000 + i / 4 for i in range(9)]


def test_seconds_before_1970_are_rounded_down(tmp_path):
    pq.write_table(pa.table({"ts": [-0.5, 0.5], "click": [0, 1]}), tmp_path / "c.parquet")
    (batch,) = open_table(str(tmp_path / "c.parquet"), "parquet", "click", "", [Field("ts", "seconds")]).batches(9)

    assert batch.columns["ts"].tolist() == [-1, 0]


def test_weight_that_is_nan_is_refused(tmp_path):
    pq.write_table(pa.table({"user": [1, 2], "click": [0, 1], "w": [1.0, math.nan]}), tmp_path / "c.parquet")

    assert refusal(tmp_path / "c.parquet", "parquet", weight="w") == (
        "column 'w': expected a weight of 0 or more, got nan at row 1 of c.parquet"
    )


def test_damaged_parquet_file_is_read_or_refused_in_one_line(tmp_path):
    save(tmp_path / "c.parquet", clicks(60))
    whole, random, refused = (tmp_path / "c.parquet").read_bytes(), np.random.default_rng(0), []
    for _ in range(40):
        raw = bytearray(whole)
        for at in random.integers(0, len(raw), random.integers(1, 4)):
            raw[at] = random.integers(0, 256)
        (tmp_path / "d.parquet").write_bytes(raw)
        try:
            list(open_table(str(tmp_path / "d.parquet"), "parquet", "click", "ts", FIELDS).batches(16))
        except BadInput as error:
            refused.append(str(error))
    assert refused
    assert not any("\n" in line for line in refused)


def bomb(path: Path, rows: int, value: str) -> DataConfig:
    """A few kilobytes that decode to rows times the value's length."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [value])
    pq.write_table(pa.table({"user": column, "click": np.zeros(rows, np.int8)}), path, store_schema=False)
    return DataConfig(str(path), "parquet", "click")


def test_batches_that_need_too_much_memory_are_refused_by_file(tmp_path):
    data = bomb(tmp_path / "b.parquet", 30_000, "x" * 60_000)
    with pytest.raises(BadInput, match=r"^b.parquet: cannot be [^\n]* 1,024 MiB[^\n]*$"):
        list(tabular.open_table(data, [Field("user", "string")]).batches(100))


def test_kept_table_is_bounded_by_the_size_of_its_files(tmp_path, monkeypatch):
    data = bomb(tmp_path / "b.parquet", 10_000, "x" * 100)
    source = tabular.open_table(data, [Field("user", "string")])
    assert sum(len(batch) for batch in source.bounded()) == 10_000
    monkeypatch.setattr(tabular, "HELD_NBYTES", 1 << 20)
    monkeypatch.setattr(tabular, "HELD_RATIO", 2)
    with pytest.raises(BadInput, match=r"^b.parquet: expected a table of at most 1 MiB in memory .*, got more$"):
        list(source.bounded())
    monkeypatch.setattr(tabular, "HELD_NBYTES", 1 << 10)
    with pytest.raises(BadInput, match=r"got 10,000 rows of 2 columns$"):
        list(source.bounded())
