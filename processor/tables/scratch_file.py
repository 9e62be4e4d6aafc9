"""A file for more bytes than memory has room for, mapped as one buffer, on disk only where space was reserved."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.memory import SharedMap


class ScratchFile:
    """A file without a name, gone with the process, mapped as one buffer of its final size.

    Space is reserved before it is written to: a full disk is an OSError of take(), never a fault in the writer.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        """Create the file in a folder on a disk with enough space; raises OSError."""
        with tempfile.TemporaryFile(dir=folder, prefix="freshet-") as file:
            os.ftruncate(file.fileno(), nbytes)
            self._mapped = SharedMap.of(file.fileno(), nbytes, writable=True)
        self.array = np.frombuffer(self._mapped, np.uint8)

    def take(self, start: int, nbytes: int) -> None:
        """Reserve disk space; raises OSError."""
        os.posix_fallocate(self._mapped.fd, start, nbytes)

    def read(self, at: int, into: NDArray[Any]) -> None:
        """Fill an array from byte `at` on by a system call, so that no page of the mapping becomes resident."""
        left, done = into.reshape(-1).view(np.uint8), 0
        while done < len(left):
            count = os.preadv(self._mapped.fd, [left[done:].data], at + done)
            if not count:
                raise OSError(errno.EIO, "a file was cut short while it was read")
            done += count

    def write(self, at: int, array: NDArray[Any]) -> None:
        """Write an array's bytes from byte `at` on by a system call, where space was reserved."""
        left = array.reshape(-1).view(np.uint8)
        while len(left):
            count = os.pwrite(self._mapped.fd, left.data, at)
            left, at = left[count:], at + count

    def forget(self) -> None:
        """Flush what was written to the disk, and drop it from the page cache."""
        os.fdatasync(self._mapped.fd)
        os.posix_fadvise(self._mapped.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def punch_hole(self, start: int, nbytes: int) -> None:
        """Return the space of the whole pages among the bytes to the disk, if the file system can."""
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        # It is no loss if the file system cannot: the space is reused in any case.
        with contextlib.suppress(OSError):
            if last > first:
                self._mapped.madvise(mmap.MADV_REMOVE, first, last - first)
