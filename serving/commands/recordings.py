"""`freshet recordings`: what a server has recorded, put to use."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.package.warmup import MAX_REQUESTS

recordings_app = typer.Typer(help="Requests that a server has recorded.", no_args_is_help=True)


@recordings_app.command("warmup")
def recordings_warmup(
    model: Annotated[str, typer.Argument(help="The model.")],
    recordings: Annotated[str, typer.Option(help="Folder that the server recorded to, or one file of it.")],
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    version: Annotated[int | None, typer.Option(help="A version; the newest when left out.")] = None,
    requests: Annotated[int, typer.Option(min=1, max=MAX_REQUESTS, help="How many, spread over the files.")] = 256,
) -> None:
    """Puts recorded requests into a version, which is warmed with them whenever it is loaded."""
    from processor.errors import NotFound
    from processor.package.repository import Repository
    from processor.package.version import VersionReader, add_file
    from processor.package.warmup import WARMUP, dump_warmup
    from serving.telemetry.recorder import read_requests

    found = Repository(repository)
    versions = found.versions(model)
    if not versions or (version is not None and version not in versions):
        raise NotFound(
            f"model {model[:64]!r}{'' if version is None else f' version {version}'} is not in the repository"
        )
    number = versions[-1] if version is None else version
    folder = found.folder(model, number)
    chosen = read_requests(recordings, model, VersionReader(folder).manifest.inputs, requests)
    add_file(folder, WARMUP, dump_warmup(chosen))
    print(f"{model} {number}: {len(chosen)} requests to warm up with")
