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
        Path | None,
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
    from freshet_serving.processor.repository import Erasures

    if repository is None and not server:
        raise BadInput("repository: expected the trainer's folder, or --server URL, got neither")
    if repository is not None:
        Erasures.of_model(repository, model).ask(key)
        print(f"{model}: the trainer forgets the user with its next checkpoint; not reached: {Erasures.NOT_REACHED}")
    if server:
        from freshet_serving.serving.commands.admin_client import AdminClient, quoted

        body = {"key": key} | ({"input": user_input} if user_input else {})
        reply = AdminClient(server).send_json("POST", f"/admin/models/{quoted(model)}/erase", body)
        counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in reply["erased"].items())
        asked = "; its trainer forgets the user with its next checkpoint" if reply["trainer"] else ""
        print(f"{model}: the server has erased {counts or 'nothing'}{asked}")
        for place in reply["not_reached"]:
            print(f"not reached: {place}")
