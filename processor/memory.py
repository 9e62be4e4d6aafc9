"""Sparse memory that grows by being touched and that another process could map.

One reservation is one memfd (Linux) of its final size: address space is taken at once, pages only when written, so
an arena needs no growth protocol and no copy, and its size does not depend on /dev/shm. Elsewhere an anonymous
mapping, which behaves the same within one process.
"""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
from numpy.typing import NDArray


def reserve(nbytes: int, name: str) -> NDArray[np.uint8]:
    """A zeroed, writable buffer of nbytes, page-aligned, resident only where it has been written."""
    nbytes = max(nbytes, mmap.PAGESIZE)
    if sys.platform == "linux":
        fd = os.memfd_create(f"freshet-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
            mapped = mmap.mmap(fd, nbytes)
        finally:
            os.close(fd)
    else:
        mapped = mmap.mmap(-1, nbytes)
    return np.frombuffer(mapped, np.uint8)


def private_copy(view: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """A writable copy of `view` in reserved memory."""
    copy = reserve(view.nbytes, name)[: view.nbytes].view(np.int64).reshape(view.shape)
    np.copyto(copy, view)
    return copy
