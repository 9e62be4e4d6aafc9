"""Open a repository by its address: a folder, or a URL whose storage an extension offers (processor.ports.Storage)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from freshet_serving.processor.errors import BadInput, nearest
from freshet_serving.processor.ports import ENGINE, Storage, missing
from freshet_serving.processor.repository.model_repository import Repository

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
"""Schemes of object stores."""
OBJECT_STORES = "object_stores"
_ADDRESS = re.compile(r"([a-z0-9+.-]+)://([^/?#@\s]+)(/[^?#]*)?")


def is_address(text: str) -> bool:
    """Return True if a repository or a data path is a URL rather than a folder."""
    return "://" in text


def open_repository(
    address: str | os.PathLike[str],
    mirror: str = "",
    mirror_bytes: int = 0,
    serving: bool = False,
    create: bool = False,
    models: Iterable[str] = (),
) -> Repository:
    """Open the repository in a folder, created if requested, or at a URL such as s3://bucket/prefix.

    Args:
        mirror: Folder for mirrors of a URL; "" for FRESHET_MIRROR, or else the user's cache.
        mirror_bytes: Maximum size of the mirror; 0 for half of the disk.
        serving: Serve what the mirror has while the store cannot be reached.
        models: Names of the only models to mirror; all if empty.

    Raises:
        NotFound: The folder does not exist.
        BadInput: The address is invalid, or an extension that it needs is not there.
        NotReady: The mirror folder cannot be written.
    """
    text = os.fspath(address)
    if is_address(text):
        storage = storage_of(text, "repository")
        opened: Repository = storage.repository(text, mirror, mirror_bytes, serving, models)
        return opened
    if create:
        Path(text).mkdir(parents=True, exist_ok=True)
    return Repository(text)


def storage_of(address: str, field: str) -> Storage:
    """Return the storage of an address's scheme; raise BadInput, which calls it `field`."""
    scheme, _, _ = address_parts(address, field)
    storage: Storage | None = ENGINE.get("storages", scheme)
    if storage is None:
        raise missing(f"{field} {scheme}://", OBJECT_STORES)
    return storage


def address_parts(address: str, field: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix of an address; raise BadInput, which calls it `field`."""
    schemes = tuple(dict.fromkeys((*SCHEMES, *ENGINE.offers("storages"))))
    if (match := _ADDRESS.fullmatch(address)) is None or match[1] not in schemes:
        scheme, _, rest = address.partition("://")
        scheme = scheme[:40]
        if scheme in schemes:
            got = f"{scheme}:// {'with more than a bucket and a prefix' if rest.strip('/') else 'without a bucket'}"
        else:
            got = f"scheme {scheme!r}{nearest(scheme, schemes)}"
        raise BadInput(f"{field}: expected a folder, or s3://BUCKET, gs://BUCKET or az://BUCKET, got {got}")
    return match[1], match[2], (match[3] or "").strip("/")
