"""Complete model names and generations in a shell, from the repository that `--repository` or FRESHET_REPOSITORY names.

The shell calls this on every TAB, so it only reads folder names and, for generations, the records since a snapshot; it
loads no model and uses no network. Names follow the rules for model names, so none has a special meaning in a shell.
What cannot be read completes to nothing.
"""

from __future__ import annotations

import os
from itertools import islice

import typer

from freshet_serving.processor.errors import FreshetError, NotFound

REPOSITORY = "FRESHET_REPOSITORY"


def models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of models that begin with the text."""
    from freshet_serving.processor.repository import open_repository

    try:
        return [name for name in open_repository(_folder(ctx)).models() if name.startswith(incomplete)]
    except (FreshetError, OSError, ValueError):
        return []


def generations(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return generations of the model's newest version that can be rolled back to, newest first."""
    from freshet_serving.processor.generation import UNDO_DEPTH
    from freshet_serving.processor.repository import ChangeLog, open_repository

    try:
        version = open_repository(_folder(ctx)).version(ctx.params.get("model") or "")
        change_log = ChangeLog(version)
        change_log.begin_at_snapshot()
        change_log.look()
        line = islice(change_log.history.back(change_log.history.target), 1, UNDO_DEPTH + 1)
        names = [f"{version.manifest.version}.{link.step}" for link in line]
    except (FreshetError, OSError, ValueError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _folder(ctx: typer.Context) -> str:
    # A command that talks to a server has no --repository option.
    folder = str(ctx.params.get("repository") or os.environ.get(REPOSITORY, ""))
    if not folder:
        raise NotFound("repository: expected --repository or FRESHET_REPOSITORY")
    return folder
