"""Take one part of a version back, its features or its rows and weights, and leave the other as it is served.

A rollback moves the log's head, so it takes back everything. One part goes back by a delta: the difference to the
earlier generation, computed from the version's files and committed like any other delta. So servers follow it, the
guard checks it, and a trainer sees the generation that it has to continue from.

The delta is computed and committed without the model's lock, on top of the newest generation: if another writer is
faster, only the keys of its deltas are compared again. It names the generation that it goes back to. A server whose
guard finds it out of line serves it if every row and weight is the one served in that generation.
"""

from __future__ import annotations

from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.repository import ChainLink, ChangeLog, part_difference


def publish_part(change_log: ChangeLog, generation: Generation, only: str, unix_s: float) -> ChainLink | None:
    """Commit the delta that takes a part ("entities" or "model") back, on a log that nothing else uses meanwhile.

    Returns its generation, None if the part has not changed since. Raises NotFound if the generation is not on the
    served line, or NotReady.
    """
    change_log.may_write()
    manifest = change_log.manifest
    change_log.look()
    if generation.step < change_log.history.base.step:
        change_log.reach_back()

    def past() -> ChainLink:
        link = change_log.history.on_line(generation.step)
        if link is None:
            raise NotFound(f"rollback: generation {generation} of model {manifest.model!r} does not exist")
        return link

    difference = part_difference(change_log, past(), only)

    def make() -> Delta | None:
        nonlocal difference
        link = past()
        if not difference.follow(change_log):
            difference = part_difference(change_log, link, only)
        if not difference.tables and not difference.dense:
            return None
        history = change_log.history
        return Delta(
            manifest.model,
            manifest.version,
            history.top + 1,
            history.head.step,
            difference.tables,
            difference.dense,
            unix_s,
            restores=link.step,
        )

    return change_log.publish_on_head(make)
