"""Copies of one version's files in its mirror folder.

Invariant: files appear whole, by rename or link, so any number of processes may work on one folder. Two that download
the same file write the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.extensions.object_stores.counted_store import CountedStore
from freshet_serving.processor.package import atomic_file, exclusive_file, hidden_beside
from freshet_serving.processor.repository import Identity, identity_of

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.object_stores.object_store import ObjectContent

AT_ONCE = 8


class EtagCache:
    """Etags of files that are copies of objects; of a file that another process has written since, none is known."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[str, Identity | None]] = {}

    def etag(self, path: Path) -> str:
        """Return the etag of a file's content; "" if it is not known."""
        etag, identity = self._known.get(path, ("", None))
        return etag if identity is not None and identity == identity_of(path) else ""

    def put(self, path: Path, content: ObjectContent) -> None:
        """Write the content of an object to the file, unless it is there, and remember its etag."""
        if not path.exists() or path.read_bytes() != content.data:
            with atomic_file(path) as file:
                file.write(content.data)
        self._known[path] = content.etag, identity_of(path)

    def clear(self) -> None:
        self._known.clear()


class VersionCopy:
    """Writer of one version's files in its folder, whose objects have the prefix `key`."""

    def __init__(self, store: CountedStore, folder: Path, key: str) -> None:
        self._store, self.folder, self._key = store, folder, key

    def key(self, name: str) -> str:
        return f"{self._key}/{name}"

    def put(self, name: str, data: bytes, anew: bool = False) -> None:
        """Write the file unless it exists (or always, with `anew`)."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            if path.read_bytes() == data:
                return
        with contextlib.suppress(FileExistsError), (atomic_file if anew else exclusive_file)(path) as file:
            file.write(data)

    def name(self, aside: Path, name: str) -> None:
        """Give a complete file another name as well, replacing a file of that name."""
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
        """Download a file, replacing an existing one; return False if there is no object, Corrupt if it is larger."""
        aside = self.aside(name, nbytes)
        if aside is None:
            return False
        aside.replace(self.folder / name)
        return True

    def aside(self, name: str, nbytes: int) -> Path | None:
        """Download a file under a hidden name and return its path; None if there is no object."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = hidden_beside(path)
        try:
            return aside if self._store.download(self.key(name), aside, nbytes) else None
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
