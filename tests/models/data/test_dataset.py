import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving import Dataset
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import joined, plain

ROWS = 25


@pytest.fixture
def clicks(tmp_path):
    at = range(ROWS)
    table = pa.table({
        "user": pa.array(at, pa.int32()),
        "city": [f"city {i % 3}" for i in at],
        "tags": pa.array([[f"t{j}" for j in range(i % 3)] for i in at], pa.list_(pa.string())),
        "seen": pa.array([list(range(i % 4)) for i in at], pa.list_(pa.int64())),
        "price": [i / 2 for i in at],
        "spent": [[i / 4] * (i % 3) for i in at],
        "at": pa.array(at, pa.timestamp("s")),
        "click": [i % 2 == 0 for i in at],
        "buy": [i % 5 == 0 for i in at],
        "dwell": [float(i) for i in at],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "clicks.parquet", row_group_size=7)
    return tmp_path / "clicks.parquet"


def test_dataset_can_be_iterated_repeatedly(clicks):
    dataset = Dataset(clicks, ["user", "tags"], label="click", batch_rows=10)

    assert (len(dataset), dataset.rows) == (3, ROWS)
    for _ in range(2):
        batches = list(dataset)
        assert [len(batch) for batch in batches] == [10, 10, 5]
        assert joined(batches)["user"] == list(range(ROWS))
        assert list(batches[0].columns) == ["user", "tags"]


def test_all_columns_are_read_by_their_types(clicks):
    (batch,) = Dataset(clicks, label=["click", "buy"], weight="dwell")

    kinds = {f.name: f.kind for f in Dataset(clicks, label="click").schema.fields}
    assert kinds == {
        "user": "id", "city": "string", "tags": "strings", "seen": "ids", "price": "float", "at": "seconds",
        "buy": "float", "dwell": "float", "spent": "floats",
    }  # fmt: skip
    assert batch.label.shape == (ROWS, 2)
    assert batch.weight.tolist() == list(range(ROWS))
    (unlabelled,) = Dataset(clicks, ["user"])
    assert unlabelled.label.shape == (ROWS, 0)


def test_kinds_may_be_given_where_text_is_ambiguous(tmp_path):
    (tmp_path / "c.csv").write_text("tags,n,y\na|b,1,0\n,2,1\n")
    (batch,) = Dataset(tmp_path / "c.csv", {"tags": "strings", "n": "float"}, label="y")

    assert plain(batch.columns["tags"]) == [[b"a", b"b"], []]
    assert batch.columns["n"].dtype == np.float32


def test_shuffled_rows_stay_intact_and_none_is_lost(clicks):
    def read():
        return Dataset(clicks, ["user", "city", "tags", "seen"], label="click", batch_rows=4, shuffle_rows=10, seed=3)

    dataset = read()
    first, second = joined(list(dataset)), joined(list(dataset))
    assert len(list(dataset)) == len(dataset)
    assert first == joined(list(read()))
    assert first["user"] != second["user"]
    for rows in (first, second):
        assert sorted(rows["user"]) == list(range(ROWS))
        assert max(rows["user"][:12]) < 12
        for i, user in enumerate(rows["user"]):
            assert rows["city"][i] == f"city {user % 3}".encode()
            assert rows["tags"][i] == [f"t{j}".encode() for j in range(user % 3)]
            assert rows["seen"][i] == list(range(user % 4))
            assert rows["label"][i] == (user % 2 == 0)


@pytest.mark.parametrize("shuffle_rows", [0, 8])
@pytest.mark.parametrize("readers", [1, 2, 3, 7, 40])
def test_readers_share_the_rows_with_equal_batch_counts(clicks, readers, shuffle_rows):
    parts = [
        Dataset(clicks, ["user"], batch_rows=4, reader=i, readers=readers, shuffle_rows=shuffle_rows)
        for i in range(readers)
    ]
    batches = [list(part) for part in parts]

    assert sorted(row for part in batches for batch in part for row in batch.columns["user"]) == list(range(ROWS))
    assert {len(part) for part in batches} == {len(parts[0])}


def test_formats_with_fixed_columns_are_read_too(tmp_path):
    (tmp_path / "ratings.dat").write_text("1::2::5::30\n1::3::1::20\n")
    (batch,) = Dataset(tmp_path, ["movie_id", "timestamp"])

    assert batch.columns["movie_id"].tolist() == [3, 2]
    assert batch.columns["timestamp"].tolist() == [20, 30]
    assert batch.label.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["usr"]}, r"column 'usr': expected exactly one in clicks\.parquet, .*did you mean 'user'"),
        ({"columns": "user"}, "columns: expected a list of names"),
        ({"columns": []}, "columns: expected at least one"),
        ({"columns": {"user": "number"}}, r"columns\['user'\]: expected one of id, float, .*, got 'number'"),
        ({"columns": {"city": "id"}}, r"^columns\['city'\]: expected integers for kind 'id'"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"shuffle_rows": -1}, "shuffle_rows"),
        ({"reader": 2, "readers": 2}, "reader: expected 0 to readers - 1, got 2 of 2"),
        ({"label": "city"}, "data.label: expected a column of numbers from 0 to 1"),
        ({"columns": ["user"], "label": "user"}, r"expected a column other than data\.label"),
        ({"format": "parket"}, r"format: expected one of .*, got 'parket' \(did you mean 'parquet'\?\)"),
    ],
)
def test_mistake_gives_a_one_line_error(clicks, arguments, message):
    with pytest.raises(BadInput, match=message) as caught:
        Dataset(clicks, **arguments)
    assert "\n" not in str(caught.value)


