"""Failed versions of a model and when to retry each; dirty versions whose log must be read again.

A version is retried when one of the files that it is loaded from has changed, wherever it lies in the folder: repairing
a table leaves the manifest as it was. Files that arrive with every delta (chain, deltas, snapshots) are left out: a
stream of them would cause the whole version to be read again and again. For a mirrored version only the manifest
counts: a try downloads files, and these must not trigger another try.

Costs: nothing while no version has failed; otherwise one stat per file every LOOK_S. A change counts once the files
have stayed the same from one check to the next, so that a file that is still being copied is not taken for the repaired
one.

A shortage on the server (memory, descriptors, a worker, a row store) is not a fault of the version: such a version
waits and is retried with a growing delay, up to MOST_WAIT_S.

Dirty versions are those of which a change may have failed with the log half read. The state that follows a version's
log (its history, what failed, what waits) is updated step by step during a change. A FreshetError leaves it consistent,
because the code that raises one has planned for it. Any other exception, above all MemoryError, may occur between any
two steps. So the next change does not trust that state and reads the log again, which is a few records.

Invariant: a version is marked dirty before a change of it begins, and unmarked once the change has ended as planned. So
nothing has to be recorded when no memory is left.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import FreshetError, shortage
from freshet_serving.processor.repository import CHAIN, DELTAS, MANIFEST, SNAPSHOTS, Identity, identity_of

LOOK_S = 1.0
FIRST_WAIT_S, MOST_WAIT_S = 0.1, 10.0
MAX_FILES = 10_000
GROWING = {CHAIN, DELTAS, SNAPSHOTS}

Files = Mapping[str, Identity]
"""Identity of each file of a version, by path."""


class FailureMessage(str):
    """An event line that needs attention: what cannot be served, and why."""

    __slots__ = ()


class WarningMessage(str):
    """An event line that needs attention although what is served stays served."""

    __slots__ = ()


def report(log: logging.Logger, lines: Iterable[str]) -> None:
    """Log the events that poll() returned, failures as errors and others that need attention as warnings.

    Args:
        log: The logger.
        lines: The events.
    """
    for line in lines:
        warns = isinstance(line, WarningMessage)
        level = logging.ERROR if isinstance(line, FailureMessage) else logging.WARNING if warns else logging.INFO
        log.log(level, "%s", line)


def load_error(what: str, error: Exception) -> FreshetError:
    """Return a client-safe error for a version that cannot be loaded.

    Args:
        what: Name of the version in the log.
        error: The original exception.
    """
    if (short := shortage(error)) is not None:
        return short
    if isinstance(error, OSError) and error.strerror:
        return FreshetError(f"{Path(str(error.filename or 'the version')).name}: {error.strerror}")
    logging.getLogger("freshet.model").error("cannot load %s", what, exc_info=error)
    return FreshetError("the version cannot be loaded; see the server's log")


class FailedVersions:
    """The failed versions of one model, with the files that they failed with. Used under the model's lock."""

    def __init__(self, folder: Callable[[int], Path], clock: Clock, copied: bool = False) -> None:
        """Start without failed versions.

        Args:
            folder: Returns the folder of a version.
            clock: Source of time.
            copied: True if the folder is a copy of a version that lies elsewhere.
        """
        self._folder, self._clock, self._copied = folder, clock, copied
        self._refused: dict[int, Files] = {}
        self._seen: dict[int, Files] = {}
        self._next_s = 0.0
        # For waiting versions: how often each has been tried, and when it is to be retried.
        self._tries: dict[int, int] = {}
        self._due_s: dict[int, float] = {}

    def worth_a_try(self, number: int) -> Files | None:
        """Return the version's current files if it should be tried, else None.

        None if there are no files, if the version failed with the very same ones, or if it has to wait. Call this
        before the version is read: it may be replaced meanwhile.
        """
        if self.rests(number):
            return None
        files = self._files(number)
        return None if not files or self._refused.get(number) == files else files

    def note(self, number: int, files: Files) -> None:
        """Record that the version failed to load.

        Args:
            number: The version.
            files: Its files when it failed.
        """
        self.forget(number)
        self._refused[number] = files

    def wait(self, number: int) -> None:
        """Schedule another try of a version that failed for a temporary reason."""
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(tries - 1, 16), MOST_WAIT_S)
        self._due_s[number] = self._clock.now_s() + wait_s

    def rests(self, number: int) -> bool:
        """Return True if it is too early to retry the version."""
        return self._clock.now_s() < self._due_s.get(number, 0.0)

    def forget(self, number: int) -> None:
        """Forget a version that is served or no longer requested."""
        self._refused.pop(number, None)
        self._seen.pop(number, None)
        self._tries.pop(number, None)
        self._due_s.pop(number, None)

    def changed(self) -> bool:
        """Return True if a waiting version is due, or a failed one has changed (checked every LOOK_S)."""
        now_s = self._clock.now_s()
        due = [number for number, due_s in self._due_s.items() if now_s >= due_s]
        for number in due:
            del self._due_s[number]
        if due:
            return True
        if not self._refused or now_s < self._next_s:
            return False
        self._next_s = now_s + LOOK_S
        before, self._seen = self._seen, {number: self._files(number) for number in self._refused}
        return any(files not in ({}, self._refused[n]) and files == before.get(n) for n, files in self._seen.items())

    def _files(self, number: int) -> Files:
        root, found = self._folder(number), dict[str, Identity]()
        if self._copied:
            identity = identity_of(root / MANIFEST)
            return {} if identity is None else {MANIFEST: identity}
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in GROWING and not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                identity = identity_of(path)
                if identity is not None and len(found) < MAX_FILES:
                    found[path.relative_to(root).as_posix()] = identity
        return found


class DirtyVersions:
    """The dirty versions of one model. Used under the model's lock."""

    def __init__(self, reload_log: Callable[[int], None]) -> None:
        """Start without dirty versions.

        Args:
            reload_log: Reads the log of a version again; may raise.
        """
        self._reload_log = reload_log
        self._doubted: set[int] = set()

    def changing(self, number: int) -> DirtyGuard:
        """Return a context for a change of a version; do not nest it for the same version."""
        return DirtyGuard(self._doubted, number, self._reload_log)


class DirtyGuard:
    """The context of one change.

    A class and not a generator: if a generator cannot be resumed, its cleanup never runs.
    """

    __slots__ = ("_doubted", "_number", "_reload_log")

    def __init__(self, doubted: set[int], number: int, reload_log: Callable[[int], None]) -> None:
        self._doubted, self._number, self._reload_log = doubted, number, reload_log

    def __enter__(self) -> None:
        if self._number in self._doubted:
            self._reload_log(self._number)
        self._doubted.add(self._number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, FreshetError):
            self._doubted.discard(self._number)
