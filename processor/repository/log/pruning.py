"""Find files of a model's folder that are no longer needed.

Always kept: versions, records, and everything needed to start at the head, to follow it, and to go back over the newest
`keep` generations of the line. Files before the newest snapshot that serves these may be removed; a rollback beyond it
is refused before it is recorded (processor.repository.log.change_log).

Files that no record names may be unfinished work, or about to become part of the log: they may be removed when they are
a day old and continue nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from freshet_serving.processor.package import SUFFIX
from freshet_serving.processor.repository.log.chain_record import CHAIN, ChainRecord
from freshet_serving.processor.repository.log.dropped_deltas import unrecorded_deltas
from freshet_serving.processor.repository.log.history import History
from freshet_serving.processor.repository.storage import VersionStorage
from freshet_serving.processor.repository.version import DELTAS, SNAPSHOTS

ABANDONED_S = 86_400.0
ROLLED_BACK = "rolled-back"
"""Folder below a version's deltas where a server of the first format put deltas that it undid."""


@dataclass(frozen=True, slots=True)
class PrunableFile:
    """A file or folder that may be removed; without `storage` it exists only in the local folder."""

    path: Path
    nbytes: int
    why: str
    storage: VersionStorage | None = None

    def remove(self) -> None:
        """Remove it wherever its version lives; it may already be gone."""
        if self.storage is not None:
            self.storage.remove(self.path.relative_to(self.storage.folder).as_posix())
        elif self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


def prunable(storage: VersionStorage, history: History, keep: int, now_s: float) -> list[PrunableFile]:
    """Return a version's files that may be removed, given its whole history and how far back (`keep`) it must reach."""
    base, folder = _base(history, keep), storage.folder
    files = [*_payloads(storage, history, base)] if base is not None else []
    files += _unrecorded(folder, history, now_s)
    for below in (folder, folder / DELTAS, folder / CHAIN, folder / SNAPSHOTS):
        files += unfinished(below, now_s)
    left = folder / DELTAS / ROLLED_BACK
    if left.is_dir():
        files.append(_measured(left, "undone by a server of the first format"))
    return files


def unfinished(folder: Path, now_s: float, after_s: float = ABANDONED_S) -> list[PrunableFile]:
    """Return temporary files and folders that have not been written to for after_s seconds (now_s: Unix seconds)."""
    return [
        _measured(path, "left unfinished")
        for path in _listed(folder)
        if path.name.startswith(".") and path.name.endswith(".tmp") and _abandoned(path, now_s, after_s)
    ]


def _base(history: History, keep: int) -> ChainRecord | None:
    line = list(history.back(history.target))
    return history.snapshot(line[min(keep, len(line) - 1)])


def _payloads(storage: VersionStorage, history: History, base: ChainRecord) -> Iterator[PrunableFile]:
    """Yield deltas and snapshots that records name, before the base."""
    line = list(history.back(history.head))
    on = {link.digest for link in line}
    needed = {link.record.file for link in line if link.record is not None and link.step > base.step}
    gone = {link.record.file: "before the snapshot" for link in line if link.record and link.step <= base.step}
    # An undone delta may be applied again; a reader that starts at the base does not know earlier ones.
    behind = [link.record for link in history.undone() if link.record is not None and link.record.number < base.since]
    gone |= {record.file: "undone" for record in behind}
    for name, why in gone.items():
        if name not in needed and storage.has(name):
            yield replace(_measured(storage.folder / name, why), storage=storage)
    for record in history.snapshots:
        older = record.step < base.step if record.digest in on else record.number < base.since
        if (older or _replaced(history, record)) and storage.has(record.file):
            yield replace(_measured((storage.folder / record.file).parent, "an older snapshot"), storage=storage)


def _replaced(history: History, record: ChainRecord) -> bool:
    return any(other.digest == record.digest and other.number > record.number for other in history.snapshots)


def _unrecorded(folder: Path, history: History, now_s: float) -> Iterator[PrunableFile]:
    named = {record.file.rpartition("/")[0] for record in history.snapshots}
    for path in _listed(folder / SNAPSHOTS):
        if path.is_dir() and f"{SNAPSHOTS}/{path.name}" not in named and _abandoned(path, now_s):
            yield _measured(path, "unfinished snapshot")
    coming = {bare.path.name for bare in unrecorded_deltas(folder) if bare.step > history.top}
    for path in _listed(folder / DELTAS):
        needed = f"{DELTAS}/{path.name}" in history.files or path.name in coming
        if path.name.endswith(SUFFIX) and not needed and path.is_file() and _abandoned(path, now_s):
            yield _measured(path, "unrecorded delta")


def _abandoned(path: Path, now_s: float, after_s: float = ABANDONED_S) -> bool:
    """Return True if nothing in a file or folder was written to for this long."""
    inside = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
    try:
        return now_s - max(entry.lstat().st_mtime for entry in inside) > after_s
    except OSError:
        return False


def _measured(path: Path, why: str) -> PrunableFile:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return PrunableFile(path, sum(file.lstat().st_size for file in files), why)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
