"""Implement `freshet repository`: show what a repository takes on disk, and remove what is not needed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from freshet_serving.processor.generation import UNDO_DEPTH
from freshet_serving.serving.commands.completion import models

repository_app = typer.Typer(help="Maintain a folder of models.", no_args_is_help=True)


@repository_app.callback()
def repository_group() -> None:
    """Keeps `prune` a command of a group, though it is the only one."""


@repository_app.command("prune")
def prune(
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    model: Annotated[str | None, typer.Option(help="Only this model. [all]", autocompletion=models)] = None,
    keep: Annotated[
        int, typer.Option(min=0, help="Generations of each version that stay available for rollback.")
    ] = UNDO_DEPTH,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
) -> None:
    """Removes files that are no longer needed: deltas contained in a snapshot, older snapshots, unfinished writes.

    Never removes a version or a record; safe while servers and trainers are running. Do not use it for models with
    tables in a row store: their servers start from all deltas.
    """
    from freshet_serving.processor.repository import (
        CANDIDATES,
        WITHDRAWN,
        ChangeLog,
        open_repository,
        prunable,
        unfinished,
    )

    store, now_s = open_repository(repository), time.time()
    if model is not None:
        store.version(model)
    total = 0
    for name in [model] if model is not None else store.models():
        unneeded = [
            path
            for folder in (store.root / name, store.root / name / WITHDRAWN, store.root / name / CANDIDATES)
            for path in unfinished(folder, now_s)
        ]
        for number in store.versions(name):
            files = store.version(name, number)
            # Read the log as it is on disk: nothing is adopted, so that --dry-run writes nothing.
            change_log = ChangeLog(files)
            change_log.look()
            unneeded += prunable(files.storage, change_log.history, keep, now_s)
        for each in unneeded:
            shown = Path(each.path).relative_to(store.root).as_posix()
            print(f"{shown}: {each.why}, {each.nbytes:,} bytes")
            total += each.nbytes
            if not dry_run:
                each.remove()
    print(f"{total:,} bytes {'would be' if dry_run else 'were'} freed")
