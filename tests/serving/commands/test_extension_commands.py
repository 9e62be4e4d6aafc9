"""Commands of extensions are listed in their place, and refused by name where they are missing."""

import pytest
import typer
from typer.testing import CliRunner

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.commands import extension_commands
from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.commands.extension_commands import PLACES, Place
from freshet_serving.serving.ports import SERVER, ServerExtension


def names():
    return list(typer.main.get_group(app).commands)


@pytest.fixture
def toy(monkeypatch):
    """Adds an extension that offers a command."""

    def add(name, command):
        monkeypatch.setattr(
            SERVER, "_known", {**SERVER.all(), "toy": ServerExtension(commands={name: lambda: command})}
        )

    return add


@pytest.mark.parametrize("command", PLACES)
def test_command_of_an_extension_is_listed_in_its_place(command):
    assert names()[names().index(command) - 1] == PLACES[command].after
    assert PLACES[command].extension in SERVER.all()


@pytest.mark.parametrize("command", PLACES)
def test_missing_command_is_refused_by_its_extension(command, without_extensions):
    without_extensions(PLACES[command].extension)
    assert command not in names()
    result = CliRunner().invoke(app, [command, "--help"], prog_name="freshet")
    assert isinstance(result.exception, BadInput)
    assert f"command '{command}' needs the extension '{PLACES[command].extension}': " in str(result.exception)


def test_new_extension_adds_a_command_at_the_end(toy):
    def sift():
        print("sifted")

    toy("sift", sift)
    assert names()[-1] == "sift"
    assert CliRunner().invoke(app, ["sift"]).output == "sifted\n"


def test_command_may_be_listed_after_one_of_an_extension(toy, monkeypatch):
    monkeypatch.setattr(extension_commands, "PLACES", {**PLACES, "sift": Place("toy", after="fleet")})
    toy("sift", lambda: None)
    assert names()[names().index("sift") - 1] == "fleet"


def test_extension_adds_a_group_of_commands(toy):
    sand = typer.Typer()
    sand.command("sift")(lambda: print("sifted"))
    sand.command("heap")(lambda: print("heaped"))
    toy("sand", sand)
    assert CliRunner().invoke(app, ["sand", "heap"]).output == "heaped\n"


def test_command_of_the_core_cannot_be_replaced(toy):
    toy("serve", lambda: None)
    with pytest.raises(BadInput, match="an extension offers the command 'serve', which is the core's: remove the"):
        names()
