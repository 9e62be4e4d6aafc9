import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

import pyarrow.parquet as pq
from typer.testing import CliRunner

from freshet_serving.processor.errors import FreshetError
from freshet_serving.serving.commands.cli import app
from tests.models.evaluation.test_item_vectors import story  # noqa: F401

pytestmark = pytest.mark.tensorflow


def vectors(folder, *more):
    options = ["--items", str(folder / "items.parquet"), "--out", str(folder / "out.parquet")]
    return CliRunner().invoke(app, ["vectors", "mixed", "--repository", str(folder / "repository"), *options, *more])


def test_command_reports_the_rows_and_generation_written(story):  # noqa: F811
    folder, _ = story
    for more, generation in (((), "1.1"), (("--generation", "1.0", "--id", "item"), "1.0")):
        result = vectors(folder, *more)
        assert result.exit_code == 0, result.output
        assert f"item_vector of 2,500 items by mixed {generation} in" in result.output
        assert pq.read_metadata(folder / "out.parquet").num_rows == 2500


def test_invalid_request_gives_one_line_and_leaves_no_file(story):  # noqa: F811
    folder, _ = story
    (folder / "out.parquet").unlink(missing_ok=True)
    for more in (("--generation", "one"), ("--output", "nothing"), ("--id", "user"), ("--generation", "2.0")):
        result = vectors(folder, *more)
        assert isinstance(result.exception, FreshetError)
        assert "\n" not in str(result.exception)
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(("out", ".out"))) == []
