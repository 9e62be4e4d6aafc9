"""Pack arrays into messages: numbers in the JSON, the memory of the array as a file descriptor.

An array is [descriptor's index in the message, offset, dtype, shape, writable]. Arrays of one file share one
descriptor; the receiver makes one mapping of it for each access mode.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.memory import ArrayHandle, SharedMap, attach

PackedArray = list[Any]


class ArrayPacker:
    """Packs array handles for one message; `fds` are to be sent with it, and are valid as long as the handles are."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self._places: dict[int, int] = {}

    def pack(self, handle: ArrayHandle, writable: bool = False) -> PackedArray:
        fd = handle.mapping.fd
        place = self._places.setdefault(fd, len(self.fds))
        if place == len(self.fds):
            self.fds.append(fd)
        return [place, handle.offset, handle.dtype, list(handle.shape), writable]


class ArrayUnpacker:
    """Maps the arrays of a received message; a context manager that closes the descriptors. The arrays stay valid."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = fds
        self._mapped: dict[tuple[int, bool], NDArray[np.uint8]] = {}

    def __enter__(self) -> ArrayUnpacker:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)

    def unpack(self, packed: PackedArray) -> NDArray[Any]:
        """Return the array, mapped onto the sender's memory. Raises ValueError or IndexError if it is invalid."""
        place, offset, dtype, shape, writable = packed
        mapped = self._mapped.get((place, writable))
        if mapped is None:
            fd, nbytes = self._fds[place], os.fstat(self._fds[place]).st_size
            # Who writes may have to lock bytes of the file, for which its descriptor is needed (place_in_file).
            mapping = SharedMap.of(fd, nbytes, True) if writable else mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ)
            mapped = self._mapped[place, writable] = np.frombuffer(mapping, np.uint8)
        return attach(mapped, offset, dtype, shape)
