"""Read and write the files of a repository: regular and of bounded size, and whole or not at all.

A repository is written by others: a file's name may lead to a pipe, which blocks its reader for ever, a device, or a
terabyte without a byte on disk. Every file of a repository that is read is opened here.

Invariants
- Only regular files are opened. The kind is checked before opening, because opening a device may have effects, and
  again after; a pipe that slips in is opened without waiting for its writer.
- A file that is read whole is known to be no larger than the caller allows before memory is allocated for it.
- Bytes come by system calls: a file that is truncated meanwhile is an error, where a mapping would end the process.
- A reader sees a whole file under its name, or no file. Bytes are fsynced under a hidden name in the same folder, then
  renamed, or linked where a name may be given only once; then the folder is fsynced. A crash leaves a hidden file.

Links are followed; the caller has checked that they do not lead outside (inside(), followed()). On a mount that hangs,
the reader hangs too. On a file system without hard links a name is given once by O_EXCL: a kill before the one write
leaves an empty file, which its reader must distinguish from a whole one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt, NotFound, printable

READ_NBYTES, HASH_NBYTES = 1 << 30, 1 << 20
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def inside(root: Path, relative: str) -> Path:
    """Return `relative` resolved below `root`; raise NotFound if it would leave it.

    Links are followed as long as they stay inside, so that a link can be moved to promote what it points at.
    """
    try:
        base = root.resolve()
        path = (base / relative).resolve()
    except (OSError, ValueError, RuntimeError):
        raise NotFound("path: expected a file inside the repository") from None
    if "\0" in relative or not path.is_relative_to(base):
        raise NotFound("path: expected a file inside the repository")
    return path


def followed(root: Path, relative: str) -> Path:
    """Return a version's folder or file, a path of our own making, resolved below `root`; NotFound if it leads out."""
    try:
        return inside(root, relative)
    except NotFound:
        raise NotFound(
            f"{printable(relative[:256])}: is a link, or lies behind one, whose target is outside; a link to a version "
            "is followed inside its repository, one to a file inside its version: move the target there, or copy it "
            "in place of the link"
        ) from None


def open_regular(path: Path, name: str = "") -> FileIO:
    """Open a regular file, by default named by its last part; raise Corrupt for any other kind, or OSError."""
    _check_kind(name or path.name, os.stat(path).st_mode)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _check_kind(name or path.name, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return FileIO(fd)


def read_file(path: Path, max_nbytes: int, name: str = "") -> NDArray[np.uint8]:
    """Return the file's bytes; raise Corrupt if it is larger than max_nbytes or not a regular file, or OSError."""
    name = name or path.name
    with open_regular(path, name) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > max_nbytes:
            raise Corrupt(f"{name}: expected at most {max_nbytes} bytes, got {nbytes}")
        data, at = np.empty(nbytes, np.uint8), 0
        while at < nbytes:
            count = file.readinto(data[at : at + READ_NBYTES].data)
            if not count:
                raise Corrupt(f"{name}: was cut short while it was read")
            at += count
    return data


def sha256(data: Any) -> str:
    """Return the SHA-256 of a buffer in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal; raise Corrupt if it is no regular file, or OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_content(path: Path, digest: str) -> bool:
    """Report whether the file exists and has this SHA-256, in hexadecimal."""
    try:
        return file_sha256(path) == digest
    except (Corrupt, OSError):
        return False


def fd_sha256(fd: int, nbytes: int) -> str:
    """Return the SHA-256 of the first bytes of an open file; raise Corrupt if it is shorter, or OSError."""
    digest, at = hashlib.sha256(), 0
    while at < nbytes:
        data = os.pread(fd, min(HASH_NBYTES, nbytes - at), at)
        if not data:
            raise Corrupt("the file was cut short while it was read")
        digest.update(data)
        at += len(data)
    return digest.hexdigest()


def _check_kind(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise Corrupt(f"{name}: expected a regular file, got {KINDS.get(stat.S_IFMT(mode), 'something else')}")


def atomic_file(path: Path) -> AbstractContextManager[BinaryIO]:
    """Yield a binary file that appears as `path` only when the block ends without an error."""
    return _whole_file(path, os.replace)


def exclusive_file(path: Path) -> AbstractContextManager[BinaryIO]:
    """Yield a file as atomic_file() does, for a new name; raise FileExistsError at the end if it exists by then."""
    return _whole_file(path, give_name)


@contextmanager
def _whole_file(path: Path, name: Callable[[Path, Path], None]) -> Iterator[BinaryIO]:
    """Yield a temporary file; `name` gives it its final name, once it is complete."""
    temporary = hidden_beside(path)
    try:
        with durable_file(temporary) as file:
            yield file
        name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold a lock of a folder against other processes that ask for it; it ends with the process and leaves no file.

    Raises OSError where folders cannot be locked, as on NFS.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file of a new name, whose bytes are durable at the end; its name is not before the folder is fsynced."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def give_name(temporary: Path, path: Path) -> None:
    """Give a complete file a name that must be new, else FileExistsError. Not durable before the folder is fsynced."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        data = temporary.read_bytes()
        with open(path, "xb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())


def hidden_beside(path: Path) -> Path:
    """Return an unused name beside a file or folder that no reader opens."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def fsync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
