"""Processes that train together, by rank from 0, and the messages between them: whatever their library is.

Between two ranks messages arrive in the order in which they were sent, on each channel by itself. A message is an
array of bytes of any length. swap() is everything else: what each rank has for each.

Invariants. No call waits for a rank that has not to send: a rank that cannot go on says so to all (fail), and whoever
waits for a message of it raises Failed instead. A buffer that was sent is not written to before send() has returned.
One thread a channel, on each side.
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
    """Another rank cannot go on; the message is its own."""


class Ranks(Protocol):
    """One of `size` processes, number `rank`. sent_nbytes: to others, so far."""

    rank: int
    size: int
    sent_nbytes: int

    def send(self, to: int, message: Array) -> None:
        """Returns when the message's memory is free again."""
        ...

    def post(self, to: int, message: Array) -> None:
        """As send(), and returns at once; the message is not to be written to."""
        ...

    def receive(self, of: int) -> Bytes:
        """The next message of a rank; raises Failed."""
        ...

    def swap(self, messages: Sequence[Array]) -> list[Bytes]:
        """messages[r] is for rank r, one's own included; the messages for this one, by rank. Raises Failed."""
        ...

    def fail(self, line: str) -> None:
        """Has every other rank raise Failed(line) once it waits for this one."""
        ...


def as_bytes(array: Array) -> Bytes:
    """A contiguous array's memory."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def send_arrays(ranks: Ranks, to: int, arrays: Sequence[Array]) -> None:
    """Arrays of any length to a rank, with their checksums; none is copied."""
    head = np.zeros((len(arrays), 3 + MOST_DIMENSIONS), np.int64)
    for row, array in zip(head, arrays):
        row[:3] = DTYPES.index(array.dtype), array.ndim, _checksum(array)
        row[3 : 3 + array.ndim] = array.shape
    ranks.send(to, as_bytes(head))
    for array in arrays:
        ranks.send(to, as_bytes(array))


def receive_arrays(ranks: Ranks, of: int) -> list[Array]:
    """What send_arrays() sent, to the bit; raises Corrupt where it is not."""
    found = []
    for row in ranks.receive(of).view(np.int64).reshape(-1, 3 + MOST_DIMENSIONS):
        dtype, ndim, checksum, *shape = map(int, row)
        message = ranks.receive(of)
        wanted = int(np.prod(shape[:ndim], dtype=np.int64)) * DTYPES[dtype].itemsize
        if len(message) != wanted or _checksum(message) != checksum:
            raise Corrupt(f"process {of}: {wanted:,} bytes of a checksum wanted, got {len(message):,} others")
        found.append(message.view(DTYPES[dtype]).reshape(shape[:ndim]))
    return found


def _checksum(array: Array) -> int:
    return int(array_crc32(array), 16)


def packed(arrays: Sequence[Array | Sequence[Array]]) -> Bytes:
    """Arrays one behind another in one message, each at a multiple of 8. Vectors in a list become one."""
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
    """A packed message of arrays of these shapes and dtypes, and the arrays, to be written to."""
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
    """What packed() packed, as views."""
    count = int(message[:8].view(np.int64)[0])
    found, at = [], 8 + count * 8 * (2 + MOST_DIMENSIONS)
    for dtype, ndim, *shape in message[8:at].view(np.int64).reshape(count, 2 + MOST_DIMENSIONS).tolist():
        nbytes = int(np.prod(shape[:ndim], dtype=np.int64)) * DTYPES[dtype].itemsize
        found.append(message[at : at + nbytes].view(DTYPES[dtype]).reshape(shape[:ndim]))
        at += -(-nbytes // 8) * 8
    return found
