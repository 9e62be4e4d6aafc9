import gzip

import numpy as np
import pytest

from freshet_serving.models.data.criteo import CATEGORIES, COUNTS, default_features, open_criteo
from freshet_serving.models.data.source import Field
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import check_batches, joined, plain, real_data


def line(i: int) -> str:
    """A row of the challenge's layout in which I2 and C3 are missing."""
    counts = ["" if j == 1 else str(i * 13 + j - 3) for j in range(13)]
    categories = ["" if j == 2 else f"{i * 26 + j:08x}" for j in range(26)]
    return "\t".join([str(i % 2), *counts, *categories])


def recoded(i: int) -> str:
    counts = ["" if j == 1 else str(j) for j in range(13)]
    return ",".join([str(10_000 + i), str(i % 2), *counts, *(str(i * 26 + j) for j in range(26))])


HEADER = ",".join(["Id", "Label", *COUNTS, *CATEGORIES])


@pytest.mark.parametrize("name", ["train.txt", "train.tsv.gz"])
def test_tab_separated_rows_are_read_with_missing_values(tmp_path, name):
    text = "".join(line(i) + "\n" for i in range(10)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    source = open_criteo(str(tmp_path / name))
    rows = joined(list(source.batches(4)))

    assert source.schema.names == COUNTS + CATEGORIES
    assert rows["label"] == [0.0, 1.0] * 5
    assert rows["I1"] == [i * 13.0 - 3 for i in range(10)]
    assert rows["I2"] == [None] * 10
    assert rows["C1"] == [b"%08x" % (i * 26) for i in range(10)]
    assert rows["C3"] == [b""] * 10
    assert source.count_rows() == 10


def test_recoded_layout_has_ids(tmp_path):
    (tmp_path / "r.csv").write_text("\n".join([HEADER, *(recoded(i) for i in range(5))]))
    source = open_criteo(str(tmp_path / "r.csv"))
    (batch,) = source.batches(10)

    assert source.schema.kind("C1") == "id"
    assert plain(batch.columns["C2"]) == [i * 26 + 1 for i in range(5)]
    assert np.isnan(batch.columns["I2"]).all()
    assert batch.label.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_resumed_reader_yields_the_remaining_batches(tmp_path):
    (tmp_path / "t.txt").write_text("".join(line(i) + "\n" for i in range(23)))
    (tmp_path / "r.csv").write_text("\n".join([HEADER, *(recoded(i) for i in range(23))]))
    for name in ("t.txt", "r.csv"):
        check_batches(open_criteo(str(tmp_path / name)), 5, 23)


def test_files_of_a_folder_form_one_stream(tmp_path):
    for day in range(3):
        (tmp_path / f"day_{day}").write_text("".join(line(day * 7 + i) + "\n" for i in range(7)))
    source = open_criteo(str(tmp_path), [Field("C1", "string")])
    columns = joined(list(source.batches(5)))

    assert list(columns) == ["C1", "label"]
    assert columns["C1"] == [b"%08x" % (i * 26) for i in range(21)]
    check_batches(source, 5, 21)


def test_test_set_without_labels_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text(line(1).partition("\t")[2] + "\n")
    with pytest.raises(
        BadInput, match=r"t\.txt: expected 40 fields between TABs.*got 39 field\(s\) \(the test set has no label"
    ):
        open_criteo(str(tmp_path / "t.txt"))


@pytest.mark.parametrize("text", ["", "hello\n", "a,b,c\n1,2,3\n"])
def test_foreign_file_is_refused(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    with pytest.raises(BadInput, match="40 fields between TABs, or a CSV header"):
        open_criteo(str(tmp_path / "t.txt"))


def test_damaged_value_is_refused_by_column_and_row(tmp_path):
    (tmp_path / "t.txt").write_text(line(0) + "\n" + line(1).replace("1\t", "x\t", 1) + "\n")
    with pytest.raises(BadInput, match=r"column 'label': expected a number, got 'x' at row 1 of t\.txt"):
        list(open_criteo(str(tmp_path / "t.txt")).batches(9))
    (tmp_path / "t.gz").write_bytes(b"\x1f\x8b but not gzip")
    with pytest.raises(BadInput, match=r"t\.gz: cannot be read as a Criteo file"):
        open_criteo(str(tmp_path / "t.gz"))


def test_kind_of_the_other_layout_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text(line(0) + "\n")
    with pytest.raises(BadInput, match=r"features\.C1\.kind: expected 'string' for this column, got 'id'"):
        open_criteo(str(tmp_path / "t.txt"), [Field("C1", "id")])


def test_default_features_name_every_column_of_the_layout(tmp_path):
    (tmp_path / "t.txt").write_text(line(0) + "\n")
    (tmp_path / "r.csv").write_text(HEADER + "\n" + recoded(0))
    for name, kind in {"t.txt": "string", "r.csv": "id"}.items():
        sections = default_features(str(tmp_path / name))

        assert list(sections) == COUNTS + CATEGORIES
        assert sections["I1"] == {"kind": "float", "transform": "log1p"}
        assert sections["C26"]["kind"] == kind


def test_real_training_rows_have_their_click_rate():
    source = open_criteo(real_data("criteo/train_head10k.tsv.gz"))
    rows = list(source.batches(4096))

    assert [len(b) for b in rows] == [4096, 4096, 1808]
    assert np.concatenate([b.label for b in rows]).mean() == pytest.approx(0.218, abs=0.001)
    assert plain(rows[0].columns["C1"])[0] == b"68fd1e64"
    assert plain(rows[0].columns["C22"])[:2] == [b"", b""]
    assert all(len(s) in (0, 8) for name in CATEGORIES for s in plain(rows[1].columns[name]))


def test_real_recoded_rows_have_large_ids():
    source = open_criteo(real_data("criteo/recoded20k.csv.gz"), [Field("C3", "id"), Field("I1", "float")])
    rows = joined(list(source.batches(8192)))

    assert len(rows["label"]) == 20_000
    assert np.mean(rows["label"]) == pytest.approx(0.243, abs=0.001)
    assert 10**6 < max(rows["C3"]) < 10_140_000
