"""Access to the files of one version: in the folder where they are read, or elsewhere with that folder as mirror.

Readers open files below `folder`. Writers request durability where the version lives, in a given order. In a folder of
models both are the same place, and most methods do nothing (FolderStorage); else an extension's storage downloads and
uploads. Names are relative to the version's folder, with "/".

FolderWatch and identity_of() detect changes to a folder or a file by one stat call.
"""

from __future__ import annotations

import os
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.package import atomic_file, exclusive_file, fsync_folder, give_name, hidden_beside

RACY_NS = 2_000_000_000

Identity = tuple[int, int, int]
"""Modification time, size and inode: different for another file, or other content."""


class VersionStorage(Protocol):
    """The storage of one version. Methods may raise NotReady if it cannot be reached, OSError if the folder fails."""

    folder: Path
    remote: bool

    def look_for(self, name: str) -> None:
        """Bring a file that may have appeared into the folder; no wait for a network while the mirror polls."""

    def fetch(self, name: str, nbytes: int) -> None:
        """Bring a file into the folder, if it exists anywhere; raise Corrupt if it is larger than nbytes."""

    def again(self, name: str) -> bool:
        """Drop a damaged file if it is a copy, so that fetch() brings another; return True if it was one."""

    def newest(self, named: Callable[[int], str]) -> int:
        """Return the highest number whose file (`named`) exists, counting from 1 without a gap; 0 for none."""

    def has(self, name: str) -> bool:
        """Return True if the version has this file, in the folder or elsewhere."""

    def gone(self, name: str) -> bool:
        """Return True if a file that is missing in the folder is known to exist nowhere."""

    def create(self, name: str, data: bytes) -> None:
        """Create a file exclusively and durably.

        Raises FileExistsError if another writer was faster; look_for() finds its file then.
        """

    def give(self, aside: Path, name: str) -> None:
        """Create a file exclusively from a complete and durable file in the same folder."""

    def send(self, name: str) -> None:
        """Add a file or folder that this writer alone wrote below the folder to the version."""

    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a file, durable when the call returns."""

    def remove(self, name: str) -> None:
        """Remove a file or folder; it may already be gone."""

    def install(self, built: Path) -> None:
        """Turn a complete and durable folder that was built beside it into the version; raise Conflict if it exists."""

    def end(self) -> None:
        """Remove the version; readers see it disappear at once."""


class FolderStorage:
    """A version that lives where it is read."""

    remote = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look_for(self, name: str) -> None:
        """Do nothing: the folder is the version."""

    def fetch(self, name: str, nbytes: int) -> None:
        """Do nothing: the folder is the version."""

    def again(self, name: str) -> bool:
        return False

    def newest(self, named: Callable[[int], str]) -> int:
        return newest(lambda number: (self.folder / named(number)).exists())

    def has(self, name: str) -> bool:
        return os.path.isfile(self.folder / name)

    def gone(self, name: str) -> bool:
        return True

    def create(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with exclusive_file(path) as file:
            file.write(data)

    def give(self, aside: Path, name: str) -> None:
        path = self.folder / name
        give_name(aside, path)
        fsync_folder(path.parent)

    def send(self, name: str) -> None:
        """Do nothing: the file was written where it belongs."""

    def replace(self, name: str, data: bytes) -> None:
        with atomic_file(self.folder / name) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def install(self, built: Path) -> None:
        try:
            built.rename(self.folder)
        except OSError:
            name, model = self.folder.name, self.folder.parent.name
            raise Conflict(f"version {name} of {model!r} already exists") from None
        fsync_folder(self.folder.parent)

    def end(self) -> None:
        hidden = hidden_beside(self.folder)
        self.folder.rename(hidden)
        fsync_folder(self.folder.parent)
        if hidden.is_symlink():
            # The target is not the repository's to remove.
            hidden.unlink()
        else:
            shutil.rmtree(hidden, ignore_errors=True)


def newest(exists: Callable[[int], bool], known: int = 0) -> int:
    """Return the highest number, from `known` on, that exists without a gap: search by doubling, then by bisection."""
    low, high = known, known + 1
    while exists(high):
        low, high = high, known + 2 * (high - known)
    return low + bisect_right(range(low + 1, high), False, key=lambda number: not exists(number))


class FolderWatch:
    """Detector of changes to a folder's entries since the last check.

    A change within the clock tick of the last check leaves the modification time as it was: a folder that changed less
    than two seconds before a check counts as changed at the next one too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, bool] | None = None

    def changed(self) -> bool:
        try:
            mtime_ns = os.stat(self._folder).st_mtime_ns
        except OSError:
            mtime_ns = -1
        settled = abs(time.time_ns() - mtime_ns) > RACY_NS
        before, self._seen = self._seen, (mtime_ns, settled)
        return before != (mtime_ns, True)

    def again(self) -> None:
        """Make the next check report a change, because the last one could not be acted on."""
        self._seen = None


def identity_of(path: Path) -> Identity | None:
    """Return the identity of a file (mtime, size, inode), or None if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
