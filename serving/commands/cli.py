"""Define the `freshet` command: the list of its subcommands, each in a module of its own.

A command imports what it needs when it runs, models and compiler above all, so that --help and serve start fast.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from freshet_serving.processor.errors import FreshetError, printable
from freshet_serving.processor.extras import install_hint
from freshet_serving.serving.commands.api_key_commands import key_app
from freshet_serving.serving.commands.compile_command import compile_command
from freshet_serving.serving.commands.convert_command import convert
from freshet_serving.serving.commands.delta_commands import delta_app
from freshet_serving.serving.commands.demo import demo
from freshet_serving.serving.commands.evaluate_command import evaluate
from freshet_serving.serving.commands.extension_commands import ExtensibleGroup
from freshet_serving.serving.commands.import_command import import_command
from freshet_serving.serving.commands.inspection import inspect
from freshet_serving.serving.commands.join_command import join
from freshet_serving.serving.commands.key_commands import keys_app
from freshet_serving.serving.commands.repository_commands import repository_app
from freshet_serving.serving.commands.serve_command import ServeCommand, package_version, serve
from freshet_serving.serving.commands.system_errors import system_line
from freshet_serving.serving.commands.train_command import bench_app, train
from freshet_serving.serving.commands.usage_errors import usage_line
from freshet_serving.serving.commands.vectors_command import vectors
from freshet_serving.serving.commands.version_commands import rollback, version_app


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"freshet {package_version()}")
        raise typer.Exit


app = typer.Typer(
    name="freshet",
    cls=ExtensibleGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def freshet(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Online inference serving for recommendation models whose embeddings change every minute."""


app.command(cls=ServeCommand)(serve)
app.command()(inspect)
app.command()(train)
app.command()(join)
app.command()(evaluate)
app.command()(convert)
app.command()(rollback)
app.add_typer(version_app, name="version")
app.add_typer(delta_app, name="delta")
app.add_typer(bench_app, name="bench")
app.add_typer(repository_app, name="repository")
app.add_typer(keys_app, name="keys")
app.add_typer(key_app, name="key")
app.command()(vectors)
app.command()(demo)
app.command("import")(import_command)
app.command("compile")(compile_command)


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
