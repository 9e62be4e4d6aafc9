"""Repositories in object stores, and the local folders that mirror them.

object_store         one prefix of one bucket: read, create exclusively, list by folder
counted_store        an object store with counted requests and known reachability
version_copy         copies of one version's files in the mirror folder
version_claim        exclusive claim of one writer to a version in the store
mirrored_storage     storage of one version: download and upload
mirror               keep the mirror folder in sync by polling threads
listing              list models, versions and labels of the store
store_errors         log errors of single objects once, and go on with the others
eviction             remove files when the mirror is too large
mirrored_repository  the mirrored repository as the engine sees it
opening              open a repository by the address of an object store
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from freshet_serving.processor.ports import Extension, Storage
from freshet_serving.processor.repository import SCHEMES

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.object_stores.mirrored_repository import MirroredRepository
    from freshet_serving.processor.extensions.object_stores.object_store import ObjectStore

__all__ = ["mirrored_repository"]


def _open_mirrored(
    address: str, mirror: str, mirror_bytes: int, serving: bool, models: Iterable[str]
) -> MirroredRepository:
    from freshet_serving.processor.extensions.object_stores.opening import open_mirrored

    return open_mirrored(address, mirror, mirror_bytes, serving, models)


def _open_store(address: str, field: str) -> ObjectStore:
    from freshet_serving.processor.extensions.object_stores.object_store import open_store

    return open_store(address, field)


REQUIRES = ()
EXTENSION = Extension(storages=dict.fromkeys(SCHEMES, Storage(repository=_open_mirrored, objects=_open_store)))
