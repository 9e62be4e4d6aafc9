"""Exclusive claim to a version in an object store: which writer uploads its files, before its manifest commits it.

Invariants
- One writer at a time uploads files under a version's prefix. An object, `.claim`, identifies it; a file beside the
  version's folder holds the claim's id, so that a writer that was killed can go on with its own claim, and the lock of
  the process that writes.
- A thread of the writer renews the claim; after CLAIM_S without a renewal another writer may take it. The former holder
  checks once more right before the manifest, and has lost the version if its claim is gone.

Known gap: two writers of two mirrors, of which one is considered dead and checks its claim just before the other takes
it. The manifest is then that of one of them; its checksums detect files of the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from freshet_serving.processor.errors import Conflict, Corrupt, FreshetError
from freshet_serving.processor.extensions.object_stores.counted_store import CountedStore

CLAIM = ".claim"
CLAIM_S, RENEW_S = 3600.0, 600.0
MAX_CLAIM_NBYTES = 1 << 10


class VersionClaim:
    """One writer's claim to one version."""

    def __init__(self, store: CountedStore, key: str, claim_id: str, busy: Conflict) -> None:
        self._store, self._key, self._mine, self._busy = store, key, claim_id, busy

    def renew(self) -> None:
        self.check_held()
        self._store.put(self._key, self._said())

    def take(self) -> None:
        """Take the claim; raise Conflict if another writer is working."""
        if not self._store.create(self._key, self._said()):
            claim = self._there()
            at = claim.get("at")
            fresh = type(at) is float and abs(time.time() - at) < CLAIM_S
            if fresh and claim.get("by") != self._mine:
                raise self._busy
            self._store.put(self._key, self._said())

    def check_held(self) -> None:
        """Raise Conflict unless this writer still holds the claim."""
        if self._there().get("by") != self._mine:
            raise self._busy

    def drop(self) -> None:
        with contextlib.suppress(FreshetError):
            self.check_held()
            self._store.delete([self._key])

    def _said(self) -> bytes:
        return json.dumps({"by": self._mine, "at": time.time()}).encode()

    def _there(self) -> dict[str, Any]:
        try:
            content = self._store.get(self._key, MAX_CLAIM_NBYTES)
            claim = json.loads(content.data) if content else None
        except (ValueError, RecursionError, Corrupt):
            claim = None
        return claim if isinstance(claim, dict) else {}


@contextmanager
def claimed(store: CountedStore, key: str, folder: Path, built: Path) -> Iterator[VersionClaim]:
    """Hold the claim to a version, in a context; raise Conflict if another writer is working.

    `key` is the prefix of its objects; its files are in `built` until they are moved to its folder in the mirror.
    """
    busy = Conflict(f"version {folder.name} of {folder.parent.name!r} is being published by another process")
    token = folder.with_name(f".{folder.name}.claim")
    token.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(token, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise busy from None
        claim_id = os.pread(fd, 64, 0) or secrets.token_hex(16).encode()
        os.pwrite(fd, claim_id, 0)
        claim = VersionClaim(store, f"{key}/{CLAIM}", claim_id.decode(errors="replace"), busy)
        claim.take()
        ended = threading.Event()
        renewing = threading.Thread(target=_renew, args=(claim, ended, built), name="freshet-claim", daemon=True)
        renewing.start()
        try:
            yield claim
        finally:
            ended.set()
            renewing.join()
        claim.drop()
        token.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _renew(claim: VersionClaim, ended: threading.Event, built: Path) -> None:
    while not ended.wait(RENEW_S):
        with contextlib.suppress(FreshetError, OSError):
            claim.renew()
            # Keep the folder from being evicted as unused (processor.extensions.object_stores.eviction).
            os.utime(built)
