"""Write files crash-safely: a reader sees a whole file under its name, or no file.

Invariant: bytes go to a hidden temporary name in the same folder and are fsynced; the file is then renamed, or linked
where a name may be given only once; the folder is fsynced after. A crash leaves at most a temporary file, whose name
starts with a dot and which no reader opens.

On a file system without hard links a name is given once by O_EXCL: there a kill between the creation and the one write
leaves an empty file, which its reader must distinguish from a whole one.
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
    """Yield a binary file that appears as `path` only when the block ends without an error."""
    return _whole_file(path, os.replace)


def exclusive_file(path: Path) -> AbstractContextManager[BinaryIO]:
    """Yield a file as atomic_file() does, for a new name; raises FileExistsError at the end if it exists by then."""
    return _whole_file(path, give_name)


@contextmanager
def _whole_file(path: Path, name: Callable[[Path, Path], None]) -> Iterator[BinaryIO]:
    """Yield a temporary file. name: gives it its final name, once it is complete."""
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
    """Give a complete file a name that must be new. Not durable before the folder is fsynced.

    Args:
        temporary: Its temporary name.
        path: The new name.

    Raises:
        FileExistsError: If the name exists.
    """
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
