"""What a rollback took back: the rows and weights that undone deltas had changed, as they are served now.

A trainer that goes on from undone weights would bring them back with its next delta. So it puts back what is said here
before it publishes again. Cost is that of reading the deltas of the version, and the base of the tables in question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import ChainLink, ChangeLog, VersionContents, VersionReader

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RollbackPatch:
    """What to put back. generation: what is served. undone: what the trainer stood on.

    rows: by table, keys int64 [m] ascending and their rows as served, float32 [m, dim]. removed: by table, keys int64
    [r] that have no row. dense: by name, weights as served. Keys of a table of strings are as Publisher.ids() gives
    them.
    """

    generation: Generation
    undone: Generation
    rows: dict[str, tuple[Int64s, Float32s]]
    removed: dict[str, Int64s]
    dense: dict[str, Float32s]


def rollback_patch_since(version: VersionReader, change_log: ChangeLog, stood_on: ChainLink) -> RollbackPatch:
    """What a trainer that stood on a generation has to put back to go on from the head of the chain. Raises NotFound
    where the files that would tell are gone."""
    history = change_log.history
    line = {link.digest for link in history.back(history.head)}
    touched: dict[str, list[Int64s]] = {table.name: [] for table in version.manifest.tables}
    names: set[str] = set()
    # A history that was read anew, further back, has the link with its parent.
    for link in history.back(history.links.get(stood_on.digest, stood_on)):
        if link.digest in line:
            break
        delta = change_log.read_delta(link)
        for name, table in delta.tables.items():
            touched[name] += [table.keys, table.removed]
        names |= delta.dense.keys()
    else:
        raise NotFound(f"publisher: what led to {version.manifest.version}.{stood_on.step} is not known any longer")
    contents = VersionContents(version, change_log, history.head)
    rows: dict[str, tuple[Int64s, Float32s]] = {}
    removed: dict[str, Int64s] = {}
    for name, parts in touched.items():
        keys = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        if len(keys):
            there, found = contents.rows(name, keys)
            rows[name], removed[name] = (keys[there], found[there]), keys[~there]
    number = version.manifest.version
    return RollbackPatch(
        Generation(number, history.head.step),
        Generation(number, stood_on.step),
        rows,
        removed,
        {name: np.array(contents.dense[name]) for name in sorted(names)},
    )
