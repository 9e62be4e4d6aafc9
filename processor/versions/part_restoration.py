"""Take one part of a version back, its features or its rows and weights, and leave the other as it is served.

A rollback moves the log's head to an earlier generation, so it takes back everything. One part goes back by a delta:
what differs from the earlier generation, computed from the version's files and committed like any other delta. So
servers follow it, the guard checks it, and a trainer sees the generation that it has to continue from.
"""

from __future__ import annotations

from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.repository import ChangeLog, VersionContents, VersionReader, part_difference


def publish_part(files: VersionReader, change_log: ChangeLog, generation: Generation, only: str, unix_s: float) -> bool:
    """Commit the delta that takes a part back; return False if the part has not changed since.

    Args:
        files: The version.
        change_log: Its change log, just read.
        generation: The generation whose part to serve.
        only: "entities" for the features of entities, "model" for rows and dense weights.
        unix_s: The time.

    Raises:
        NotFound: The generation is not on the served line.
        NotReady: The repository cannot be written.
    """
    change_log.may_write()
    if generation.step < change_log.history.base.step:
        change_log.reach_back()
    head, link = change_log.history.head, change_log.history.on_line(generation.step)
    if link is None:
        raise NotFound(f"rollback: generation {generation} of model {files.manifest.model!r} does not exist")
    contents, past = (VersionContents(files, change_log, at) for at in (head, link))
    tables, dense = part_difference(contents, past, only)
    if not tables and not dense:
        return False
    manifest, step = files.manifest, change_log.history.top + 1
    change_log.publish(Delta(manifest.model, manifest.version, step, head.step, tables, dense, unix_s))
    return True
