"""Implement `freshet erase`: what is kept of a user, to be forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freshet_serving.serving.commands.completion import models


def erase(
    model: Annotated[str, typer.Argument(help="The model.", autocompletion=models)],
    key: Annotated[str, typer.Argument(help="The user: the value of the column that from_events names.")],
    repository: Annotated[
        Path,
        typer.Option(
            envvar="FRESHET_REPOSITORY",
            help="The trainer's folder: the repository, or publish.trainer_folder, on the trainer's machine.",
        ),
    ],
) -> None:
    """Makes a model's trainer forget a user's events, with its next checkpoint; it need not be running."""
    from freshet_serving.processor.repository import Erasures

    Erasures.of_model(repository, model).ask(key)
    print(f"{model}: the trainer forgets the user with its next checkpoint; not reached: {Erasures.NOT_REACHED}")
