"""The subcommands of the core, each loaded when it is asked for: `freshet serve` loads no other command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
import typer.main

COMMANDS = {
    "serve": "serve_command.serve",
    "inspect": "inspection.inspect",
    "train": "train_command.train",
    "join": "join_command.join",
    "evaluate": "evaluate_command.evaluate",
    "convert": "convert_command.convert",
    "rollback": "version_commands.rollback",
    "vectors": "vectors_command.vectors",
    "demo": "demo.demo",
    "import": "import_command.import_command",
    "compile": "compile_command.compile_command",
    "version": "version_commands.version_app",
    "delta": "delta_commands.delta_app",
    "erase": "erase_command.erase",
    "bench": "train_command.bench_app",
    "repository": "repository_commands.repository_app",
    "keys": "key_commands.keys_app",
    "key": "api_key_commands.key_app",
}
"""Module and name of each subcommand's function, or of a group's application, in the order of --help."""


class LoadedOnUse(Mapping[str, Any]):
    """Subcommands by name, in order. Looking one up loads it; names alone load nothing."""

    def __init__(self, loaders: Mapping[str, Callable[[], Any]]) -> None:
        self._loaders, self._loaded = dict(loaders), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = as_command(name, self._loaders[name]())
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


def as_command(name: str, command: Any) -> Any:
    """Return a subcommand as the group of all holds it, from a Typer application or a function.

    A function's attribute `command_class` is the class of its command, if it has one.
    """
    # Help is Markdown: as Rich's markup, words in square brackets would be styles and vanish.
    application = typer.Typer(rich_markup_mode="markdown")
    if isinstance(command, typer.Typer):
        application.add_typer(command, name=name)
    else:
        application.command(name, cls=getattr(command, "command_class", None))(command)
    return typer.main.get_group(application).commands[name]


def load(name: str) -> Any:
    """Return the function of a subcommand of the core, or the application of a group. Raises KeyError."""
    module, _, attribute = COMMANDS[name].partition(".")
    return getattr(import_module(f"{__package__}.{module}"), attribute)
