"""A claim: who writes a version's files into an object store, before its manifest makes them one.

Invariants
- One writer at a time puts files under a version's prefix. An object, `.claim`, says which; a file beside the version's
  folder holds what the claim is known by, so that a writer who was killed goes on with its own.
- Of the processes of one mirror one holds that file's lock, for as long as it writes.
- A claim ages: its writer renews it by a thread of its own; after CLAIM_S without that somebody else may take it.
  Whoever held it looks once more right before the manifest, and has lost the version if it is not there any longer.

What is left open: two writers of two mirrors, of which one is taken for dead and looks at its claim in the instant
before the other takes it. Their manifest is one of the two; its checksums tell files of the other.
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
from freshet_serving.processor.repository.mirror.counted_store import CountedStore

CLAIM = ".claim"
CLAIM_S, RENEW_S = 3600.0, 600.0
MAX_CLAIM_NBYTES = 1 << 10


class VersionClaim:
    """One writer's claim to one version."""

    def __init__(self, store: CountedStore, key: str, mine: str, busy: Conflict) -> None:
        self._store, self._key, self._mine, self._busy = store, key, mine, busy

    def renew(self) -> None:
        """Says that its writer is at work."""
        self.check_held()
        self._store.put(self._key, self._said())

    def take(self) -> None:
        """Raises Conflict where another writer is at work."""
        if not self._store.create(self._key, self._said()):
            claim = self._there()
            at = claim.get("at")
            fresh = type(at) is float and abs(time.time() - at) < CLAIM_S
            if fresh and claim.get("by") != self._mine:
                raise self._busy
            self._store.put(self._key, self._said())

    def check_held(self) -> None:
        """Raises Conflict unless the claim is still there."""
        if self._there().get("by") != self._mine:
            raise self._busy

    def drop(self) -> None:
        """Lets others write."""
        with contextlib.suppress(FreshetError):
            self.check_held()
            self._store.delete([self._key])

    def _said(self) -> bytes:
        return json.dumps({"by": self._mine, "at": time.time()}).encode()

    def _there(self) -> dict[str, Any]:
        try:
            found = self._store.get(self._key, MAX_CLAIM_NBYTES)
            claim = json.loads(found.data) if found else None
        except (ValueError, RecursionError, Corrupt):
            claim = None
        return claim if isinstance(claim, dict) else {}


@contextmanager
def claimed(store: CountedStore, key: str, folder: Path, built: Path) -> Iterator[VersionClaim]:
    """Holds the claim to the version whose folder this is to be, and gives it back. key: of the version's objects.
    built: where its files lie meanwhile. Raises Conflict where another writer is at work."""
    busy = Conflict(f"version {folder.name} of {folder.parent.name!r} is being published by another")
    token = folder.with_name(f".{folder.name}.claim")
    token.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(token, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise busy from None
        mine = os.pread(fd, 64, 0) or secrets.token_hex(16).encode()
        os.pwrite(fd, mine, 0)
        claim = VersionClaim(store, f"{key}/{CLAIM}", mine.decode(errors="replace"), busy)
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
            # What nobody has written to for long is evicted (processor.repository.mirror.eviction).
            os.utime(built)
