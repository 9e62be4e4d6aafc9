"""What records, or reads recordings, is refused by name without the recorder."""

from typer.testing import CliRunner

from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.extensions.admin.example_requests import ExampleRequests
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.ports import SERVER


def test_command_is_refused_without_the_recorder(without_extensions):
    without_extensions("recorder")
    result = CliRunner().invoke(app, ["recordings", "warmup"], prog_name="freshet")
    assert "command 'recordings' needs the extension 'recorder'" in str(result.exception)


def test_command_of_a_missing_repository_is_refused(tmp_path):
    asked = ["recordings", "warmup", "small", "--recordings", str(tmp_path), "--repository", str(tmp_path / "none")]
    result = CliRunner().invoke(app, asked, prog_name="freshet")
    assert "is not a folder; create it" in str(result.exception)


def test_nothing_is_recorded_unless_asked():
    (create,) = SERVER.offers("observers").values()
    assert create(FrontendOptions(), "w0") is None


def test_examples_are_not_of_recordings_without_the_recorder(tmp_path, without_extensions):
    without_extensions("recorder")
    assert ExampleRequests(str(tmp_path))._recorded(None) is None
