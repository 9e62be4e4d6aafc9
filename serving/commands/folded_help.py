"""Fold the help of a command with many options: --help shows the common ones, --help-all shows all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperOption


def _show_all(ctx: typer.Context, value: bool) -> None:
    if value:
        assert isinstance(ctx.command, FoldedHelp)
        ctx.command.format_all(ctx)
        raise typer.Exit


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show every option and exit.")
]
"""The --help-all option of a command of class FoldedHelp."""


class FoldedHelp(TyperCommand):
    """A command whose --help fits a screen: it omits folded options, and shortens the help of others.

    Parsing and shell completion accept folded options too.

    Attributes:
        folded: Names of the folded parameters.
        short: Help of a parameter in --help, by its name; --help-all shows the whole.
    """

    folded: ClassVar[frozenset[str]] = frozenset()
    short: ClassVar[Mapping[str, str]] = {}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the options that are not folded, by their short help, and the number of those that are."""
        options = [each for each in self.params if isinstance(each, TyperOption)]
        folded = [each for each in options if each.name in self.folded]
        whole = [each.help for each in options]
        self.epilog = f"--help-all shows {len(folded)} more options, and the values that each accepts."
        for each in options:
            each.help = self.short.get(str(each.name), each.help)
        for each in folded:
            each.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = None
            for each, text in zip(options, whole, strict=True):
                each.help = text
            for each in folded:
                each.hidden = False

    def format_all(self, ctx: Any) -> None:
        super().format_help(ctx, ctx.make_formatter())
