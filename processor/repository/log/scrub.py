"""Integrity of a version's files, and delta files without a record.

Scrubber checks that the files that the served state depends on are still what they were when they were read. Each call
checks the newest of them and, in turn, one of the others: two or three calls of stat(), however many files there are. A
file that was touched or copied is read again, and is accepted if its bytes are the same. If a file disappears together
with its version, it counts as unreachable and not as removed: an outage of a file system changes nothing. A file that
has changed is checked every time, until it is restored.

DeltaFolderScanner finds delta files that were dropped into a version's folder without a record:
deltas/<step>.safetensors. It works without listing the folder: a file that continues the log is looked up by its name.
Files that only a listing can find (after a gap, a compacted delta) may wait: the rate of listings is limited by their
cost, so that watching a folder takes the same processor time however many files it contains.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Corrupt, Diverged, NotReady, shortage
from freshet_serving.processor.package import (
    MAX_DELTA_NBYTES,
    MAX_MANIFEST_NBYTES,
    SUFFIX,
    Manifest,
    file_sha256,
    read_delta_file,
    read_file,
)
from freshet_serving.processor.repository.folder_watch import FolderWatch
from freshet_serving.processor.repository.log.chain_record import (
    ChainRecord,
    root_hash,
    sha256,
)
from freshet_serving.processor.repository.log.history import History
from freshet_serving.processor.repository.storage import VersionStorage
from freshet_serving.processor.repository.version import DELTAS, MANIFEST

Identity = tuple[int, int, int]
"""Modification time, size and inode: different for another file, or other content."""


@dataclass(slots=True)
class WatchedFile:
    """A file as it was read.

    Attributes:
        path: Path of the file.
        identity: Its identity when it was read.
        sha256: SHA-256 of its bytes; of the manifest: its root hash.
        step: Step of a delta; -1 for other files.
    """

    path: Path
    identity: Identity | None
    sha256: str
    step: int = -1


class Scrubber:
    """The watched files of one version."""

    def __init__(self, storage: VersionStorage, root: str) -> None:
        """Watch the manifest.

        Args:
            storage: Storage of the version.
            root: The manifest's root hash.
        """
        self._storage, self._folder, self._turn = storage, storage.folder, 0
        folder = storage.folder
        self._watched = [WatchedFile(folder / MANIFEST, identity_of(folder / MANIFEST), root)]

    def add(self, path: Path, identity: Identity | None, digest: str, step: int = -1) -> None:
        """Watch a file that was read.

        Args:
            path: Path of the file.
            identity: Its identity before it was read.
            digest: SHA-256 of its bytes.
            step: Step of a delta; -1 for other files.
        """
        self._watched.append(WatchedFile(path, identity, digest, step))

    def forget(self, names: Iterable[str]) -> None:
        """Stop watching the files of these names, relative to the version's folder."""
        gone = {self._folder / name for name in names}
        self._watched = [one for one in self._watched if one.path not in gone]

    def look(self, history: History) -> None:
        """Check the newest files and one other; raise Diverged if one has changed."""
        watched = self._watched
        self._turn = (self._turn + 1) % len(watched)
        for one in sorted({self._turn, len(watched) - 1, max(0, len(watched) - 2)}, reverse=True):
            try:
                superfluous = self._superfluous(watched[one], history)
            except Diverged:
                watched.append(watched.pop(one))
                raise
            if superfluous:
                del watched[one]

    def _superfluous(self, one: WatchedFile, history: History) -> bool:
        """Return True if a file need not be watched any longer; raise Diverged if it has changed."""
        now = identity_of(one.path)
        if now == one.identity:
            return False
        if one.step >= 0:
            link, snapshot = history.on_line(one.step), history.snapshot()
            if link is None or (snapshot is not None and one.step <= snapshot.step):
                return True
        if now is None:
            known = self._storage.gone(f"{one.path.parent.name}/{one.path.name}")
            if not known or not (self._folder / MANIFEST).exists():
                return False
            raise Diverged(f"{_called(one, history)}: is served, but its file no longer exists", one.path)
        try:
            content = _content(one.path)
        except OSError:
            return False
        if content != one.sha256:
            raise Diverged(f"{_called(one, history)}: is served, but its file was replaced", one.path)
        one.identity = now
        return False


