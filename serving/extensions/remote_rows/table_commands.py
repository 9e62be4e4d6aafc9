"""Implement `freshet tables`: copy tables into a row store, and remove them from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.commands.completion import models

if TYPE_CHECKING:
    from freshet_serving.processor.repository import VersionReader

tables_app = typer.Typer(help="Manage tables in a row store.", no_args_is_help=True)

PUSH_TIMEOUT_S = 30.0

ModelArgument = Annotated[str, typer.Argument(help="The model.", autocompletion=models)]
UrlOption = Annotated[
    str,
    typer.Option(
        envvar="FRESHET_REMOTE_URL",
        help="redis://host:port/db or redis+cluster://host:port; set a URL with a password in the environment.",
    ),
]
TableOption = Annotated[list[str] | None, typer.Option("--table", help="Table name; repeatable. [all]")]


@tables_app.command("push")
def tables_push(
    model: ModelArgument,
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    url: UrlOption,
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
    table: TableOption = None,
) -> None:
    """Copies tables of a version to a row store; skips tables that are already complete there."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from freshet_serving.processor.clock import SystemClock
    from freshet_serving.processor.extensions.remote_rows.push import push
    from freshet_serving.processor.tables.row_store import open_store

    reader = _reader(repository, model, version)
    store = open_store(url, PUSH_TIMEOUT_S, SystemClock())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(f"{name}, buckets", total=total)
            progress.update(tasks[name], completed=done)

        pushed = push(reader, table or [], store, show)
    for stored in pushed:
        print(f"{stored.name}: {stored.rows} rows pushed")
    if not pushed:
        print(f"{model}/{reader.manifest.version}: already complete")


@tables_app.command("drop")
def tables_drop(
    model: ModelArgument,
    version: Annotated[int, typer.Option(help="Version number; no server may still serve it.")],
    url: UrlOption,
    repository: Annotated[
        str | None, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models; not needed with --table.")
    ] = None,
    table: TableOption = None,
) -> None:
    """Removes tables of a version from a row store."""
    from freshet_serving.processor.clock import SystemClock
    from freshet_serving.processor.extensions.remote_rows.push import drop
    from freshet_serving.processor.tables.row_store import open_store

    if not table and repository is None:
        raise BadInput("expected --repository or --table")
    names = table or [t.name for t in _reader(str(repository), model, version).manifest.embeddings]
    dropped = drop(model, version, names, open_store(url, PUSH_TIMEOUT_S, SystemClock()))
    for stored in dropped:
        print(f"{stored.name}: dropped")
    if not dropped:
        print(f"{model}/{version}: no tables in the row store")


def _reader(root: str, model: str, version: int | None) -> VersionReader:
    from freshet_serving.processor.repository import open_repository

    return open_repository(root).version(model, version)
