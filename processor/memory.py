"""Shared memory: buffers that grow by being touched, and handles by which another process maps the very same bytes.

One reservation is one memfd (Linux) of its final size. Address space is reserved at once, pages only when written: an
arena needs no growth protocol and no copy, and does not depend on /dev/shm. Elsewhere it is an anonymous mapping.

share() finds the SharedMap below any view, which keeps a descriptor of its file, and names the bytes by (descriptor,
offset, dtype, shape); attach() maps them in the process that received the descriptor. So another process reads the
inode that was verified here, even if its path has been replaced since.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
WRITE_NBYTES = 64 << 20
PIECE_NBYTES = 1 << 20
LARGE_NBYTES = 4 << 20
# Parameters of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class SharedMap(mmap.mmap):
    """A shared mapping of a whole file, which stays open as long as a view of it lives."""

    fd: int

    @classmethod
    def of(cls, fd: int, nbytes: int, writable: bool) -> SharedMap:
        """Map a file whose descriptor the caller may close."""
        mapping = cls(fd, nbytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        mapping.fd = os.dup(fd)
        return mapping

    # When the process exits, modules are cleared before the last views of a mapping are.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "fd"):
            close(self.fd)


def return_large_blocks() -> None:
    """Make the C library return freed blocks of LARGE_NBYTES and more to the system.

    By default glibc raises its threshold to the largest block that was freed, up to 32 MB, and keeps twice as much in
    the heap of each thread: one large request left 70 MB behind in every process that had read one. Settings of malloc
    in the environment take precedence. Does nothing if there is no mallopt.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_NBYTES)
        mallopt(M_TRIM_THRESHOLD, 2 * LARGE_NBYTES)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayHandle:
    """The location of an array's bytes, in C order; `offset` is their first byte in the file."""

    mapping: SharedMap
    offset: int
    dtype: str
    shape: tuple[int, ...]


def reserve(nbytes: int, name: str, content: Iterable[NDArray[np.uint8]] = ()) -> NDArray[np.uint8]:
    """Return a writable, page-aligned buffer that begins with `content`, resident only where it has been written."""
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
            unwritten = piece.data
            while unwritten:
                count = os.pwrite(fd, unwritten[:WRITE_NBYTES], at)
                unwritten, at = unwritten[count:], at + count
        return np.frombuffer(SharedMap.of(fd, nbytes, writable=True), np.uint8)
    finally:
        os.close(fd)


def pieces(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of an array, piece by piece, each valid until the next.

    Those of a mapped file are read by system calls: a truncated file is an OSError, and no page of it becomes resident.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    mapped = place_in_file(flat)
    if mapped is None:
        yield from (flat[at : at + PIECE_NBYTES] for at in range(0, flat.nbytes, PIECE_NBYTES))
        return
    fd, first = mapped
    buffer = np.empty(min(PIECE_NBYTES, flat.nbytes), np.uint8)
    for at in range(0, flat.nbytes, PIECE_NBYTES):
        piece = buffer[: min(PIECE_NBYTES, flat.nbytes - at)]
        if os.preadv(fd, [piece.data], first + at) != piece.nbytes:
            raise OSError(errno.EIO, "a file was cut short while it was read")
        yield piece


def place_in_file(array: NDArray[Any]) -> tuple[int, int] | None:
    """Return (descriptor, first byte) in the file that a contiguous array is mapped from, else None."""
    mapping = _mapping(array) if array.flags.c_contiguous else None
    if mapping is None:
        return None
    return mapping.fd, array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data


def private_copy(view: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """Return a writable copy of `view` in reserved memory; of a mapped view no page stays resident.

    On Linux it is written to the file before that is mapped: half the time of writing through a mapping, whose every
    page is a fault and is zeroed first. Raises OSError if a mapped file was truncated.
    """
    return reserve(view.nbytes, name, pieces(view))[: view.nbytes].view(np.int64).reshape(view.shape)


def gather(arrays: Sequence[NDArray[Any]], name: str) -> list[NDArray[Any]]:
    """Return copies of arrays in one reservation, each on a cache line, ready for share()."""
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
    """Return a handle for each array. Those that are in no mapping are copied, together into one reservation."""
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
    """Return the array that a handle names as a view of the mapped file; ValueError if it does not lie inside."""
    whole = np.frombuffer(mapped, np.uint8)
    kind, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
    if not 0 <= offset <= whole.nbytes - count * kind.itemsize:
        raise ValueError(f"{count} elements of {kind} at byte {offset} lie outside {whole.nbytes} bytes")
    return whole[offset : offset + count * kind.itemsize].view(kind).reshape(tuple(shape))


def _mapping(array: NDArray[Any]) -> SharedMap | None:
    """Return the SharedMap that an array is a view of, if any."""
    owner = _owner(array)
    return owner if isinstance(owner, SharedMap) else None


def _owner(array: NDArray[Any]) -> Any:
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner


def advise(array: NDArray[Any], advice: int) -> None:
    """Call madvise() for the pages that an array lies in, if it is a view of a mapping; ignores failures.

    Only for mappings: MADV_DONTNEED drops pages, and other memory has nothing to be read again from. It goes through
    the C library, because a call for many pages must not hold the GIL.
    """
    if not isinstance(_owner(array), mmap.mmap) or not array.size or sys.platform != "linux":
        return
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    stop = array.ctypes.data + array.nbytes
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(advice))
