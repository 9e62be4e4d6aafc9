"""Open a repository at the URL of an object store, with a mirror in the cache folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.object_stores.mirror import Mirror
from freshet_serving.processor.extensions.object_stores.mirrored_repository import MirroredRepository
from freshet_serving.processor.extensions.object_stores.object_store import open_store

MIRROR = "FRESHET_MIRROR"


def open_mirrored(
    address: str, mirror: str = "", mirror_bytes: int = 0, serving: bool = False, models: Iterable[str] = ()
) -> MirroredRepository:
    """Open the repository at an address.

    Args:
        mirror: Folder for mirrors; "" for FRESHET_MIRROR, or else the user's cache.
        mirror_bytes: Maximum size of the mirror; 0 for half of the disk.
        serving: Serve what the mirror has while the store cannot be reached.
        models: Names of the only models to mirror; all if empty.
    """
    store = open_store(address)
    try:
        return MirroredRepository(Mirror(store, mirror_folder(address, mirror), mirror_bytes, serving, models))
    except OSError as error:
        raise NotReady(f"mirror: the folder cannot be written: {error.strerror}") from None


def mirror_folder(address: str, mirror: str = "") -> Path:
    """Return the folder of the mirror of an address; `mirror` is as of open_mirrored()."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "freshet"
    base = Path(mirror or os.environ.get(MIRROR) or cache)
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    digest = hashlib.sha256(f"{endpoint} {address.rstrip('/')}".encode()).hexdigest()[:12]
    shown = re.sub(r"[^A-Za-z0-9_-]+", "-", address.partition("://")[2]).strip("-")[:60]
    return base.absolute() / f"{shown}-{digest}"
