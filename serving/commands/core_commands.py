"""The subcommands of the core, each loaded when it is asked for: `freshet serve` loads no other command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer
import typer.main

NAMES = (
    "serve", "inspect", "train", "join", "evaluate", "convert", "rollback", "vectors", "demo", "import", "compile",
    "version", "delta", "erase", "bench", "repository", "keys", "key",
)  # fmt: skip
"""In the order of --help."""


class LoadedOnUse(Mapping[str, Any]):
    """Subcommands by name, in order. Looking one up loads it; names alone load nothing."""

    def __init__(self, loaders: Mapping[str, Callable[[], Any]]) -> None:
        """Keep the loaders, which return a function, or a Typer application for a group."""
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
    """Return the function of a subcommand of the core, or the application of a group."""
    match name:
        case "serve":
            from freshet_serving.serving.commands.serve_command import serve

            return serve
        case "inspect":
            from freshet_serving.serving.commands.inspection import inspect

            return inspect
        case "train":
            from freshet_serving.serving.commands.train_command import train

            return train
        case "join":
            from freshet_serving.serving.commands.join_command import join

            return join
        case "evaluate":
            from freshet_serving.serving.commands.evaluate_command import evaluate

            return evaluate
        case "convert":
            from freshet_serving.serving.commands.convert_command import convert

            return convert
        case "rollback":
            from freshet_serving.serving.commands.version_commands import rollback

            return rollback
        case "vectors":
            from freshet_serving.serving.commands.vectors_command import vectors

            return vectors
        case "demo":
            from freshet_serving.serving.commands.demo import demo

            return demo
        case "import":
            from freshet_serving.serving.commands.import_command import import_command

            return import_command
        case "compile":
            from freshet_serving.serving.commands.compile_command import compile_command

            return compile_command
        case "version":
            from freshet_serving.serving.commands.version_commands import version_app

            return version_app
        case "delta":
            from freshet_serving.serving.commands.delta_commands import delta_app

            return delta_app
        case "erase":
            from freshet_serving.serving.commands.erase_command import erase

            return erase
        case "bench":
            from freshet_serving.serving.commands.train_command import bench_app

            return bench_app
        case "repository":
            from freshet_serving.serving.commands.repository_commands import repository_app

            return repository_app
        case "keys":
            from freshet_serving.serving.commands.key_commands import keys_app

            return keys_app
        case "key":
            from freshet_serving.serving.commands.api_key_commands import key_app

            return key_app
        case _:
            raise KeyError(name)
