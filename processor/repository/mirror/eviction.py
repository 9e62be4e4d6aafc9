"""What of a mirror may go when it takes more than it may: first what a process that was killed has left half made; then
versions that no process needs, those that were not needed for longest; then, of those that this process follows, delta
files far behind what is served.

Manifests and records stay: they are small, and by them a version is known. A version is needed while any process holds
its lease, a shared lock that evict() asks for alone and without waiting. A file that went is brought again by whoever
asks for it (processor.repository.mirror.mirrored_storage), so going wrong here costs time and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from freshet_serving.processor.repository.log.chain_record import CHAIN
from freshet_serving.processor.repository.log.pruning import unfinished
from freshet_serving.processor.repository.mirror.mirrored_storage import LEASE, MirroredStorage
from freshet_serving.processor.repository.version import DELTAS, MANIFEST
from freshet_serving.processor.repository.model_repository import VERSION

KEPT_DELTAS = 64
LEFT_S = 6 * 3600.0
"""What nobody has written to for so long is nobody's."""


def total_nbytes(root: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(_size(Path(folder, name)) for folder, _, names in os.walk(root) for name in names)


def evict(root: Path, mine: Sequence[MirroredStorage], nbytes: int) -> int:
    """Removes so many bytes, or what may go; returns how many went."""
    freed = 0
    for folder, folders, _ in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for left in unfinished(Path(folder), time.time(), LEFT_S):
            freed += left.nbytes
            left.remove()
    versions = (f for f in root.glob("*/*") if VERSION.fullmatch(f.name) and not f.is_symlink())
    for version in sorted(versions, key=_used_s):
        if freed >= nbytes:
            return freed
        freed += _emptied(version)
    for storage in mine:
        for path in sorted((storage.folder / DELTAS).glob("[0-9]*"), key=_used_s)[:-KEPT_DELTAS]:
            if freed >= nbytes:
                return freed
            freed += _size(path)
            path.unlink(missing_ok=True)
    return freed


def _emptied(folder: Path) -> int:
    """Empties the folder of a version that nobody needs; how many bytes that were."""
    try:
        fd = os.open(folder / LEASE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = total_nbytes(folder)
        for path in folder.iterdir():
            if path.is_dir() and path.name != CHAIN:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_file() and path.name not in (MANIFEST, LEASE):
                path.unlink(missing_ok=True)
        return before - total_nbytes(folder)
    except OSError:
        return 0
    finally:
        os.close(fd)


def _used_s(path: Path) -> float:
    lease = path / LEASE
    try:
        return (lease if lease.exists() else path).stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
