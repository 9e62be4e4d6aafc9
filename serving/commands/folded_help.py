"""Help of a command with many options: --help shows what most need, --help-all everything."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        assert isinstance(ctx.command, FoldedHelp)
        ctx.command.format_all(ctx)
        raise typer.Exit


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show every option and exit.")
]
"""The option of a command of class FoldedHelp that shows all others."""


class FoldedHelp(TyperCommand):
    """A command whose --help leaves out its folded options; the line and a shell's completion take them all the same.

    Attributes:
        folded: Names of parameters.
    """

    folded: frozenset[str] = frozenset()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the options that are not folded, and how many are."""
        folded = [each for each in self.params if each.name in self.folded and isinstance(each, TyperOption)]
        self.epilog = f"--help-all shows {len(folded)} more options."
        for each in folded:
            each.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = None
            for each in folded:
                each.hidden = False

    def format_all(self, ctx: Any) -> None:
        """Print every option."""
        super().format_help(ctx, ctx.make_formatter())
