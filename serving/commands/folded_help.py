"""Fold the help of a command with many options: --help shows the common ones, --help-all shows all."""

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
"""The --help-all option of a command of class FoldedHelp."""


class FoldedHelp(TyperCommand):
    """A command whose --help omits its folded options; parsing and shell completion still accept them.

    Attributes:
        folded: Names of the folded parameters.
    """

    folded: frozenset[str] = frozenset()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the options that are not folded, and the number of those that are.

        Args:
            ctx: Context of the command.
            formatter: Receives the text.
        """
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
