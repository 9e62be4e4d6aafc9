import tomllib

from typer.testing import CliRunner

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.open_data import open_source
from freshet_serving.serving.commands.cli import app
from tests.models.data.sources import everything


def convert(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_printed_configuration_reads_equal_batches_from_the_copy(tmp_path):
    line = "\t".join(["1", *["3"] * 13, *["68fd1e64"] * 26])
    (tmp_path / "train.txt").write_text(f"{line}\n" * 20)
    before = {"model": {"name": "ads"}, "data": {"path": str(tmp_path / "train.txt"), "format": "criteo"}}
    (tmp_path / "ads.toml").write_text(
        f'[model]\nname = "ads"\n[data]\npath = "{tmp_path}/train.txt"\nformat = "criteo"\n'
    )
    done = convert("--config", tmp_path / "ads.toml", tmp_path / "ads.parquet")

    assert done.exit_code == 0, done.output
    after = parse_config(tomllib.loads(done.stdout) | {"model": {"name": "ads"}})
    was = parse_config(before)
    assert after.features == was.features
    batches = [list(map(everything, open_source(c.data, c.features).batches(8))) for c in (was, after)]
    assert batches[0] == batches[1]


def test_existing_file_is_not_replaced_and_features_not_repeated(tmp_path):
    (tmp_path / "x.csv").write_text("user,click,ts,w\n1,0,5,1\n2,1,6,2\n")
    (tmp_path / "x.toml").write_text(
        f'[model]\nname = "x"\n[data]\npath = "{tmp_path}/x.csv"\nlabel = "click"\ntime = "ts"\nweight = "w"\n'
        '[features.user]\nkind = "id"\n[features.hour]\ntransform = "hour"\n'
    )
    done = convert("--config", tmp_path / "x.toml", tmp_path / "x.parquet")

    assert tomllib.loads(done.stdout) == {
        "data": {
            "path": str(tmp_path / "x.parquet"), "format": "parquet", "label": "click", "time": "ts", "weight": "w",
        }
    }  # fmt: skip
    again = convert("--config", tmp_path / "x.toml", tmp_path / "x.parquet")
    assert "x.parquet already exists" in str(again.exception)
    assert convert("--config", tmp_path / "x.toml", tmp_path / "x.parquet", "--overwrite").exit_code == 0


def test_copy_into_the_data_folder_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("user,click\n1,0\n")
    (tmp_path / "x.toml").write_text(
        f'[model]\nname = "x"\n[data]\npath = "{tmp_path}/data"\nlabel = "click"\n[features.user]\nkind = "id"\n'
    )
    done = convert("--config", tmp_path / "x.toml", tmp_path / "data" / "y.parquet")

    assert str(done.exception) == (
        "convert: expected a file outside data.path, got 'y.parquet', which would be read as data"
    )
    assert convert("--config", tmp_path / "x.toml", tmp_path / "y.parquet").exit_code == 0
