"""Implement `freshet erase`: what is kept of a user, to be forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freshet_serving.serving.commands.completion import models

if TYPE_CHECKING:
    from freshet_serving.processor.repository import Erasures


def erase(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="The model.", autocompletion=models)],
    key: Annotated[str, typer.Argument(help="The user: the value of the column that from_events names.")],
    repository: Annotated[
        str | None,
        typer.Option(
            envvar="FRESHET_REPOSITORY",
            help="The trainer's folder: the repository, or publish.trainer_folder, on the trainer's machine.",
        ),
    ] = None,
    server: Annotated[
        str, typer.Option(help="Admin port of a server, which forgets what it keeps of the user, too.")
    ] = "",
    user_input: Annotated[
        str, typer.Option("--input", help="With --server: the input with users' keys, where there are several.")
    ] = "",
) -> None:
    """Makes a model's trainer forget a user's events, with its next checkpoint, or a server what it keeps."""
    from freshet_serving.processor.errors import BadInput

    if not repository and not server:
        raise BadInput("repository: expected the trainer's folder, or --server URL, got neither")
    no_trainer = None
    if repository:
        try:
            trainer = _trainer(repository, model)
        except BadInput as error:
            if not server:
                raise
            # The server is asked all the same: erasing there does not need the trainer.
            no_trainer = error
        else:
            trainer.ask(key)
            print(f"{model}: the trainer forgets the user with its next checkpoint; not reached: {trainer.NOT_REACHED}")
    if server:
        from freshet_serving.serving.commands.admin_client import AdminClient, quoted

        body = {"key": key} | ({"input": user_input} if user_input else {})
        reply = AdminClient(server).send_json("POST", f"/admin/models/{quoted(model)}/erase", body)
        counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in reply["erased"].items())
        asked = "; its trainer forgets the user with its next checkpoint" if reply["trainer"] else ""
        print(f"{model}: the server has erased {counts or 'nothing'}{asked}")
        for place in reply["not_reached"]:
            print(f"not reached: {place}")
        source = ctx.get_parameter_source("repository")
        # The variable is set for other commands, too; a folder that was named for this one has to be a trainer's.
        if no_trainer is not None and not reply["trainer"] and source is not None and source.name != "ENVIRONMENT":
            raise no_trainer


def _trainer(repository: str, model: str) -> Erasures:
    from freshet_serving.processor.errors import BadInput
    from freshet_serving.processor.repository import Erasures, is_address

    if is_address(repository):
        raise BadInput(
            f"repository: expected the folder of the trainer of {model[:64]!r}, got a bucket; name"
            " publish.trainer_folder, on the trainer's machine"
        )
    return Erasures.of_model(Path(repository), model)
