"""Sparse memory that grows by being touched and that another process could map.

One reservation is one memfd (Linux) of its final size: address space is taken at once, pages only when written, so
an arena needs no growth protocol and no copy, and its size does not depend on /dev/shm. Elsewhere an anonymous
mapping, which behaves the same within one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WRITE_NBYTES = 64 << 20


def reserve(nbytes: int, name: str, content: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """A writable buffer of nbytes, page-aligned, resident only where it has been written; zeros after `content`."""
    nbytes = max(nbytes, mmap.PAGESIZE)
    if sys.platform == "linux":
        fd = os.memfd_create(f"freshet-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
            at = 0
            while content is not None and at < content.nbytes:
                at += os.pwrite(fd, content[at : at + WRITE_NBYTES].data, at)
            mapped = mmap.mmap(fd, nbytes)
        finally:
            os.close(fd)
    else:
        mapped = mmap.mmap(-1, nbytes)
        if content is not None:
            mapped[: content.nbytes] = content.data
    return np.frombuffer(mapped, np.uint8)


def private_copy(view: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """A writable copy of `view` in reserved memory; of a mapped view no page stays resident.

    On Linux it is written to the file before that is mapped: half the time of writing through a mapping, whose every
    page is a fault and is zeroed first.
    """
    source = np.ascontiguousarray(view)
    content = source.reshape(-1).view(np.uint8)
    copy = reserve(source.nbytes, name, content)[: source.nbytes].view(np.int64).reshape(source.shape)
    advise(view, mmap.MADV_DONTNEED)
    return copy


def advise(array: NDArray[Any], advice: int) -> None:
    """madvise() for the pages that an array lies in, if it is a view of a mapping; where it fails nothing changes.

    Of a mapping and of nothing else: MADV_DONTNEED drops what it can read again, and for other memory there is nothing
    to read. Through the C library, because a call for many pages must not hold the GIL.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, mmap.mmap) or not array.size or sys.platform != "linux":
        return
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    stop = array.ctypes.data + array.nbytes
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(advice))


class ScratchFile:
    """A file without a name, mapped as one buffer of its final size; on disk only where space was taken.

    It is gone with the process, however that ends. Space is taken before it is written to: a full disk is an OSError
    of take(), never a fault in whoever writes.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        """folder: where there is room; raises OSError."""
        with tempfile.TemporaryFile(dir=folder, prefix="freshet-") as file:
            os.ftruncate(file.fileno(), nbytes)
            self._fd = os.dup(file.fileno())
            self._mapped = mmap.mmap(self._fd, nbytes)
        self.array = np.frombuffer(self._mapped, np.uint8)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def take(self, start: int, nbytes: int) -> None:
        """Makes sure of room for the bytes from `start` on; raises OSError."""
        os.posix_fallocate(self._fd, start, nbytes)

    def give_back(self, start: int, nbytes: int) -> None:
        """Gives the room of the whole pages among the bytes back to the disk, where the file system can."""
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        # What the file system cannot do it need not: the room is used again all the same.
        with contextlib.suppress(OSError):
            if last > first:
                self._mapped.madvise(mmap.MADV_REMOVE, first, last - first)
