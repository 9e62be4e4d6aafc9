"""Detection of changes to a folder or a file: one stat call a check, however much is in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

RACY_NS = 2_000_000_000

Identity = tuple[int, int, int]
"""Modification time, size and inode: different for another file, or other content."""


class FolderWatch:
    """Detector of changes to a folder's entries since the last check.

    A change within the clock tick of the last check leaves the modification time as it was, so a folder that changed
    less than two seconds before a check counts as changed at the next one too.
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
        seen, self._seen = self._seen, (mtime_ns, settled)
        return seen != (mtime_ns, True)

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
