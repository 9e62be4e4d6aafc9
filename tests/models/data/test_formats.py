import pytest

from models.data.formats import DataConfig, format_of
from models.data.movielens import FIELDS, MovieLensSource
from models.data.open_data import default_features, open_source
from models.data.source import Field
from models.data.tabular import TableSource
from processor.errors import BadInput


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.parquet", "parquet"),
        ("a.PQ", "parquet"),
        ("parts/*.parquet", "parquet"),
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("a.tsv.zst", "csv"),
    ],
)
def test_the_suffix_tells_the_format(path, form):
    assert format_of(path) == form


def test_the_files_of_a_folder_tell_its_format(tmp_path):
    (tmp_path / "part-0.csv.gz").touch()
    assert format_of(str(tmp_path)) == "csv"
    (tmp_path / "ratings.dat").touch()
    assert format_of(str(tmp_path)) == "movielens"


@pytest.mark.parametrize("names", [[], ["a.csv", "b.parquet"], ["train.txt"]])
def test_a_path_that_does_not_tell_is_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(BadInput, match=r"data\.format: one of parquet, csv, criteo, movielens wanted"):
        format_of(str(tmp_path))


def test_sources_open_by_format_or_suffix(tmp_path):
    (tmp_path / "a.csv").write_text("user,click\n1,0\n")
    (tmp_path / "ratings.dat").write_text("1::2::3::4\n")
    user = [Field("user", "id")]

    assert isinstance(open_source(DataConfig(str(tmp_path / "a.csv"), label="click"), user), TableSource)
    assert isinstance(open_source(DataConfig(str(tmp_path), "movielens"), [Field("movie_id", "id")]), MovieLensSource)
    (tmp_path / "day.txt").write_text("\t".join(["1"] * 40) + "\n")
    assert len(open_source(DataConfig(str(tmp_path / "day.txt"), "criteo"), []).schema.fields) == 39


def test_only_formats_with_columns_of_their_own_have_default_features():
    assert list(default_features("movielens", "")) == [f.name for f in FIELDS]
    assert default_features("csv", "a.csv") == {}
