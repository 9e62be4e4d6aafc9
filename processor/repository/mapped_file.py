"""A file of a package that stays mapped while its version is served, and whether it still is what was verified.

Only tables stay mapped: they may be larger than memory. Everything else is read once, into memory that nobody else can
change. What a mapping cannot survive: the pages of a file that was cut short are gone, and whoever touches one is ended
by SIGBUS, whatever it would catch; so are those that a disk cannot read any more. Bytes that are written over in place
are simply read. A file that is replaced by rename, or removed, changes nothing: the mapping keeps the one that it had.

So nobody writes to a mapped file while it is served, where the kernel can see to that: a lease (fcntl(2), F_SETLEASE)
makes whoever opens it for writing, or cuts it short, wait until nobody maps it any more, at most for
/proc/sys/fs/lease-break-time (45 s). A look finds that somebody waits, and the version is served no more. There is no
lease on a file of somebody else's (without CAP_LEASE), on most network file systems, and on a file that is open for
writing when it is mapped.

For the rest each mapped file is looked at, by its descriptor and never through the mapping, with as much effort as
there is reason for: its size; whether anything about it has moved, and then its checksum; its checksum in any case.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt, unreadable
from freshet_serving.processor.memory import SharedMap
from freshet_serving.processor.package import fd_sha256, open_regular
from freshet_serving.processor.package import file_crc32

SIZES, CHANGES, BYTES = range(3)
"""Efforts of a look: sizes alone; besides, the bytes of files about which anything has changed; those of all files."""

Stat = tuple[int, int, int]
"""Inode, size, and when the content was changed: another content has another."""


def stat_of(fd: int) -> Stat:
    """What tells an open file's content from another one. The time of the inode's own changes is left out: a backup
    by hard links, or a removal, changes it for every file, and all of them would be read again."""
    about = os.fstat(fd)
    return about.st_ino, about.st_size, about.st_mtime_ns


def has_content(fd: int, nbytes: int, crc32: str, sha256: str, threads: int = 0) -> bool:
    """Whether an open file has the content that is wanted. sha256: "" where nobody has signed it."""
    if sha256:
        # It says more than the checksum, and reading twice would cost twice.
        return fd_sha256(fd, nbytes) == sha256
    return (file_crc32(fd, nbytes, threads) if threads else file_crc32(fd, nbytes)) == crc32


def lease(fd: int) -> bool:
    """Whether whoever wants to write to an open file will have to wait until it is closed."""
    try:
        _take_lease(fd)
    except (AttributeError, OSError):
        return False
    return True


def _take_lease(fd: int) -> None:
    """Raises OSError where there is none, EAGAIN while the file is open for writing."""
    # A look asks, so nobody is to be sent a signal: SIGIO would end most processes, and SIGURG, which may still come
    # before the owner is taken back, is passed over by all that do not ask for it.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    fcntl.fcntl(fd, fcntl.F_SETOWN, 0)


def is_written_to(path: Path) -> bool:
    """Whether somebody has a file open for writing, or waits to; False where that cannot be known."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        _take_lease(fd)
    except OSError as error:
        return error.errno == errno.EAGAIN
    except AttributeError:
        return False
    finally:
        os.close(fd)
    return False


@dataclass(slots=True, eq=False)
class MappedFile:
    """A mapped file. path: where it lies; name: in its package. crc32, sha256: see has_content(). array: its bytes. seen: its
    stat when they were those. leased: whether nobody can write to it meanwhile.

    Looked at by any thread: `seen` alone changes, and any of two values will do."""

    path: Path
    name: str
    crc32: str
    array: NDArray[np.uint8]
    mapping: SharedMap
    seen: Stat
    leased: bool = False
    sha256: str = ""

    @classmethod
    def of(cls, path: Path, name: str, crc32: str, verified: Stat | None, sha256: str = "") -> MappedFile:
        """Maps the file at `path`. verified: what it was when it was verified, None where it was not; raises Corrupt
        where it has changed since, where it is no regular file, empty or unreadable."""
        try:
            with open_regular(path, name) as file:
                leased = lease(file.fileno())
                seen = stat_of(file.fileno())
                if verified is not None and seen != verified:
                    raise Corrupt(f"{name}: was changed while it was read")
                if not seen[1]:
                    raise Corrupt(f"{name}: the file is empty")
                mapping = SharedMap.of(file.fileno(), seen[1], writable=False)
        except OSError as error:
            raise unreadable(name, error) from None
        return cls(path, name, crc32, np.frombuffer(mapping, np.uint8), mapping, seen, leased, sha256)

    def damage(self, effort: int) -> str:
        """Why the file is not what was verified any more, "" as far as that effort can tell. Where nothing has changed
        the first two take two system calls. What is read keeps one core busy, not those that answer requests."""
        try:
            if self.leased and fcntl.fcntl(self.mapping.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                return "is about to be written to while it is served; it waits until nobody reads it any more"
            now = stat_of(self.mapping.fd)
            if now[1] < self.array.nbytes:
                return f"was cut short while it is served: {self.array.nbytes} bytes wanted, got {now[1]}"
            if effort == SIZES or (effort == CHANGES and now == self.seen):
                return ""
            if not has_content(self.mapping.fd, self.array.nbytes, self.crc32, self.sha256, 1):
                return "was overwritten while it is served: does not match its checksum"
        except Corrupt:
            return "was cut short while it is served"
        except OSError as error:
            return f"cannot be read any more: {error.strerror}"
        self.seen = now
        return ""
