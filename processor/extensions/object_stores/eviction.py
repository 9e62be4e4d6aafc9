"""Evict files of a mirror that is too large, least needed first.

Evicted first is what a killed process has left unfinished; then versions that no process needs, those unused for
longest; then, of the versions that this process follows, delta files far behind what is served. Manifests and records
stay: they are small, and they identify a version.

A version is needed while any process holds its lease, a shared lock; evict() tries to take that lock exclusively,
without waiting. An evicted file is downloaded again when it is requested (mirrored_storage).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from freshet_serving.processor.extensions.object_stores.mirrored_storage import LEASE, MirroredStorage
from freshet_serving.processor.repository import CANDIDATES, DELTAS, MANIFEST
from freshet_serving.processor.repository.log.chain_record import CHAIN
from freshet_serving.processor.repository.log.pruning import unfinished
from freshet_serving.processor.repository.version_folders import VERSION

KEPT_DELTAS = 64
LEFT_S = 6 * 3600.0
"""Files that have not been written to for this many seconds have no owner."""


def total_nbytes(root: Path) -> int:
    return sum(_size(Path(folder, name)) for folder, _, names in os.walk(root) for name in names)


def evict(root: Path, leased: Sequence[MirroredStorage], nbytes: int) -> int:
    """Remove files until `nbytes` are free, of versions that this process follows last; return the bytes removed."""
    freed = 0
    for folder, folders, _ in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for left in unfinished(Path(folder), time.time(), LEFT_S):
            freed += left.nbytes
            left.remove()
    places: tuple[Path, ...] = (*root.glob("*/*"), *root.glob(f"*/{CANDIDATES}/*"))
    versions = (f for f in places if VERSION.fullmatch(f.name) and not f.is_symlink())
    for version in sorted(versions, key=_used_s):
        if freed >= nbytes:
            return freed
        freed += _emptied(version)
    for storage in leased:
        for path in sorted((storage.folder / DELTAS).glob("[0-9]*"), key=_used_s)[:-KEPT_DELTAS]:
            if freed >= nbytes:
                return freed
            freed += _size(path)
            path.unlink(missing_ok=True)
    return freed


def _emptied(folder: Path) -> int:
    """Empty the folder of a version that no process needs; return the bytes removed."""
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
