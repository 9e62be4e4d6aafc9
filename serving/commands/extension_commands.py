"""Merge the subcommands of extensions (serving.ports) into those of `freshet`, each in its place of --help.

Invariants
- A command of an extension that is not there is refused by a line that names the extension.
- The application is built when it runs, so an extension that cannot be used is one line on stderr too.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial
from typing import Any, NamedTuple, cast

import typer.core

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.ports import missing
from freshet_serving.serving.commands.core_commands import COMMANDS, LoadedOnUse, load
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

    def __init__(self, **options: Any) -> None:
        """Merge the extensions' subcommands into the core's; none is loaded yet.

        Raises BadInput if an extension offers a command of the core, or cannot be used.
        """
        offered = SERVER.offers("commands")
        if taken := sorted(offered.keys() & COMMANDS.keys()):
            raise BadInput(f"an extension offers the command {taken[0]!r}, which is the core's: remove the extension")
        names = list(COMMANDS)
        # In the order of PLACES: one may be listed after another.
        for name in [name for name in dict.fromkeys((*PLACES, *offered)) if name in offered]:
            after = PLACES[name].after if name in PLACES else names[-1]
            names.insert(names.index(after) + 1 if after in names else len(names), name)
        super().__init__(**options)
        loaders = {name: offered.get(name) or partial(load, name) for name in names}
        # Nothing adds commands to the group once it is made.
        self.commands = cast("MutableMapping[str, Any]", LoadedOnUse(loaders))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a subcommand, or None. Raises BadInput if it needs an extension that is not there."""
        command = super().get_command(ctx, cmd_name)
        # A shell that completes has no use for an error.
        if command is None and cmd_name in PLACES and not ctx.resilient_parsing:
            raise missing(f"command {cmd_name!r}", PLACES[cmd_name].extension)
        return command
