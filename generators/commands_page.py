"""Generate the tables of docs/reference/commands.md from the commands and their options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from freshet_serving.serving.commands.cli import app

ELSEWHERE = {"serve": "Options: [options.md](options.md)."}
"""Commands whose options have a page of their own."""
HEAD = "| option | default | description |\n|---|---|---|\n"


def page() -> str:
    parts = []
    for name, command in sorted(_commands("freshet", typer.main.get_command(app))):
        parts.append(f"## {name}\n\n{_cell(' '.join((command.help or '').split()))}\n")
        if (options := ELSEWHERE.get(name.removeprefix("freshet "))) is not None:
            parts.append(f"{options}\n")
        elif rows := [_row(parameter) for parameter in command.params if parameter.name != "help"]:
            parts.append(HEAD + "".join(rows))
    return "\n".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, subcommand in inner.items():
        yield from _commands(f"{name} {word}", subcommand)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}`"
    else:
        shown = [*parameter.opts, *(() if parameter.is_flag else parameter.secondary_opts)]
        name = ", ".join(f"`{option}`" for option in shown)
    text = _cell(parameter.help or "")
    if envvar := getattr(parameter, "envvar", None):
        text = f"{text} Environment variable: `{envvar}`."
    return f"| {name} | {_default(parameter)} | {text} |\n"


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if default in (None, "", False) or callable(default) or isinstance(default, list | tuple):
        return ""
    return "on" if default is True else f"`{default}`"


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")
