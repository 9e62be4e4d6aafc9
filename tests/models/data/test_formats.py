import pytest

from freshet_serving.models.data.formats import format_of
from freshet_serving.processor.errors import BadInput


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.parquet", "parquet"),
        ("a.PQ", "parquet"),
        ("parts/*.parquet", "parquet"),
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("a.tsv.zst", "csv"),
        ("a.tfrecord", "tfrecord"),
        ("parts/*.tfrecords.gz", "tfrecord"),
    ],
)
def test_suffix_determines_the_format(path, form):
    assert format_of(path) == form


def test_files_of_a_folder_determine_its_format(tmp_path):
    (tmp_path / "part-0.csv.gz").touch()
    assert format_of(str(tmp_path)) == "csv"
    (tmp_path / "ratings.dat").touch()
    assert format_of(str(tmp_path)) == "movielens"


@pytest.mark.parametrize("names", [[], ["a.csv", "b.parquet"], ["train.txt"]])
def test_path_with_an_unknown_format_is_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(BadInput, match=r"data\.format: expected one of parquet, csv, tfrecord, criteo, movielens"):
        format_of(str(tmp_path))
