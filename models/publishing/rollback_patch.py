"""Collect what a trainer must restore after a rollback: rows and weights that undone deltas changed, as served now.

Otherwise its next delta would bring them back. Cost: reading the version's deltas, and the base of affected tables.
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
    """Rows and weights to restore. Keys of a table of strings are hashed as by Publisher.ids().

    Attributes:
        undone: The generation that the trainer was based on.
        rows: By table, keys int64 [m], ascending, and their served rows, float32 [m, dim].
        removed: By table, keys int64 [r] that have no served row.
        dense: By name, served weights.
    """

    generation: Generation
    undone: Generation
    rows: dict[str, tuple[Int64s, Float32s]]
    removed: dict[str, Int64s]
    dense: dict[str, Float32s]


def rollback_patch_since(version: VersionReader, change_log: ChangeLog, stood_on: ChainLink) -> RollbackPatch:
    """Return what a trainer based on `stood_on` has to restore to continue from the head. Raises NotFound."""
    history = change_log.history
    line = {link.digest for link in history.back(history.head)}
    touched: dict[str, list[Int64s]] = {table.name: [] for table in version.manifest.tables}
    names: set[str] = set()
    # A history reloaded from further back has the link with its parent.
    for link in history.back(history.links.get(stood_on.digest, stood_on)):
        if link.digest in line:
            break
        delta = change_log.read_delta(link)
        for name, table in delta.tables.items():
            touched[name] += [table.keys, table.removed]
        names |= delta.dense.keys()
    else:
        raise NotFound(
            f"publisher: the deltas up to {version.manifest.version}.{stood_on.step} are no longer available"
        )
    contents = VersionContents(version, change_log, history.head)
    rows: dict[str, tuple[Int64s, Float32s]] = {}
    removed: dict[str, Int64s] = {}
    for name, parts in touched.items():
        keys = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        if len(keys):
            present, served_rows = contents.rows(name, keys)
            rows[name], removed[name] = (keys[present], served_rows[present]), keys[~present]
    number = version.manifest.version
    return RollbackPatch(
        Generation(number, history.head.step),
        Generation(number, stood_on.step),
        rows,
        removed,
        {name: np.array(contents.dense[name]) for name in sorted(names)},
    )
