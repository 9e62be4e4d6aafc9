import inspect
import re

import pytest
from typer.testing import CliRunner

from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.options import options_of
from freshet_serving.serving.commands import serve_command as command
from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.serve_config import ENV_PREFIX, HEADINGS, KINDS, OPTIONS, SECTIONS, ServeConfig
from tests.serving.commands.running import run

FIXED = {"max_inflation", "max_json_bytes", "max_nodes"}
"""Limits that are no options."""


def test_every_configuration_field_except_sections_and_fixed_limits_is_an_option():
    fields = set(inspect.signature(ServeConfig).parameters)
    assert fields - {field.name for field, _ in OPTIONS} == {*SECTIONS, "version", *FIXED}
    assert [p for p in inspect.signature(command.serve).parameters if p not in ("config", "help_all")] == list(KINDS)


def test_every_option_has_help_under_a_known_heading():
    for field, option in options_of(ServeConfig):
        assert option.help, field.name
        assert option.heading in HEADINGS, field.name
        assert not option.help.endswith("."), field.name


def test_help_groups_options_with_unit_values_and_default():
    text = CliRunner().invoke(app, ["serve", "--help-all"], env={"COLUMNS": "220", "NO_COLOR": "1"}).output
    assert re.findall(r"─ (\w[\w ]*\w) ─", text) == ["Options", *HEADINGS]
    assert "Deadline of requests that set none. Milliseconds, 0 (none) to 3600000. [0]" in text
    assert "Minimum level of the log; on stderr. One of debug, info, warning, error. [info]" in text
    assert "Serve only these models; separated by commas. [all]" in text


def test_options_are_read_from_command_line_and_environment(monkeypatch, tmp_path):
    made = []

    class Server:
        def __init__(self, config, version, layout, fork_server, shutdown_watchdog, start_s):
            made.append(config)

        def run(self):
            return 0

    monkeypatch.setattr("freshet_serving.serving.server.Server", Server)
    monkeypatch.setattr(command, "log_to_stderr", lambda level, form: None)
    file = tmp_path / "serve.toml"
    file.write_text("undo_depth = 3\nhttp_port = 1\n")
    line = [
        "serve",
        "--repository",
        str(tmp_path),
        "--strict",
        "--models",
        "a, b",
        "--batch-window-us",
        "20",
        "--config",
        str(file),
    ]
    result = CliRunner().invoke(app, line, env={f"{ENV_PREFIX}HTTP_PORT": "2"})
    assert result.exit_code == 0, result.output
    (config,) = made
    assert (config.models, config.batch_window_us, config.http_port, config.undo_depth) == (["a", "b"], 20.0, 2, 3)
    assert config.strict


def test_unknown_model_name_error_lists_the_existing_models(tmp_path):
    for name in ("ads", "ctr"):
        (tmp_path / name).mkdir()
    with pytest.raises(NotFound, match=r"^model 'nope' is not in the repository, which holds ads, ctr$"):
        run("serve", "--repository", str(tmp_path), "--models", "ctr,nope")
