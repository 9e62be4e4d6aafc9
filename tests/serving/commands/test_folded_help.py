import re
from typing import Annotated, ClassVar

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.commands.folded_help import FoldedHelp, HelpAllOption
from freshet_serving.serving.serve_config import OPTIONS

SCREEN_LINES, SCREEN_COLUMNS, NARROW_COLUMNS = 60, 120, 80


class Small(FoldedHelp):
    folded = frozenset({"rare"})
    short: ClassVar = {"common": "Brief."}


def small(
    common: Annotated[str, typer.Option(help="Brief. And more.")] = "", rare: str = "", help_all: HelpAllOption = False
) -> None:
    """Does little."""
    print(f"{common} {rare}")


def run(program, *line, columns=SCREEN_COLUMNS):
    return CliRunner().invoke(program, line, env={"COLUMNS": str(columns), "NO_COLOR": "1"})


@pytest.fixture
def program():
    made = typer.Typer()
    made.command(cls=Small)(small)
    return made


def commands(command, words=()):
    yield words
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, word))


def test_help_hides_rare_options_and_states_their_number(program):
    text = run(program, "--help").output
    assert "--common" in text
    assert "--rare" not in text
    assert text.strip().splitlines()[-1].strip() == "--help-all shows 1 more options, and the values that each accepts."


def test_help_all_option_shows_everything_and_runs_nothing(program):
    done = run(program, "--rare", "x", "--help-all")
    assert done.exit_code == 0
    assert {"--common", "--rare"} <= set(done.output.split())
    assert "more options" not in done.output


def test_help_is_short_and_help_all_whole_in_any_order(program):
    for _ in range(2):
        assert "Brief. And more." not in run(program, "--help").output
        assert "Brief." in run(program, "--help").output
        assert "Brief. And more." in run(program, "--help-all").output


def test_hidden_option_is_accepted(program):
    assert run(program, "--rare", "x", "--common", "y").output == "y x\n"


@pytest.mark.parametrize("words", [*commands(typer.main.get_command(app))], ids=" ".join)
def test_no_help_is_longer_than_a_screen(words):
    assert len(run(app, *words, "--help").output.splitlines()) <= SCREEN_LINES


def test_serve_help_shows_common_options_and_help_all_every_option():
    flags = {f"--{field.name.replace('_', '-')}": option.folded for field, option in OPTIONS}
    text = run(app, "serve", "--help").output
    shown = set(re.findall(r"│ (--[\w-]+)", text))
    assert shown == {flag for flag, folded in flags.items() if not folded} | {"--config", "--help", "--help-all"}
    assert text.strip().splitlines()[-1].strip() == (
        f"--help-all shows {sum(flags.values())} more options, and the values that each accepts."
    )
    assert set(re.findall(r"│ (--[\w-]+)", run(app, "serve", "--help-all").output)) >= set(flags)


def test_help_fits_a_narrow_terminal():
    text = run(app, "serve", "--help", columns=NARROW_COLUMNS).output
    assert max(map(len, text.splitlines())) <= NARROW_COLUMNS
    assert len(text.splitlines()) <= SCREEN_LINES
    assert "--max-body-bytes" in text
