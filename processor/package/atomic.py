"""Crash-safe writing: a reader sees a whole file under its name, or no file.

Invariant: bytes go to a hidden temporary name in the same folder, are fsynced, then renamed, or linked where a name may
be given once only; the folder is fsynced after. A crash leaves at most a temporary file, whose name starts with a dot
and which no reader opens.

A file system without hard links gives a name once by O_EXCL: there a kill between the creation and the one write
leaves an empty file, which its reader has to tell from a whole one.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def atomic_file(path: Path) -> AbstractContextManager[BinaryIO]:
    """Yields a binary file that appears as `path` only when the block ends without an error."""
    return _whole_file(path, os.replace)


def exclusive_file(path: Path) -> AbstractContextManager[BinaryIO]:
    """Like atomic_file() for a name that nobody has: raises FileExistsError, at the end, where somebody was faster."""
    return _whole_file(path, give_name)


@contextmanager
def _whole_file(path: Path, name: Callable[[Path, Path], None]) -> Iterator[BinaryIO]:
    """name: gives a whole file, by its temporary name, its own."""
    temporary = hidden_beside(path)
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def give_name(temporary: Path, path: Path) -> None:
    """Gives a whole file a name that nobody has; raises FileExistsError. Not durable before the folder is."""
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
    """A name beside a file or folder that nobody has and no reader opens."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def fsync_folder(folder: Path) -> None:
    """Makes the folder's entries durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
