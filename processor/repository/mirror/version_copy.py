"""The copy of one version's files in the folder that mirrors it.

Invariant: what appears there appears whole, by rename or link, so any number of processes may work on one folder. Two
that bring the same file bring the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.repository.log.scrub import Identity, identity_of
from freshet_serving.processor.repository.mirror.counted_store import CountedStore
from freshet_serving.processor.package import atomic_file, exclusive_file, hidden_beside

if TYPE_CHECKING:
    from freshet_serving.processor.repository.mirror.object_store import ObjectContent

AT_ONCE = 8


class EtagCache:
    """Files that are known to be copies of objects, by the etag of each. One that somebody else has written since is no
    longer: the store is asked for it whole again."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[str, Identity | None]] = {}

    def etag(self, path: Path) -> str:
        """Of what lies there, if that is known."""
        etag, identity = self._known.get(path, ("", None))
        return etag if identity is not None and identity == identity_of(path) else ""

    def put(self, path: Path, found: ObjectContent) -> None:
        """Has the file be what was found."""
        if not path.exists() or path.read_bytes() != found.data:
            with atomic_file(path) as file:
                file.write(found.data)
        self._known[path] = found.etag, identity_of(path)

    def clear(self) -> None:
        """Nothing is known."""
        self._known.clear()


class VersionCopy:
    """Of one version: files brought and put, by their names below the folder."""

    def __init__(self, store: CountedStore, folder: Path, key: str) -> None:
        """key: the prefix of the version's objects."""
        self._store, self.folder, self._key = store, folder, key

    def key(self, name: str) -> str:
        """The key of a file's object."""
        return f"{self._key}/{name}"

    def put(self, name: str, data: bytes, anew: bool = False) -> None:
        """Has a file of these bytes be there; one that is there already stays, unless it is to be put anew."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            if path.read_bytes() == data:
                return
        with contextlib.suppress(FileExistsError), (atomic_file if anew else exclusive_file)(path) as file:
            file.write(data)

    def name(self, aside: Path, name: str) -> None:
        """Gives a whole file another name, in the place of whatever has it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        between = hidden_beside(path)
        try:
            os.link(aside, between)
        except OSError:
            shutil.copyfile(aside, between)
        between.replace(path)
        between.unlink(missing_ok=True)

    def download(self, name: str, nbytes: int) -> bool:
        """Brings a file of so many bytes at most in the place of what is there; whether there is one."""
        aside = self.aside(name, nbytes)
        if aside is None:
            return False
        aside.replace(self.folder / name)
        return True

    def aside(self, name: str, nbytes: int) -> Path | None:
        """A file of so many bytes at most, brought under a hidden name; None where there is none."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = hidden_beside(path)
        try:
            return aside if self._store.download(self.key(name), aside, nbytes) else None
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
