"""Files of a repository, opened as what they have to be: regular files, and no larger than they may be.

A repository is written by others: under a file's name may lie a pipe, which holds up whoever opens it for good, a
device, a file of a terabyte without a byte of it on disk. Everything that is read of one is opened here.

Invariants
- Only regular files are opened. What lies there is looked at before, because opening a device may do something, and
  again after, because it may have been replaced; and it is opened so that a pipe does not wait for its writer.
- What is read whole is known to be no larger than the caller says before memory is taken for it.
- Bytes come by system calls: a file that is cut short meanwhile is an error, where a mapping would end the process.

Links are followed; that they lead nowhere outside is asked before (processor.repository.version.inside). What is left:
on a mount that hangs whoever reads hangs too.
"""

from __future__ import annotations

import hashlib
import os
import stat
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt

READ_NBYTES, HASH_NBYTES = 1 << 30, 1 << 20
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: Path, name: str = "") -> FileIO:
    """A regular file, open for reading; raises Corrupt for anything else, OSError for what the system refuses.
    name: what messages call it; by default its last part."""
    _check_kind(name or path.name, os.stat(path).st_mode)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _check_kind(name or path.name, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return FileIO(fd)


def read_file(path: Path, max_nbytes: int, name: str = "") -> NDArray[np.uint8]:
    """The file's bytes; raises Corrupt for more than max_nbytes and for what is no regular file, OSError."""
    name = name or path.name
    with open_regular(path, name) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > max_nbytes:
            raise Corrupt(f"{name}: at most {max_nbytes} bytes wanted, got {nbytes}")
        data, at = np.empty(nbytes, np.uint8), 0
        while at < nbytes:
            count = file.readinto(data[at : at + READ_NBYTES].data)
            if not count:
                raise Corrupt(f"{name}: was cut short while it was read")
            at += count
    return data


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes as 64 hexadecimal digits; raises Corrupt for what is no regular file, OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_content(path: Path, digest: str) -> bool:
    """Whether there is a file whose SHA-256 is this one."""
    try:
        return file_sha256(path) == digest
    except (Corrupt, OSError):
        return False


def fd_sha256(fd: int, nbytes: int) -> str:
    """SHA-256 of the first bytes of an open file; raises Corrupt where there are fewer, OSError."""
    found, at = hashlib.sha256(), 0
    while at < nbytes:
        data = os.pread(fd, min(HASH_NBYTES, nbytes - at), at)
        if not data:
            raise Corrupt("the file was cut short while it was read")
        found.update(data)
        at += len(data)
    return found.hexdigest()


def _check_kind(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise Corrupt(f"{name}: a regular file wanted, got {KINDS.get(stat.S_IFMT(mode), 'something else')}")
