"""Where the files of one version live: in the folder that they are read from, or elsewhere, with that folder a mirror.

Whoever reads opens files below `folder`, always; whoever writes says what is to be durable where the version lives, and
in which order. In a folder of models that is the same place, and most of this is nothing (FolderStorage). A version in an
object store is brought here and sent there by processor.repository.mirror.

Names are relative to the version's folder, with "/".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.package import atomic_file, exclusive_file, fsync_folder, give_name, hidden_beside


class VersionStorage(Protocol):
    """One version's. Every method may raise NotReady where the version lives elsewhere and cannot be reached, and
    OSError for what the folder itself refuses."""

    folder: Path
    remote: bool

    def look_for(self, name: str) -> None:
        """Has a file that may have come to be lie in the folder, if it has. Does not wait for a network where somebody
        looks all the time."""
        ...

    def fetch(self, name: str, nbytes: int) -> None:
        """Has a file of so many bytes lie in the folder that has to be somewhere; one that is nowhere does not. Raises
        Corrupt for one that is larger."""
        ...

    def again(self, name: str) -> bool:
        """Whether a file that is not what it should be was a copy, which is dropped now, so that fetch() may bring
        another."""
        ...

    def newest(self, named: Callable[[int], str]) -> int:
        """The highest of the numbers from 1 on, without a gap, under whose names there are files; 0 for none."""
        ...

    def has(self, name: str) -> bool:
        """Whether the version has such a file, in the folder or elsewhere."""
        ...

    def gone(self, name: str) -> bool:
        """Whether a file that is missing in the folder is known to be nowhere."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Makes a file that nobody has made, durable when the call returns; raises FileExistsError where somebody was
        faster: look_for() finds theirs then."""
        ...

    def give(self, aside: Path, name: str) -> None:
        """create() for a file that lies whole and durable under another name in the folder of its own."""
        ...

    def send(self, name: str) -> None:
        """Makes a file or folder that was written below the folder, and that nobody else writes, part of the
        version."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Puts a file, or another in its place, durable when the call returns."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file or folder; one that is gone already is fine."""
        ...

    def install(self, built: Path) -> None:
        """Makes a folder that was built beside it, whole and durable, the version; raises Conflict where there is
        one."""
        ...

    def end(self) -> None:
        """Removes the version, for whoever looks at once."""
        ...


class FolderStorage:
    """A version that lives where it is read. See VersionStorage."""

    remote = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look_for(self, name: str) -> None:
        """It is there or it is not."""

    def fetch(self, name: str, nbytes: int) -> None:
        """The same."""

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
        """It was written where it belongs."""

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
            raise Conflict(f"version {name} of {model!r} exists already") from None
        fsync_folder(self.folder.parent)

    def end(self) -> None:
        hidden = hidden_beside(self.folder)
        self.folder.rename(hidden)
        fsync_folder(self.folder.parent)
        shutil.rmtree(hidden, ignore_errors=True)


def newest(there: Callable[[int], bool], known: int = 0) -> int:
    """The highest number for which there is something, without a gap from 1 on: by doubling, then by halves. known:
    one for which there is."""
    low, high = known, known + 1
    while there(high):
        low, high = high, known + 2 * (high - known)
    while high - low > 1:
        middle = (low + high) // 2
        if there(middle):
            low = middle
        else:
            high = middle
    return low
