"""Credentials: the files of keys and certificates that a server is given, watched, and handed to all processes.

    files ──look──▶ Credentials ──AccessControl.take()──▶ guards of this process
                          └────────channel───────▶ workers, which do the same

Invariants
- What is taken is taken whole: all of it is read and made before anything is replaced. A file that is broken, or that
  others may read, leaves what there was, says so in one line, and is counted; it is looked at again when it changes.
- A change is taken once the files have stood still from one look to the next, so that of a pair that is replaced one
  after the other (a certificate and its key) no half is taken.
- Files are read by the process that was started, which hands their bytes on: workers never differ for longer than a
  message takes, and one that is replaced while a file is broken gets what the others have.
- Where there is nothing to watch there is no thread.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.access.certificates import Certificates
from freshet_serving.serving.access.key_file import MAX_FILE_NBYTES, ApiKeys, read_private, read_public
from freshet_serving.serving.access.rate_limiter import RateLimiter

log = logging.getLogger("freshet.credentials")

# Files that nobody else may read; certificates are for everybody.
PRIVATE = ("api_keys", "tls_key")
LOOK_S = 0.5
STOP_S = 5.0
# The places of the meters: that of the admin port, and the first of those of data ports.
ADMIN_PLACE, DATA_PLACE = 0, 1


class Credentials(NamedTuple):
    """What the files say at one moment, by their options. edition: later ones count over earlier ones."""

    edition: int
    files: Mapping[str, bytes]

    def message(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"edition": self.edition, "files": {k: base64.b64encode(v).decode() for k, v in self.files.items()}}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Credentials:
        """What message() made."""
        return cls(message["edition"], {k: base64.b64decode(v) for k, v in message["files"].items()})


class AccessControl:
    """What one process lets in. memory: of its server's meters."""

    def __init__(self, admin_token: str, memory: NDArray[np.uint8]) -> None:
        self.memory = memory
        self._admin_token = admin_token
        self._newest = Credentials(-1, {})
        self._heirs: list[Callable[[Credentials], None]] = []
        self._keys = ApiKeys().with_admin_token(admin_token)
        self._certificates: Certificates | None = None
        self._guards: list[AccessGuard] = []

    def guard(self, place: int) -> AccessGuard:
        """A guard for the thread that has this place; it lets in whom the newest credentials name."""
        guard = AccessGuard(self._keys, RateLimiter(self.memory, place, SystemClock()))
        self._guards.append(guard)
        return guard

    def certificates(self) -> Certificates:
        """The newest ones, of a server that was given some."""
        assert self._certificates is not None, "no port that speaks TLS is open before"
        return self._certificates

    def pass_on(self, hand: Callable[[Credentials], None]) -> None:
        """Has what is taken handed on, the newest at once."""
        self._heirs.append(hand)
        hand(self._newest)

    def take(self, credentials: Credentials) -> None:
        """Goes by these from now on, unless by later ones already; raises BadInput and stays as it is."""
        if credentials.edition <= self._newest.edition:
            return
        keys = ApiKeys.parse(credentials.files.get("api_keys", b"")).with_admin_token(self._admin_token)
        certificates = Certificates.of(credentials.files)
        self._newest, self._keys, self._certificates = credentials, keys, certificates
        for guard in self._guards:
            guard.keys = keys
        for hand in self._heirs:
            hand(credentials)


class CredentialFiles:
    """The files of a server. newest: what they said last that could be taken."""

    def __init__(self, paths: Mapping[str, str], take: Callable[[Credentials], None]) -> None:
        """paths: by their options. take: has the server go by what they say; raises BadInput. Raises BadInput where it
        cannot at once."""
        self._paths = {option: Path(path) for option, path in paths.items() if path}
        self._take = take
        self.reloads = self.failures = 0
        self._seen = self._tried = self._look()
        self.newest = self._read(0)
        take(self.newest)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="freshet-credentials", daemon=True)

    def start(self) -> None:
        if self._paths:
            self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def counters(self) -> dict[str, int]:
        """For /metrics."""
        return {"access_reloads": self.reloads, "access_reload_failures": self.failures}

    def poll_once(self) -> None:
        """Looks once: takes what has changed and has stood still since the last look."""
        before, self._seen = self._seen, self._look()
        if self._seen != before or self._seen == self._tried:
            return
        try:
            found = self._read(self.newest.edition + 1)
            self._take(found)
        except BadInput as error:
            self._tried = self._seen
            self.failures += 1
            log.error("the new keys or certificates cannot be used, the old ones stay: %s", error)
            return
        self._tried, self.newest = self._seen, found
        self.reloads += 1
        log.info("%s: reloaded", ", ".join(self._paths))

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.poll_once()
            except Exception:
                log.exception("keys and certificates could not be looked at")

    def _read(self, edition: int) -> Credentials:
        return Credentials(edition, {option: _bytes_of(option, path) for option, path in self._paths.items()})

    def _look(self) -> dict[str, tuple[int, ...]]:
        """What tells one state of the files from another."""
        return {option: _stamp(path) for option, path in self._paths.items()}


def _bytes_of(option: str, path: Path) -> bytes:
    if option in PRIVATE:
        return read_private(path, option, MAX_FILE_NBYTES)
    return read_public(path, option, MAX_FILE_NBYTES)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    # The time of the last change of mode counts as well: chmod is what puts some of them right.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
