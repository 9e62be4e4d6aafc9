"""Metrics of a repository in an object store.

mirror_metrics  metric families: requests to the store, and the disk use of its mirror
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _families(host: Any, stats: Sequence[Any]) -> Iterable[Any]:
    if not host.repository.remote:
        return ()
    from freshet_serving.serving.extensions.object_stores.mirror_metrics import mirror_families

    return mirror_families(host.repository)


REQUIRES = ("object_stores",)
EXTENSION = ServerExtension(metrics={"mirror": _families})
