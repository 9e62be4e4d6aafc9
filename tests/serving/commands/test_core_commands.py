import subprocess
import sys

import pytest
import typer

from freshet_serving.serving.commands.core_commands import COMMANDS, LoadedOnUse, as_command, load
from freshet_serving.serving.commands.serve_command import ServeCommand

PACKAGE = "freshet_serving.serving.commands."


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_loads_under_its_name(name):
    assert as_command(name, load(name)).name == name


def test_unknown_name_is_no_command():
    with pytest.raises(KeyError):
        load("surf")


def test_serve_folds_its_help():
    assert isinstance(as_command("serve", load("serve")), ServeCommand)


def test_looking_up_a_command_loads_it_once():
    loads = []

    def sift():
        loads.append("sift")
        return lambda: None

    commands = LoadedOnUse({"sift": sift, "heap": typer.Typer})
    assert (list(commands), len(commands), "sift" in commands, "surf" in commands) == (["sift", "heap"], 2, True, False)
    assert loads == []
    assert commands["sift"] is commands["sift"]
    assert loads == ["sift"]
    assert commands.get("surf") is None


def test_serve_loads_no_other_command():
    code = (
        "import sys, typer.main\n"
        "from freshet_serving.serving.commands.cli import app\n"
        "typer.main.get_command(app).get_command(None, 'serve')\n"
        f"print(*sorted(name.removeprefix('{PACKAGE}') for name in sys.modules if name.startswith('{PACKAGE}')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == [
        "cli",
        "core_commands",
        "error_lines",
        "extension_commands",
        "folded_help",
        "serve_command",
    ]
