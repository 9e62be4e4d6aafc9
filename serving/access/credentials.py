"""Watch the files of keys and certificates, and send their contents to all processes.

    files ──poll──▶ Credentials ──AccessControl.take()──▶ guards of this process
                          └────────channel───────▶ workers, which do the same

Invariants
- A change takes effect as a whole: everything is read and built before anything is replaced. If a file is broken, or
  readable by others, the old credentials stay, one line is logged, and the failure is counted; the file is read again
  when it changes.
- A change takes effect once the files are unchanged between two polls, so that a pair that is replaced one file after
  the other (a certificate and its key) is never used half-replaced.
- Only the process that was started reads the files, and sends their bytes on: workers differ for at most the time of a
  message, and one that is restarted while a file is broken gets the credentials that the others have.
- Without files there is no watching thread.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.counter_block import CounterBlock, Slot, Snapshot
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.access.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from freshet_serving.serving.access.certificates import Certificates
    from freshet_serving.serving.access.key_file import ApiKeys

log = logging.getLogger("freshet.credentials")

# Files that no other user may read; certificates are public.
PRIVATE = ("api_keys", "tls_key")
COUNTERS = (
    Slot("access", "reloads", "access_reloads", "Successful reloads of keys or certificates."),
    Slot(
        "access", "failures", "access_reload_failures",
        "Failed reloads of keys or certificates; the old ones stay in use.",
    ),
)  # fmt: skip
RELOADS, FAILURES = range(len(COUNTERS))
LOOK_S = 0.5
STOP_S = 5.0
# Rows of the rate limiter: the admin port's, and the first of the data ports'.
ADMIN_PLACE, DATA_PLACE = 0, 1


class Credentials(NamedTuple):
    """The contents of the files at one moment, by option; a later edition replaces earlier ones."""

    edition: int
    files: Mapping[str, bytes]

    def message(self) -> dict[str, Any]:
        return {"edition": self.edition, "files": {k: base64.b64encode(v).decode() for k, v in self.files.items()}}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Credentials:
        return cls(message["edition"], {k: base64.b64decode(v) for k, v in message["files"].items()})


class AccessControl:
    """The credentials in force in one process, and the guards that use them."""

    def __init__(self, admin_token: str, memory: NDArray[np.uint8]) -> None:
        self.memory = memory
        self._admin_token = admin_token
        self._newest = Credentials(-1, {})
        self._heirs: list[Callable[[Credentials], None]] = []
        self._certificates: Certificates | None = None
        self._guards: list[AccessGuard] = []

    def guard(self, place: int) -> AccessGuard:
        """Return a guard for the thread with this row of the rate limiter; it follows the newest credentials."""
        guard = AccessGuard(self._keys_in(self._newest), RateLimiter(self.memory, place, SystemClock()))
        self._guards.append(guard)
        return guard

    def certificates(self) -> Certificates:
        """Return the newest certificates; the server must have been given some."""
        assert self._certificates is not None, "certificates are loaded before a TLS port opens"
        return self._certificates

    def pass_on(self, hand: Callable[[Credentials], None]) -> None:
        """Call `hand` with the newest credentials now, and with all later ones."""
        self._heirs.append(hand)
        hand(self._newest)

    def take(self, credentials: Credentials) -> None:
        """Put credentials into force, unless later ones already are; raise BadInput if they are invalid."""
        if credentials.edition <= self._newest.edition:
            return
        # Without files, as most servers are, there is nothing to check, and what reads them is not loaded.
        if credentials.files:
            from freshet_serving.serving.access.certificates import Certificates

            keys, certificates = self._keys_in(credentials), Certificates.of(credentials.files)
            self._certificates = certificates
            for guard in self._guards:
                guard.keys = keys
        self._newest = credentials
        for hand in self._heirs:
            hand(credentials)

    def _keys_in(self, credentials: Credentials) -> ApiKeys:
        from freshet_serving.serving.access.key_file import ApiKeys

        return ApiKeys.parse(credentials.files.get("api_keys", b"")).with_admin_token(self._admin_token)


class CredentialFiles:
    """The watched files of a server; `newest` are the newest contents that were valid."""

    def __init__(self, paths: Mapping[str, str], take: Callable[[Credentials], None]) -> None:
        """Read the files, paths by option, for the first time, and take() them; raises BadInput."""
        self._paths = {option: Path(path) for option, path in paths.items() if path}
        self._take = take
        self._counters = CounterBlock(COUNTERS)
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

    def counted(self) -> Snapshot:
        return self._counters.snapshot()

    def poll_once(self) -> None:
        """Reload files that have changed and have been stable since the last poll."""
        before, self._seen = self._seen, self._look()
        if self._seen != before or self._seen == self._tried:
            return
        try:
            credentials = self._read(self.newest.edition + 1)
            self._take(credentials)
        except BadInput as error:
            self._tried = self._seen
            self._counters.cells[FAILURES] += 1
            log.error("cannot use the new keys or certificates, keeping the old ones: %s", error)
            return
        self._tried, self.newest = self._seen, credentials
        self._counters.cells[RELOADS] += 1
        log.info("%s: reloaded", ", ".join(self._paths))

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.poll_once()
            except Exception:
                log.exception("could not check keys and certificates for changes")

    def _read(self, edition: int) -> Credentials:
        return Credentials(edition, {option: _bytes_of(option, path) for option, path in self._paths.items()})

    def _look(self) -> dict[str, tuple[int, ...]]:
        """Return a value that changes with the files."""
        return {option: _stamp(path) for option, path in self._paths.items()}


def _bytes_of(option: str, path: Path) -> bytes:
    from freshet_serving.serving.access.key_file import MAX_FILE_NBYTES, read_private, read_public

    if option in PRIVATE:
        return read_private(path, option, MAX_FILE_NBYTES)
    return read_public(path, option, MAX_FILE_NBYTES)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    # ctime covers changes of mode: chmod is how some refused files are corrected.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
