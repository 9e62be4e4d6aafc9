"""Merge the subcommands of extensions (serving.ports) into those of `freshet`, each in its place of --help.

Invariants
- A command of an extension that is not there is refused by a line that names the extension.
- The application is built when it runs, so an extension that cannot be used is one line on stderr too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
import typer.core
import typer.main

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.ports import missing
from freshet_serving.serving.ports import SERVER


class Place(NamedTuple):
    """The extension of a command, and its place in --help."""

    extension: str
    after: str


PLACES = {
    "explain": Place("explaining", after="inspect"),
    "fleet": Place("fleet", after="rollback"),
    "tables": Place("remote_rows", after="bench"),
    "recordings": Place("recorder", after="tables"),
}
"""Commands of Freshet's own extensions, each below what it is listed after; --help lists those of others last."""


class ExtensibleGroup(typer.core.TyperGroup):
    """A group of subcommands, with those of extensions."""

    def __init__(self, *, commands: Mapping[str, Any], **options: Any) -> None:
        """Merge the extensions' subcommands.

        Args:
            commands: The core's subcommands, in the order of --help.
            options: Options of the group.

        Raises:
            BadInput: An extension offers a command of the core, or cannot be used.
        """
        offered = _offered()
        if taken := sorted(offered.keys() & commands.keys()):
            raise BadInput(f"an extension offers the command {taken[0]!r}, which is the core's: remove the extension")
        names = list(commands)
        # In the order of PLACES: one may be listed after another.
        for name in [name for name in dict.fromkeys((*PLACES, *offered)) if name in offered]:
            after = PLACES[name].after if name in PLACES else names[-1]
            names.insert(names.index(after) + 1 if after in names else len(names), name)
        every = {**commands, **offered}
        super().__init__(commands={name: every[name] for name in names}, **options)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a subcommand, or None.

        Args:
            ctx: Context of the command line.
            cmd_name: Its name.

        Raises:
            BadInput: It needs an extension that is not there.
        """
        command = super().get_command(ctx, cmd_name)
        # A shell that completes has no use for an error.
        if command is None and cmd_name in PLACES and not ctx.resilient_parsing:
            raise missing(f"command {cmd_name!r}", PLACES[cmd_name].extension)
        return command


def _offered() -> dict[str, Any]:
    """Return the extensions' subcommands."""
    application = typer.Typer()
    for name, load in SERVER.offers("commands").items():
        command = load()
        if isinstance(command, typer.Typer):
            application.add_typer(command, name=name)
        else:
            application.command(name)(command)
    return dict(typer.main.get_group(application).commands)
