"""Collect a body that arrives in pieces, in memory that grows by pages once the body is long.

Costs: the received part of a long body is never copied: growth moves pages (mremap). A declared length reserves
addresses but no memory. Above HUGE_NBYTES, huge pages are used if the system has them: for 60 MB the kernel spends 30
ms on small pages, during which the loop holds the GIL, and 3 ms on huge ones. Below that size, huge pages could be
nearly empty.

Rejected: a bytearray of any length. Its allocator may copy everything received at each growth, which is by an eighth:
with bodies of 60 MB that took two thirds of an event loop's time.
"""

from __future__ import annotations

import contextlib
import mmap

from freshet_serving.serving.codecs.wire import Body

SHORT_NBYTES = 256 << 10
GROWTH_NBYTES = 1 << 20
HUGE_NBYTES = 8 << 20


class BodyBuffer:
    """The received bytes of one body."""

    __slots__ = ("_declared_nbytes", "_nbytes", "_short", "_whole")

    def __init__(self, first: bytes | bytearray, declared_nbytes: int | None) -> None:
        """Start a buffer.

        Args:
            first: The first bytes of the body.
            declared_nbytes: Full length of the body if the client has declared it.
        """
        self._short: bytearray | None = bytearray(first)
        self._nbytes, self._declared_nbytes = len(first), declared_nbytes
        self._whole: mmap.mmap | None = None

    def __len__(self) -> int:
        return self._nbytes

    def add(self, piece: bytes | bytearray) -> None:
        """Append the next piece."""
        at = self._nbytes
        self._nbytes = nbytes = at + len(piece)
        if self._short is not None:
            if nbytes <= SHORT_NBYTES:
                self._short += piece
                return
            most = max(nbytes, self._declared_nbytes or GROWTH_NBYTES)
            self._whole = mmap.mmap(-1, most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._whole[:at], self._short = self._short, None
        whole = self._whole
        assert whole is not None, "a long body has a buffer"
        if nbytes > len(whole):
            whole.resize(max(nbytes, 2 * len(whole)))
        if at < HUGE_NBYTES <= nbytes:
            with contextlib.suppress(AttributeError, OSError):  # Not every system has huge pages.
                whole.madvise(mmap.MADV_HUGEPAGE)
        whole[at:nbytes] = piece

    def beginning(self, nbytes: int) -> bytes:
        """Return the first bytes, which must have been received."""
        return self._whole[:nbytes] if self._whole is not None else bytes((self._short or b"")[:nbytes])

    def whole(self) -> Body:
        """Return all received bytes; nothing may be added afterwards."""
        if self._whole is None:
            return bytes(self._short or b"")
        return memoryview(self._whole)[: self._nbytes].toreadonly()
