"""The files that what is served follows from: whether each is still what it was when it was read.

With every look the newest of them are looked at and, in turn, one of the others: two or three calls of stat(), however
many there are. A file that was touched or copied is read again and may go on, where its bytes are the same. One that
goes with the whole version is away rather than gone: an outage of a file system changes nothing. One that is not what
it was is looked at every time, until it is again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.repository.log.chain_record import ChainRecord, root_hash, sha256
from freshet_serving.processor.repository.log.history import History
from freshet_serving.processor.errors import BadInput, Corrupt, Diverged
from freshet_serving.processor.package.delta import MAX_DELTA_NBYTES, read_delta_file
from freshet_serving.processor.package.manifest import MAX_MANIFEST_NBYTES, Manifest
from freshet_serving.processor.repository.storage import VersionStorage
from freshet_serving.processor.package.regular_file import file_sha256, read_file
from freshet_serving.processor.repository.version import MANIFEST

Identity = tuple[int, int, int]
"""Modification time, size and inode: another file, or another content, has another."""


@dataclass(slots=True)
class WatchedFile:
    """A file as it was read. sha256: of its bytes, of the manifest its root hash. step: of a delta, -1 for others."""

    path: Path
    identity: Identity | None
    sha256: str
    step: int = -1


class Scrubber:
    """The files of one version."""

    def __init__(self, storage: VersionStorage, root: str) -> None:
        """root: the manifest's root hash."""
        self._storage, self._folder, self._turn = storage, storage.folder, 0
        folder = storage.folder
        self._watched = [WatchedFile(folder / MANIFEST, identity_of(folder / MANIFEST), root)]

    def add(self, path: Path, identity: Identity | None, digest: str, step: int = -1) -> None:
        """A file that was read. identity: what it was before it was."""
        self._watched.append(WatchedFile(path, identity, digest, step))

    def forget(self, names: Iterable[str]) -> None:
        """Looks no longer at files of these names, relative to the version's folder."""
        gone = {self._folder / name for name in names}
        self._watched = [one for one in self._watched if one.path not in gone]

    def look(self, history: History) -> None:
        """Looks at the newest and at one other; raises Diverged where one is not what it was."""
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
        """Whether a file need not be watched any longer."""
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
            raise Diverged(f"{_called(one, history)}: is served, and its file is gone", one.path)
        try:
            content = _content(one.path)
        except OSError:
            return False
        if content != one.sha256:
            raise Diverged(f"{_called(one, history)}: is served, and its file was replaced by another one", one.path)
        one.identity = now
        return False


def identity_of(path: Path) -> Identity | None:
    """What tells a file from another one of its name, or None where there is none."""
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
    """What a delta's file is, None where there is none, and its bytes, None where they are not those recorded."""
    path = storage.folder / record.file
    try:
        storage.fetch(record.file, record.nbytes)
        before = identity_of(path)
        data = read_delta_file(path, min(record.nbytes, MAX_DELTA_NBYTES)) if before is not None else None
    except Corrupt:
        return identity_of(path) or (0, 0, 0), None
    good = data is not None and data.nbytes == record.nbytes and sha256(data) == record.sha256
    return before, data if good else None