def identity_of(path: Path) -> Identity | None:
    """Return the identity of a file (mtime, size, inode), or None if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _content(path: Path) -> str:
    try:
        if path.name == MANIFEST:
            return root_hash(Manifest.from_json(read_file(path, MAX_MANIFEST_NBYTES).tobytes()))
        return file_sha256(path)
    except BadInput:
        return ""


def _called(one: WatchedFile, history: History) -> str:
    if one.step >= 0:
        return f"delta {history.version}.{one.step}"
    return "manifest" if one.path.name == MANIFEST else f"record {int(one.path.stem)}"


def recorded_file(storage: VersionStorage, record: ChainRecord) -> tuple[Identity | None, NDArray[np.uint8] | None]:
    """Return a delta file's identity, None if it is missing, and its bytes, None if they are not the recorded ones.

    Args:
        storage: Storage of the version.
        record: The delta's record.
    """
    path = storage.folder / record.file
    try:
        storage.fetch(record.file, record.nbytes)
        before = identity_of(path)
        data = read_delta_file(path, min(record.nbytes, MAX_DELTA_NBYTES)) if before is not None else None
    except Corrupt:
        return identity_of(path) or (0, 0, 0), None
    good = data is not None and data.nbytes == record.nbytes and sha256(data) == record.sha256
    return before, data if good else None


STEP = re.compile(r"[1-9][0-9]{0,17}")
SHARE, MOST_S = 0.001, 0.05
"""Time budget of listings: this share of the time, with this many seconds as the largest burst."""


@dataclass(frozen=True, slots=True)
class UnrecordedDelta:
    """A delta file without a record, known by its name alone.

    Attributes:
        step: Step according to the name.
        path: Path of the file.
    """

    step: int
    path: Path


def unrecorded_deltas(folder: Path) -> list[UnrecordedDelta]:
    """Return every delta file of a version that is named by a step, ascending, including recorded ones.

    Raises:
        NotReady: The folder cannot be listed at the moment.
    """
    found = []
    try:
        with os.scandir(folder / DELTAS) as entries:
            for entry in entries:
                stem = entry.name.removesuffix(SUFFIX)
                if entry.name.endswith(SUFFIX) and STEP.fullmatch(stem) and entry.is_file(follow_symlinks=False):
                    found.append(UnrecordedDelta(int(stem), Path(entry.path)))
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise short from None
        return []
    return sorted(found, key=lambda bare: bare.step)


class DeltaFolderScanner:
    """Scanner for new files in one version's folder of deltas."""

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder, self._now_s = folder, now_s
        self._watch = FolderWatch(folder / DELTAS)
        self._credit_s, self._counted_s = MOST_S, now_s()
        self._listed: list[UnrecordedDelta] = []

    def next(self, top: int) -> list[UnrecordedDelta]:
        """Return the file of the step after `top`, if it exists."""
        path = self._folder / DELTAS / f"{top + 1}{SUFFIX}"
        return [UnrecordedDelta(top + 1, path)] if os.path.isfile(path) and not os.path.islink(path) else []

    def others(self, top: int) -> list[UnrecordedDelta]:
        """Return files of steps above `top`, ascending, as of the last listing within the time budget."""
        now_s = self._now_s()
        self._credit_s = min(MOST_S, self._credit_s + SHARE * (now_s - self._counted_s))
        self._counted_s = now_s
        if self._credit_s > 0 and self._watch.changed():
            try:
                self._listed = unrecorded_deltas(self._folder)
            except NotReady:
                self.again()
                raise
            self._credit_s -= self._now_s() - now_s
        self._listed = [b for b in self._listed if b.step > top]
        return self._listed

    def again(self) -> None:
        """Make the next call list the folder again, even if it has not changed."""
        self._watch.again()
