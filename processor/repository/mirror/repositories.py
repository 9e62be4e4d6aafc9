"""Open a repository by its address: a folder, or the URL of an object store with a mirror in the cache folder."""

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
    """Open the repository at an address.

    Args:
        address: A folder, or a URL such as s3://bucket/prefix.
        mirror: Folder for mirrors; "" for FRESHET_MIRROR, or else the user's cache.
        mirror_bytes: Maximum size of the mirror; 0 for half of the disk.
        serving: Serve what the mirror has while the store cannot be reached.
        create: Create a folder that does not exist.
        models: Names of the only models to mirror; all if empty.

    Raises:
        NotFound: The folder does not exist.
        BadInput: The address is invalid.
        NotReady: The mirror folder cannot be written.
    """
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
    """Return the folder of the mirror of an address.

    Args:
        address: The address.
        mirror: Folder for mirrors; "" for FRESHET_MIRROR, or else the user's cache.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "freshet"
    base = Path(mirror or os.environ.get(MIRROR) or cache)
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    known = hashlib.sha256(f"{endpoint} {address.rstrip('/')}".encode()).hexdigest()[:12]
    shown = re.sub(r"[^A-Za-z0-9_-]+", "-", address.partition("://")[2]).strip("-")[:60]
    return base.absolute() / f"{shown}-{known}"
