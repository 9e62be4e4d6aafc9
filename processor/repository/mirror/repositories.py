"""A repository by its address: a folder, or a URL of an object store, whose mirror lies in a folder of the cache."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.repository.mirror.mirror import Mirror
from freshet_serving.processor.repository.mirror.mirrored_repository import MirroredRepository
from freshet_serving.processor.repository.mirror.object_store import is_address, open_store
from freshet_serving.processor.repository.model_repository import Repository

MIRROR = "FRESHET_MIRROR"


def open_repository(
    address: str | os.PathLike[str],
    mirror: str = "",
    mirror_bytes: int = 0,
    serving: bool = False,
    create: bool = False,
    models: Iterable[str] = (),
) -> Repository:
    """The repository at an address. mirror: the folder of mirrors; FRESHET_MIRROR, or else one of the user's cache.
    mirror_bytes: what the mirror may take; 0 for half of the disk. serving: where the store cannot be reached, what the
    mirror has is served. create: a folder that is not there is made. models: the only ones that are wanted. Raises
    NotFound, BadInput."""
    text = os.fspath(address)
    if not is_address(text):
        if create:
            Path(text).mkdir(parents=True, exist_ok=True)
        return Repository(text)
    store = open_store(text)
    try:
        return MirroredRepository(Mirror(store, mirror_folder(text, mirror), mirror_bytes, serving, models))
    except OSError as error:
        raise NotReady(f"mirror: the folder cannot be written: {error.strerror}") from None


def mirror_folder(address: str, mirror: str = "") -> Path:
    """Where the mirror of an address lies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "freshet"
    base = Path(mirror or os.environ.get(MIRROR) or cache)
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    known = hashlib.sha256(f"{endpoint} {address.rstrip('/')}".encode()).hexdigest()[:12]
    shown = re.sub(r"[^A-Za-z0-9_-]+", "-", address.partition("://")[2]).strip("-")[:60]
    return base.absolute() / f"{shown}-{known}"
