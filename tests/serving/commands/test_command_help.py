from typer.testing import CliRunner

from freshet_serving.serving.commands.cli import app


def shown(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return " ".join(result.stdout.split())


def test_square_brackets_stay_in_help():
    assert "[all installed]" in shown("compile")
    assert "the [data] section that reads it" in shown("convert")
    assert "Version of the model. [newest]" in shown("compile")
