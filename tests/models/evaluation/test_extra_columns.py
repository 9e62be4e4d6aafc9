import pytest

pytest.importorskip("pyarrow", reason="tables need the train extra")

from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Field
from freshet_serving.models.evaluation.extra_columns import ExtraColumns
from freshet_serving.processor.errors import BadInput
from tests.models.evaluation.conftest import CHANNELS, write_table
from tests.models.training.streams import make_batch

ROWS = 100


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("extra") / "clicks.parquet"
    write_table(path, make_batch(ROWS))
    return DataConfig(str(path), "parquet", "clicked")


def test_extra_columns_match_their_rows_for_any_batching(data):
    source = open_source(data, [Field("user", "id"), Field("hour", "id")])
    extra = ExtraColumns(["channel", "hour", "price"], source, data, 16)
    batches = list(source.batches(16))
    cut = batches[3].slice(0, 5)
    for batch in (*batches[:3], cut, *source.batches(16, cut.end), batches[0], batches[5], batches[6]):
        columns = extra.of(batch)
        assert set(columns) == {"channel", "hour", "price"}
        assert columns["hour"] is batch.columns["hour"]
        wanted = [CHANNELS[n % 4].encode() for n in range(batch.start, batch.end)]
        assert columns["channel"].tolist() == wanted
        assert len(columns["price"]) == len(batch)


def test_file_is_not_opened_when_features_include_the_columns(data):
    source = open_source(data, [Field("user", "id")])
    extra = ExtraColumns(["user"], source, DataConfig("nowhere", "parquet", "clicked"), 16)
    batch = next(source.batches(16))
    assert extra.of(batch) == {"user": batch.columns["user"]}


def test_cells_of_text_files_stay_text(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("user,clicked,channel\n1,0,007\n2,1,x\n3,1,\n")
    config = DataConfig(str(path), "csv", "clicked")
    source = open_source(config, [Field("user", "id")])
    columns = ExtraColumns(["channel"], source, config, 8).of(next(source.batches(8)))
    assert columns["channel"].tolist() == [b"007", b"x", b""]


def test_changed_files_and_missing_columns_are_refused(data, tmp_path):
    source = open_source(data, [Field("user", "id")])
    with pytest.raises(BadInput, match="evaluate: column 'nope': expected exactly one"):
        ExtraColumns(["nope"], source, data, 16)
    short = DataConfig(str(tmp_path / "short.parquet"), "parquet", "clicked")
    write_table(tmp_path / "short.parquet", make_batch(10))
    extra = ExtraColumns(["channel"], source, short, 16)
    with pytest.raises(BadInput, match="the files have changed"):
        extra.of(next(source.batches(16)))
