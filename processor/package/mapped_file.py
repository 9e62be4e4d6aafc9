"""A file of a package that stays mapped while its version is served, and whether it still is what was verified.

Only tables stay mapped: they may be larger than memory. Everything else is read once, into memory that nobody else can
change. What a mapping cannot survive: the pages of a file that was cut short are gone, and whoever touches one is ended
by SIGBUS, whatever it would catch; so are those that a disk cannot read any more. Bytes that are written over in place
are simply read. A file that is replaced by rename, or removed, changes nothing: the mapping keeps the one that it had.

So each mapped file is looked at, by its descriptor and never through the mapping, with as much effort as there is
reason for: its size; whether anything about it has moved, and then its checksum; its checksum in any case.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from processor.errors import Corrupt
from processor.memory import SharedMap
from processor.package.regular_file import open_regular
from processor.package.tensors import file_crc32

SIZES, CHANGES, BYTES = range(3)
"""Efforts of a look: sizes alone; besides, the bytes of files about which anything has changed; those of all files."""

Stat = tuple[int, int, int]
"""Inode, size, and when the content was changed: another content has another."""


def stat_of(fd: int) -> Stat:
    """What tells an open file's content from another one. The time of the inode's own changes is left out: a backup
    by hard links, or a removal, changes it for every file, and all of them would be read again."""
    about = os.fstat(fd)
    return about.st_ino, about.st_size, about.st_mtime_ns


@dataclass(slots=True, eq=False)
class MappedFile:
    """A mapped file. name: in its package. crc32: of all of it. array: its bytes. seen: its stat when they were those.

    Looked at by any thread: `seen` alone changes, and any of two values will do."""

    name: str
    crc32: str
    array: NDArray[np.uint8]
    mapping: SharedMap
    seen: Stat

    @classmethod
    def of(cls, path: Path, name: str, crc32: str, verified: Stat | None) -> MappedFile:
        """Maps the file at `path`. verified: what it was when it was verified, None where it was not; raises Corrupt
        where it has changed since, where it is no regular file, empty or unreadable."""
        try:
            with open_regular(path, name) as file:
                seen = stat_of(file.fileno())
                if verified is not None and seen != verified:
                    raise Corrupt(f"{name}: was changed while it was read")
                if not seen[1]:
                    raise Corrupt(f"{name}: the file is empty")
                mapping = SharedMap.of(file.fileno(), seen[1], writable=False)
        except OSError as error:
            raise Corrupt(f"{name}: cannot be read: {error.strerror or 'it cannot be mapped'}") from None
        return cls(name, crc32, np.frombuffer(mapping, np.uint8), mapping, seen)

    def damage(self, effort: int) -> str:
        """Why the file is not what was verified any more, "" as far as that effort can tell. Where nothing has changed
        the first two take one call of fstat(). What is read keeps one core busy, not those that answer requests."""
        try:
            now = stat_of(self.mapping.fd)
            if now[1] < self.array.nbytes:
                return f"was cut short while it is served: {self.array.nbytes} bytes wanted, got {now[1]}"
            if effort == SIZES or (effort == CHANGES and now == self.seen):
                return ""
            if file_crc32(self.mapping.fd, self.array.nbytes, 1) != self.crc32:
                return "was overwritten while it is served: does not match its checksum"
        except Corrupt:
            return "was cut short while it is served"
        except OSError as error:
            return f"cannot be read any more: {error.strerror}"
        self.seen = now
        return ""
