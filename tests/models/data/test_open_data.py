import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.movielens import FIELDS, MovieLensSource
from freshet_serving.models.data.open_data import default_features, open_source
from freshet_serving.models.data.source import Field
from freshet_serving.models.data.tabular import TableSource
from freshet_serving.processor.errors import BadInput


def test_sources_open_by_format_or_suffix(tmp_path):
    (tmp_path / "a.csv").write_text("user,click\n1,0\n")
    (tmp_path / "ratings.dat").write_text("1::2::3::4\n")
    user = [Field("user", "id")]

    assert isinstance(open_source(DataConfig(str(tmp_path / "a.csv"), label="click"), user), TableSource)
    assert isinstance(open_source(DataConfig(str(tmp_path), "movielens"), [Field("movie_id", "id")]), MovieLensSource)
    (tmp_path / "day.txt").write_text("\t".join(["1"] * 40) + "\n")
    assert len(open_source(DataConfig(str(tmp_path / "day.txt"), "criteo"), []).schema.fields) == 39


def test_only_formats_with_fixed_columns_have_default_features():
    assert list(default_features("movielens", "")) == [f.name for f in FIELDS]
    assert default_features("csv", "a.csv") == {}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"features": {"clicked_at": {"kind": "float", "from": "hist"}}},
            r"^features.clicked_at: expected numbers for kind 'float', got column 'hist' of type string",
        ),
        (
            {
                "features": {"item": {"kind": "id"}},
                "sequences": {"seen": {"columns": {"item": "price"}, "tables": {"item": "item"}}},
            },
            r"^sequences.seen.columns: expected lists of integers for kind 'ids', got column 'price' of type double",
        ),
    ],
)
def test_refusal_names_the_section_that_reads_a_column(tmp_path, sections, message):
    pq.write_table(pa.table({"item": [1], "hist": ["a"], "price": [0.5], "y": [1]}), tmp_path / "a.parquet")
    config = parse_config({"model": {"name": "m"}, "data": {"path": str(tmp_path), "label": "y"}} | sections)
    with pytest.raises(BadInput, match=message):
        open_source(config.data, config.features)
