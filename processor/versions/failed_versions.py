"""Refusals: the versions of a model that could not be served, and when each is worth another try.

A version is tried again when one of the files that it is loaded from has changed, wherever in its folder that lies: who
mends a table leaves the manifest as it was. What comes with every delta (chain, deltas, snapshots) is left out: a
stream of them would have the version read whole again and again. Of a copy the manifest alone counts: trying brings
files, which must not make it worth another try.

Costs: nothing where nothing is refused; else a stat a file, every LOOK_S. A change counts once nothing has moved for
so long, so that a file that is still being copied is not taken for the mended one.

What the server is short of (memory, descriptors, a worker, a row store) is no fault of a version: that one waits, and
is tried again, later and later, up to every MOST_WAIT_S.

Doubts: versions of which a change may have failed with their log half read.

What follows a version's log (its history, what was refused, what waits) is changed step by step while a change is under
way. A FreshetError leaves it whole: whoever raises one has planned for it. Anything else, a MemoryError above all, may
come between any two steps. So the next change does not believe it, and reads the log again: a few records.

Invariant: a version is doubted before a change of it begins, and no more once the change has ended as planned. So where
there is no memory left nothing has to be noted.
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
"""What the files of a version are, by path."""


class FailureMessage(str):
    """A line that wants somebody's attention: what cannot be served, and why."""

    __slots__ = ()


def report(log: logging.Logger, lines: Iterable[str]) -> None:
    """Logs what poll() says has happened, refusals as errors."""
    for line in lines:
        log.log(logging.ERROR if isinstance(line, FailureMessage) else logging.INFO, "%s", line)


def load_error(what: str, error: Exception) -> FreshetError:
    """What a version that cannot be loaded suffers from, in words that anybody may read. what: names it in the log."""
    if (short := shortage(error)) is not None:
        return short
    if isinstance(error, OSError) and error.strerror:
        return FreshetError(f"{Path(str(error.filename or 'the version')).name}: {error.strerror}")
    logging.getLogger("freshet.model").error("%s could not be loaded", what, exc_info=error)
    return FreshetError("the version could not be loaded; the server's log says why")


class FailedVersions:
    """The refused versions of one model, by the files that they were refused with. Used under the model's lock."""

    def __init__(self, folder: Callable[[int], Path], clock: Clock, copied: bool = False) -> None:
        """folder: a version's. copied: it is a copy of one that lies elsewhere."""
        self._folder, self._clock, self._copied = folder, clock, copied
        self._refused: dict[int, Files] = {}
        self._seen: dict[int, Files] = {}
        self._next_s = 0.0
        # Of those that wait: how often each has been tried, and when it is to be tried again.
        self._tries: dict[int, int] = {}
        self._due_s: dict[int, float] = {}

    def worth_a_try(self, number: int) -> Files | None:
        """What the files of a version are now, if there are any, they were not refused before, and it need not wait.

        To be asked before the version is read: it may be replaced meanwhile.
        """
        if self.rests(number):
            return None
        files = self._files(number)
        return None if not files or self._refused.get(number) == files else files

    def note(self, number: int, files: Files) -> None:
        """The version was refused, its files being these."""
        self.forget(number)
        self._refused[number] = files

    def wait(self, number: int) -> None:
        """The version could not be had, for reasons that pass."""
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(tries - 1, 16), MOST_WAIT_S)
        self._due_s[number] = self._clock.now_s() + wait_s

    def rests(self, number: int) -> bool:
        """Whether it is too early to try the version again."""
        return self._clock.now_s() < self._due_s.get(number, 0.0)

    def forget(self, number: int) -> None:
        """The version is served, or is not asked for any more."""
        self._refused.pop(number, None)
        self._seen.pop(number, None)
        self._tries.pop(number, None)
        self._due_s.pop(number, None)

    def changed(self) -> bool:
        """Whether a version is worth another try: one that waits, or, looked at every LOOK_S, one that was refused."""
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
    """The doubted versions of one model. Used under the model's lock."""

    def __init__(self, reload_log: Callable[[int], None]) -> None:
        """relearn: reads the log of a version anew; may raise."""
        self._reload_log = reload_log
        self._doubted: set[int] = set()

    def changing(self, number: int) -> DirtyGuard:
        """A change of a version, to be entered once: not within another one of the same version."""
        return DirtyGuard(self._doubted, number, self._reload_log)


class DirtyGuard:
    """The context of one change. No generator: where that cannot be resumed, nobody ends what it has begun."""

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
