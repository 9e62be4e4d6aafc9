"""A body that comes in pieces, put together in memory that grows by the page once it is long.

Costs: what has come of a long body is never moved: growth moves pages (mremap). A length that a client only says costs
addresses and no memory. Beyond HUGE_NBYTES pages are huge ones where the system has them: the kernel spends 30 ms on
60 MB of small ones, during which the loop holds the GIL, and 3 ms on those. Before, they might be nearly empty.

Refused: a bytearray however long. Its allocator may copy all that has come whenever it grows, which is by an eighth:
under bodies of 60 MB that was two thirds of an event loop's time.
"""

from __future__ import annotations

import contextlib
import mmap

from freshet_serving.serving.codecs.wire import Body

SHORT_NBYTES = 256 << 10
GROWTH_NBYTES = 1 << 20
HUGE_NBYTES = 8 << 20


class BodyBuffer:
    """The bytes that have come of one body."""

    __slots__ = ("_declared_nbytes", "_nbytes", "_short", "_whole")

    def __init__(self, first: bytes | bytearray, declared_nbytes: int | None) -> None:
        """declared_nbytes: all there will be, of a client who has said so."""
        self._short: bytearray | None = bytearray(first)
        self._nbytes, self._declared_nbytes = len(first), declared_nbytes
        self._whole: mmap.mmap | None = None

    def __len__(self) -> int:
        return self._nbytes

    def add(self, piece: bytes | bytearray) -> None:
        """What comes next."""
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
        assert whole is not None, "what is long is there"
        if nbytes > len(whole):
            whole.resize(max(nbytes, 2 * len(whole)))
        if at < HUGE_NBYTES <= nbytes:
            with contextlib.suppress(AttributeError, OSError):  # Not every system has them.
                whole.madvise(mmap.MADV_HUGEPAGE)
        whole[at:nbytes] = piece

    def beginning(self, nbytes: int) -> bytes:
        """Its first bytes, which have come."""
        return self._whole[:nbytes] if self._whole is not None else bytes((self._short or b"")[:nbytes])

    def whole(self) -> Body:
        """All that has come; nothing is added any more."""
        if self._whole is None:
            return bytes(self._short or b"")
        return memoryview(self._whole)[: self._nbytes].toreadonly()
