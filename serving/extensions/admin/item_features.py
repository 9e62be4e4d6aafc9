"""Say how a version ranks items, and what the items of a reply are: their columns as of its generation.

Columns are read by the process that writes, under the version's lock, for a millisecond or two. A generation that is
out of reach, or a lock that is held for longer than LOCK_S, gives no columns: the list itself is never refused for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.repository import SIZES
from freshet_serving.processor.tables.table import descriptors
from freshet_serving.processor.versions.routes import find

if TYPE_CHECKING:
    from freshet_serving.processor.package import Manifest
    from freshet_serving.processor.versions.host import ModelHost

LOCK_S = 1.0
MOST_ITEMS = 1000
"""Items of a list that are tried."""


def ranked_items(manifest: Manifest) -> dict[str, Any] | None:
    """Return the inputs of a request for the best items and the columns of its filters; None if there are none."""
    items = _items(manifest)
    return None if items is None else items.described()


def _items(manifest: Manifest) -> Any:
    make = ENGINE.get("explanations", "items")
    return None if make is None else make(manifest, None)


def listed_items(host: ModelHost | None, name: str, generation: str | None, body: bytes) -> dict[str, Any]:
    """Return the first user's items of a reply to :predict: ids as texts, scores and, given a host, columns."""
    outputs = orjson.loads(body)["outputs"]
    ids, scores = outputs["item_ids"][0], outputs["scores"][0]
    columns = {} if host is None else _columns(host, name, generation, ids)
    return {"ids": [str(item) for item in ids], "scores": scores, "columns": columns}


def _columns(host: ModelHost, name: str, generation: str | None, ids: list[Any]) -> dict[str, list[Any]]:
    try:
        named = Generation.parse(generation or "")
        version = find(host.catalogue, name).routes.served.get(named.version)
    except FreshetError:
        return {}
    items = None if version is None else _items(version.manifest)
    if version is None or items is None or not version.lock.acquire(timeout=LOCK_S):
        return {}
    try:
        standing = version.as_of(named.step)
        # Records may lie in a mapped file: reading a page that is gone would end the process.
        if standing is None or version.damage(SIZES):
            return {}
        tables = descriptors([table.descriptor() for table in version.tables.values()])
        columns: dict[str, list[Any]] = items.values(ids, tables, standing.epoch)
        return columns
    finally:
        version.lock.release()
