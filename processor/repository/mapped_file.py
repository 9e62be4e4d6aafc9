"""Memory-mapped file of a served version, and detection of its damage.

Only tables, which may be larger than memory, stay mapped; everything else is read once, into private memory. A mapping
does not survive truncation, or pages that a disk can no longer read: a process that touches one is killed by SIGBUS,
which it cannot catch. Bytes overwritten in place are simply read. Replacing the file by rename, or removing it, changes
nothing: the mapping keeps the file it had.

So, where the kernel supports it, no process writes to a mapped file: with a lease (fcntl(2), F_SETLEASE), a process
that opens it for writing, or truncates it, waits until it is no longer mapped, at most for
/proc/sys/fs/lease-break-time (45 s). A check finds that a process is waiting, and the version is unloaded. There is no
lease on a file of another owner (without CAP_LEASE), on most network file systems, and on a file that is open for
writing when it is mapped.

Each mapped file is also checked through its descriptor, never through the mapping, with one of three efforts: its size;
its checksum if the metadata has changed; its checksum in any case.
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
from freshet_serving.processor.package import fd_sha256, file_crc32, open_regular

SIZES, CHANGES, BYTES = range(3)
"""Efforts of a check: sizes; also the bytes of files whose metadata has changed; the bytes of all files."""

Stat = tuple[int, int, int]
"""Inode, size and modification time: different content has a different one."""


def stat_of(fd: int) -> Stat:
    """Return what distinguishes an open file's content; not the change time, which a backup by hard links changes."""
    about = os.fstat(fd)
    return about.st_ino, about.st_size, about.st_mtime_ns


def has_content(fd: int, nbytes: int, crc32: str, sha256: str, threads: int = 0) -> bool:
    """Return True if an open file has the expected content: by its SHA-256 if it was signed, else by its checksum.

    Threads of 0 are the default number.
    """
    if sha256:
        # It is stronger than the checksum, and reading twice would cost twice.
        return fd_sha256(fd, nbytes) == sha256
    return (file_crc32(fd, nbytes, threads) if threads else file_crc32(fd, nbytes)) == crc32


def lease(fd: int) -> bool:
    """Take a lease, so that writers to the open file wait until it is closed; return True if it was granted."""
    try:
        _take_lease(fd)
    except (AttributeError, OSError):
        return False
    return True


def _take_lease(fd: int) -> None:
    """Take a lease; raise OSError if there is none, with EAGAIN while the file is open for writing."""
    # The lease is polled, so no signal is needed: SIGIO would end most processes. SIGURG, which may still arrive before
    # the owner is cleared, is ignored by default.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    fcntl.fcntl(fd, fcntl.F_SETOWN, 0)


def is_written_to(path: Path) -> bool:
    """Return True if a process has the file open for writing, or waits to; False if that is unknown."""
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
    """A mapped file, which no process can write to if it is leased. Any thread may check it.

    Only `seen`, its stat when it had this content, changes, and either of two values is valid.
    """

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
        """Map a file; `verified` is its stat when it was verified, None if it was not.

        Raises Corrupt if it has changed since, or is not a regular file, empty or unreadable.
        """
        try:
            with open_regular(path, name) as file:
                leased = lease(file.fileno())
                seen = stat_of(file.fileno())
                if verified is not None and seen != verified:
                    raise Corrupt(f"{name}: changed while it was read")
                if not seen[1]:
                    raise Corrupt(f"{name}: the file is empty")
                mapping = SharedMap.of(file.fileno(), seen[1], writable=False)
        except OSError as error:
            raise unreadable(name, error) from None
        return cls(path, name, crc32, np.frombuffer(mapping, np.uint8), mapping, seen, leased, sha256)

    def damage(self, effort: int) -> str:
        """Return why the file is no longer what was verified; "" if this effort finds nothing.

        Without a change, the first two efforts take two system calls. Reading keeps one core busy.
        """
        try:
            if self.leased and fcntl.fcntl(self.mapping.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                return "is about to be written while it is served; the writer waits until no process reads it"
            now = stat_of(self.mapping.fd)
            if now[1] < self.array.nbytes:
                return f"was truncated while being served: expected {self.array.nbytes} bytes, got {now[1]}"
            if effort == SIZES or (effort == CHANGES and now == self.seen):
                return ""
            if not has_content(self.mapping.fd, self.array.nbytes, self.crc32, self.sha256, 1):
                return "was overwritten while being served: does not match its checksum"
        except Corrupt:
            return "was truncated while being served"
        except OSError as error:
            return f"can no longer be read: {error.strerror}"
        self.seen = now
        return ""
