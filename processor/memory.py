"""Shared memory: buffers that grow by being touched, and the handles by which another process maps the very same bytes.

One reservation is one memfd (Linux) of its final size: address space is taken at once, pages only when written, so
an arena needs no growth protocol and no copy, and its size does not depend on /dev/shm. Elsewhere an anonymous
mapping, which behaves the same within one process.

A SharedMap keeps a descriptor of its file. share() finds it below any view and names the bytes by (descriptor, offset,
dtype, shape); attach() maps them again where the descriptor has been sent to. So another process reads the inode that
was verified here, whatever its path has come to mean since.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
WRITE_NBYTES = 64 << 20
PIECE_NBYTES = 1 << 20
LARGE_NBYTES = 4 << 20
# Of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class SharedMap(mmap.mmap):
    """A shared mapping of a whole file, which stays open as long as a view of it lives."""

    fd: int

    @classmethod
    def of(cls, fd: int, nbytes: int, writable: bool) -> SharedMap:
        """Maps a descriptor, which the caller may close."""
        mapping = cls(fd, nbytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        mapping.fd = os.dup(fd)
        return mapping

    # As a process ends, the modules go before the last views of a mapping do.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "fd"):
            close(self.fd)


def return_large_blocks() -> None:
    """Make the C library return blocks of LARGE_NBYTES and more to the system when they are freed.

    By default glibc raises its own bound to the largest block that was freed, up to 32 MB, and then keeps twice as much
    in the heap of each thread: one large request left 70 MB behind in every process that had read one. What the
    environment says of malloc is kept. Does nothing where there is no mallopt.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_NBYTES)
        mallopt(M_TRIM_THRESHOLD, 2 * LARGE_NBYTES)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayHandle:
    """The place of an array's bytes: offset bytes into the file of `mapping`. C order."""

    mapping: SharedMap
    offset: int
    dtype: str
    shape: tuple[int, ...]


