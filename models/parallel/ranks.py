"""Message channels between processes that train together, numbered by rank from 0, independent of the library.

On a channel, messages between two ranks arrive in the order of sending. A message is a byte array of any length.

Invariants: no call waits for ever: a rank that cannot go on notifies all (fail), and any rank that waits for its
messages raises RankFailed. A sent buffer is not written to before send() has returned. One thread per channel on each
side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import array_crc32

Bytes = NDArray[np.uint8]
Array = NDArray[Any]

DTYPES = tuple(map(np.dtype, ("u1", "i4", "i8", "f2", "f4", "f8", "u2", "u4", "u8")))
MOST_DIMENSIONS = 3


class RankFailed(BadInput):
    """Raised when another rank cannot go on; carries that rank's message."""


class Ranks(Protocol):
    """A channel to all other processes; `sent_nbytes` counts bytes sent to others."""

    rank: int
    size: int
    sent_nbytes: int

    def send(self, to: int, message: Array) -> None:
        """Send a message; return when its memory may be reused."""
        ...

    def post(self, to: int, message: Array) -> None:
        """Send a message without waiting; its memory must not be written to afterwards."""
        ...

    def receive(self, of: int) -> Bytes:
        """Receive the next message of a rank; raise RankFailed if it cannot go on."""
        ...

    def swap(self, messages: Sequence[Array]) -> list[Bytes]:
        """Exchange messages, by receiver, with all ranks including this one; return those received, by sender."""
        ...

    def fail(self, line: str) -> None:
        """Make every other rank raise RankFailed(line) when it next waits for this one."""
        ...


def as_bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def send_arrays(ranks: Ranks, to: int, arrays: Sequence[Array]) -> None:
    """Send arrays of any length to a rank, with checksums and without copies."""
    head = np.zeros((len(arrays), 3 + MOST_DIMENSIONS), np.int64)
    for row, array in zip(head, arrays):
        row[:3] = DTYPES.index(array.dtype), array.ndim, _checksum(array)
        row[3 : 3 + array.ndim] = array.shape
    ranks.send(to, as_bytes(head))
    for array in arrays:
        ranks.send(to, as_bytes(array))


def receive_arrays(ranks: Ranks, of: int) -> list[Array]:
    """Receive the arrays of one send_arrays(); raise Corrupt if a checksum or length does not match."""
    arrays = []
    for row in ranks.receive(of).view(np.int64).reshape(-1, 3 + MOST_DIMENSIONS):
        dtype, ndim, checksum, *shape = map(int, row)
        message = ranks.receive(of)
        nbytes = int(np.prod(shape[:ndim], dtype=np.int64)) * DTYPES[dtype].itemsize
        if len(message) != nbytes or _checksum(message) != checksum:
            raise Corrupt(
                f"process {of}: expected {nbytes:,} bytes of the announced checksum, got {len(message):,} other bytes"
            )
        arrays.append(message.view(DTYPES[dtype]).reshape(shape[:ndim]))
    return arrays


def _checksum(array: Array) -> int:
    return int(array_crc32(array), 16)


def packed(arrays: Sequence[Array | Sequence[Array]]) -> Bytes:
    """Pack arrays into one message, each aligned to 8 bytes; vectors in a list become one array."""
    message, views = blank([_kind(array) for array in arrays])
    for view, array in zip(views, arrays):
        if isinstance(array, np.ndarray):
            view[...] = array
        elif array:
            np.concatenate(array, out=view)
    return message


def _kind(array: Array | Sequence[Array]) -> tuple[tuple[int, ...], Any]:
    if isinstance(array, np.ndarray):
        return array.shape, array.dtype
    return (sum(map(len, array)),), array[0].dtype if array else np.uint8


def blank(kinds: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[Bytes, list[Array]]:
    """Allocate a packed message for arrays of (shape, dtype); return it and writable views of these."""
    head = np.zeros((len(kinds), 2 + MOST_DIMENSIONS), np.int64)
    sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in kinds]
    at = 8 + head.nbytes
    message = np.empty(at + sum(-(-nbytes // 8) * 8 for nbytes in sizes), np.uint8)
    views = []
    for row, (shape, dtype), nbytes in zip(head, kinds, sizes):
        row[:2] = DTYPES.index(np.dtype(dtype)), len(shape)
        row[2 : 2 + len(shape)] = shape
        views.append(message[at : at + nbytes].view(dtype).reshape(shape))
        after = at + -(-nbytes // 8) * 8
        message[at + nbytes : after] = 0
        at = after
    message[:8].view(np.int64)[0] = len(kinds)
    message[8 : 8 + head.nbytes] = as_bytes(head)
    return message, views


def unpacked(message: Bytes) -> list[Array]:
    """Unpack a message of packed() into views."""
    count = int(message[:8].view(np.int64)[0])
    arrays, at = [], 8 + count * 8 * (2 + MOST_DIMENSIONS)
    for dtype, ndim, *shape in message[8:at].view(np.int64).reshape(count, 2 + MOST_DIMENSIONS).tolist():
        nbytes = int(np.prod(shape[:ndim], dtype=np.int64)) * DTYPES[dtype].itemsize
        arrays.append(message[at : at + nbytes].view(DTYPES[dtype]).reshape(shape[:ndim]))
        at += -(-nbytes // 8) * 8
    return arrays
