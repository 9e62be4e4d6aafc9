"""Define the `freshet` command, whose subcommands are loaded on use (core_commands, extension_commands).

A command imports what it needs when it runs, models and compiler above all, so that --help and serve start fast.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from freshet_serving.processor.errors import FreshetError, printable
from freshet_serving.processor.extras import install_hint
from freshet_serving.serving.commands.error_lines import system_line, usage_line
from freshet_serving.serving.commands.extension_commands import ExtensibleGroup


def _tell_version(value: bool) -> None:
    if value:
        from freshet_serving.serving.commands.serve_command import package_version

        print(f"freshet {package_version()}")
        raise typer.Exit


app = typer.Typer(
    name="freshet",
    cls=ExtensibleGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def freshet(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Online inference serving for recommendation models whose embeddings change every minute."""


def main() -> None:
    """Run the `freshet` command.

    A FreshetError, a usage error, what the system refuses, or an extra that is not installed becomes one line on stderr
    and exit code 2; 3 if a gate refused a version.
    """
    try:
        code = app(prog_name="freshet", standalone_mode=False)
    except FreshetError as error:
        _refuse(str(error), error.exit_code)
    except ImportError as error:
        if (line := install_hint("this command", error)) is None:
            raise
        _refuse(line)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        if not hasattr(error, "format_message"):
            if (line := system_line(error)) is None:
                raise
            _refuse(line)
        if type(error).__name__ == "NoArgsIsHelpError":
            # The help text has already been printed.
            sys.exit(2)
        _refuse(usage_line(error))
    sys.exit(code or 0)


def _refuse(line: str, code: int = 2) -> NoReturn:
    print(f"freshet: {printable(line)}", file=sys.stderr)
    sys.exit(code)