def reserve(nbytes: int, name: str, content: Iterable[NDArray[np.uint8]] = ()) -> NDArray[np.uint8]:
    """A writable buffer of nbytes, page-aligned, resident only where it has been written; zeros after the pieces of
    `content`."""
    nbytes, at = max(nbytes, mmap.PAGESIZE), 0
    if sys.platform != "linux":
        mapped = mmap.mmap(-1, nbytes)
        for piece in content:
            mapped[at : at + piece.nbytes] = piece.data
            at += piece.nbytes
        return np.frombuffer(mapped, np.uint8)
    fd = os.memfd_create(f"freshet-{name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, nbytes)
        for piece in content:
            left = piece.data
            while left:
                count = os.pwrite(fd, left[:WRITE_NBYTES], at)
                left, at = left[count:], at + count
        return np.frombuffer(SharedMap.of(fd, nbytes, writable=True), np.uint8)
    finally:
        os.close(fd)


def pieces(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    """The bytes of an array, piece by piece, each good until the next. Of a mapped file they are read by system calls:
    where it was cut short that is an OSError, and no page of it becomes resident."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    mapping = _mapping(flat)
    if mapping is None:
        yield from (flat[at : at + PIECE_NBYTES] for at in range(0, flat.nbytes, PIECE_NBYTES))
        return
    first: int = flat.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    buffer = np.empty(min(PIECE_NBYTES, flat.nbytes), np.uint8)
    for at in range(0, flat.nbytes, PIECE_NBYTES):
        piece = buffer[: min(PIECE_NBYTES, flat.nbytes - at)]
        if os.preadv(mapping.fd, [piece.data], first + at) != piece.nbytes:
            raise OSError(errno.EIO, "a file was cut short while it was read")
        yield piece


def private_copy(view: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """A writable copy of `view` in reserved memory; of a mapped view no page stays resident.

    On Linux it is written to the file before that is mapped: half the time of writing through a mapping, whose every
    page is a fault and is zeroed first. Raises OSError where a file was cut short.
    """
    return reserve(view.nbytes, name, pieces(view))[: view.nbytes].view(np.int64).reshape(view.shape)


def gather(arrays: Sequence[NDArray[Any]], name: str) -> list[NDArray[Any]]:
    """Copies in one reservation, each on a cache line: what share() would make of them."""
    starts, at = [], 0
    for array in arrays:
        starts.append(at)
        at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    memory = reserve(at, name)
    copies = []
    for array, start in zip(arrays, starts):
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        copies.append(copy)
    return copies


def share(arrays: Sequence[NDArray[Any]], name: str) -> list[ArrayHandle]:
    """A handle for each array. Those that lie in no mapping are copied, together into one reservation."""
    mappings = [_mapping(a) if a.flags.c_contiguous else None for a in arrays]
    strays = [np.ascontiguousarray(a) for a, m in zip(arrays, mappings) if m is None]
    copies = iter(gather(strays, name) if strays else [])
    handles = []
    for array, mapping in zip(arrays, mappings):
        if mapping is None:
            array = next(copies)
            mapping = _mapping(array)
            assert mapping is not None, "reserved memory has a descriptor"
        start: int = np.frombuffer(mapping, np.uint8).ctypes.data
        handles.append(ArrayHandle(mapping, array.ctypes.data - start, array.dtype.str, array.shape))
    return handles


def attach(mapped: mmap.mmap | NDArray[np.uint8], offset: int, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """The array that a handle names, as a view of the mapped file; raises ValueError when it does not lie inside."""
    whole = np.frombuffer(mapped, np.uint8)
    kind, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
    if not 0 <= offset <= whole.nbytes - count * kind.itemsize:
        raise ValueError(f"{count} elements of {kind} at byte {offset} lie outside {whole.nbytes} bytes")
    return whole[offset : offset + count * kind.itemsize].view(kind).reshape(tuple(shape))


def _mapping(array: NDArray[Any]) -> SharedMap | None:
    """What an array is a view of, if that is a SharedMap."""
    owner = _owner(array)
    return owner if isinstance(owner, SharedMap) else None


def _owner(array: NDArray[Any]) -> Any:
    """The object whose memory an array is a view of."""
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner


def advise(array: NDArray[Any], advice: int) -> None:
    """madvise() for the pages that an array lies in, if it is a view of a mapping; where it fails nothing changes.

    Of a mapping and of nothing else: MADV_DONTNEED drops what it can read again, and for other memory there is nothing
    to read. Through the C library, because a call for many pages must not hold the GIL.
    """
    if not isinstance(_owner(array), mmap.mmap) or not array.size or sys.platform != "linux":
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
            self._mapped = SharedMap.of(file.fileno(), nbytes, writable=True)
        self.array = np.frombuffer(self._mapped, np.uint8)

    def take(self, start: int, nbytes: int) -> None:
        """Makes sure of room for the bytes from `start` on; raises OSError."""
        os.posix_fallocate(self._mapped.fd, start, nbytes)

    def read(self, at: int, into: NDArray[Any]) -> None:
        """Fills an array with the bytes from `at` on, by a system call: no page of the mapping becomes resident."""
        left, done = into.reshape(-1).view(np.uint8), 0
        while done < len(left):
            count = os.preadv(self._mapped.fd, [left[done:].data], at + done)
            if not count:
                raise OSError(errno.EIO, "a file was cut short while it was read")
            done += count

    def write(self, at: int, given: NDArray[Any]) -> None:
        """Writes an array's bytes from `at` on, by a system call, where room was taken."""
        left = given.reshape(-1).view(np.uint8)
        while len(left):
            count = os.pwrite(self._mapped.fd, left.data, at)
            left, at = left[count:], at + count

    def forget(self) -> None:
        """Has the disk hold what was written, and the page cache nothing of it."""
        os.fdatasync(self._mapped.fd)
        os.posix_fadvise(self._mapped.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def punch_hole(self, start: int, nbytes: int) -> None:
        """Gives the room of the whole pages among the bytes back to the disk, where the file system can."""
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        # What the file system cannot do it need not: the room is used again all the same.
        with contextlib.suppress(OSError):
            if last > first:
                self._mapped.madvise(mmap.MADV_REMOVE, first, last - first)
