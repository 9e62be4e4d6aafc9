"""Implement `freshet recordings`: use the requests that a server has recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from freshet_serving.serving.commands.completion import models

REQUESTS = 256
"""Requests that are stored, spread over the files."""

recordings_app = typer.Typer(help="Use the requests that a server recorded.", no_args_is_help=True)


@recordings_app.command("warmup")
def recordings_warmup(
    model: Annotated[str, typer.Argument(help="The model.", autocompletion=models)],
    recordings: Annotated[str, typer.Option(help="Folder of the server's recordings, or one of its files.")],
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
) -> None:
    """Stores 256 recorded requests, spread over the files, in a version for warm-up whenever it is loaded."""
    from freshet_serving.processor.repository import WARMUP, Keyring, add_file, dump_warmup, open_repository
    from freshet_serving.serving.extensions.recorder.request_recorder import read_requests

    files = open_repository(repository).with_keys(Keyring.of_writer()).version(model, version)
    chosen = read_requests(recordings, model, files.manifest.inputs, REQUESTS)
    add_file(files, WARMUP, dump_warmup(chosen))
    print(f"{model} {files.manifest.version}: {len(chosen)} requests stored for warm-up")