def test_tensorflow_gets_the_same_batches(clicks):
    tf = pytest.importorskip("tensorflow", reason="needs the train extra")
    dataset = Dataset(
        clicks, ["user", "city", "tags", "seen", "price", "spent"], label="click", weight="dwell", batch_rows=10
    )
    batches = list(dataset.to_tf())

    assert len(batches) == dataset.to_tf().cardinality() == 3
    for (columns, label, weight), batch in zip(batches, dataset, strict=True):
        for name, column in batch.columns.items():
            found = columns[name]
            assert isinstance(found, tf.RaggedTensor) == isinstance(column, Ragged)
            listed = found.to_list() if isinstance(column, Ragged) else found.numpy().tolist()
            assert listed == plain(column)
        assert label.numpy().tolist() == batch.label.tolist()
        assert weight.numpy().tolist() == batch.weight.tolist()
    (columns,) = Dataset(clicks, ["user"]).to_tf()
    assert columns["user"].dtype == tf.int64


@pytest.mark.tensorflow
def test_documented_programs_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorflow", reason="needs the train extra")
    table = pa.table({"user_id": [1, 2], "tags": [["a"], []], "price": [1.0, 2.0], "clicked": [0, 1]})
    pq.write_table(table, tmp_path / "clicks.parquet")
    (tmp_path / "train.toml").write_text(
        '[model]\nname = "x"\n[data]\npath = "clicks.parquet"\nlabel = "clicked"\n[features.user_id]\nkind = "id"\n'
    )
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "data.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(programs) == 2
    for program in programs:
        exec(program, {})
    assert capsys.readouterr().out == "2 rows in 1 batches\n"


def test_ids_of_unsigned_columns_stay_unsigned(tmp_path):
    ids = [5, 2**63, 2**64 - 1]
    lists = pa.array([[n, 7] for n in ids], pa.list_(pa.uint64()))
    table = pa.table({"user": pa.array(ids, pa.uint64()), "seen": lists, "item": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    for shuffle_rows in (0, 3):
        (batch,) = Dataset(tmp_path, batch_rows=10, shuffle_rows=shuffle_rows)
        assert sorted(batch.columns["user"].tolist()) == ids
        assert sorted(batch.columns["seen"].values.tolist()) == sorted([*ids, 7, 7, 7])
        assert batch.columns["item"].dtype == np.int64
