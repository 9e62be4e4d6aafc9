"""Collect the body of a request: in memory that grows by pages once it is long, and decoded where it comes in chunks.

The received part of a long body is never copied: growth moves pages (mremap). A declared length reserves addresses but
no memory. Above HUGE_NBYTES, huge pages are used if the system has them: for 60 MB the kernel spends 30 ms on small
pages, while the loop holds the GIL, and 3 ms on huge ones.

Rejected: a bytearray of any length. Its allocator may copy everything received at each growth, which is by an eighth:
with bodies of 60 MB that took two thirds of an event loop's time.

ChunkedBody is strict like the head's parser (serving.http.http_head): a chunk's size is hexadecimal digits, followed by
CR LF or by an extension and CR LF; its data ends in CR LF; trailers are header fields. A chunk costs about a
microsecond whatever its size, so at most CHUNKS_A_TURN are decoded at once, and the framing (all that is not data) may
be at most MAX_FRAMING_NBYTES and an eighth of the data.
"""

from __future__ import annotations

import contextlib
import mmap
import re

from freshet_serving.serving.codecs.wire import Body
from freshet_serving.serving.http.http_head import END, MAX_HEAD_NBYTES, HttpProtocolError, check_trailers

SHORT_NBYTES = 256 << 10
GROWTH_NBYTES = 1 << 20
HUGE_NBYTES = 8 << 20
CHUNKS_A_TURN = 256
MAX_FRAMING_NBYTES = 256 << 10
MAX_SIZE_LINE_NBYTES = 256
SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*+;[\t -~\x80-\xff]*+)?\r\n")


class BodyBuffer:
    """The received bytes of one body; `declared_nbytes` is its full length if the client has declared it."""

    __slots__ = ("_declared_nbytes", "_nbytes", "_short", "_whole")

    def __init__(self, first: bytes | bytearray, declared_nbytes: int | None) -> None:
        self._short: bytearray | None = bytearray(first)
        self._nbytes, self._declared_nbytes = len(first), declared_nbytes
        self._whole: mmap.mmap | None = None

    def __len__(self) -> int:
        return self._nbytes

    def add(self, piece: bytes | bytearray) -> None:
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


class ChunkedBody:
    """One chunked body; `more` says whether the last take() left bytes that it could have decoded."""

    def __init__(self) -> None:
        self.more = False
        # Bytes left of the current chunk: its data and the CR LF after it.
        self._left = 0
        self._framing_nbytes = self._nbytes = 0
        self._last = False
        self._searched = 0

    def take(self, unread: bytearray, body: bytearray) -> bool:
        """Move decoded data from the beginning of `unread` to the end of `body`; return True if the body is complete.

        Raises HttpProtocolError if the bytes are no chunked body, or its chunks are too small.
        """
        at, self.more = 0, False
        for _ in range(CHUNKS_A_TURN):
            if not self._left:
                size = SIZE.match(unread, at, at + MAX_SIZE_LINE_NBYTES)
                if self._last or size is None:
                    break
                start, nbytes = size.end(), int(size[1], 16)
                self._framing_nbytes += start - at + 2
                self._nbytes += nbytes
                at, stop = start, start + nbytes
                if not nbytes:
                    self._last = True
                    break
                if unread[stop : stop + 2] == b"\r\n":
                    body += unread[start:stop]
                    at = stop + 2
                    continue
                self._left = nbytes + 2
            count = min(self._left - 2, len(unread) - at)
            if count > 0:
                body += unread[at : at + count]
                at, self._left = at + count, self._left - count
            if self._left > 2 or len(unread) - at < 2:
                break
            if unread[at : at + 2] != b"\r\n":
                raise HttpProtocolError("chunk: expected CR LF after its data")
            at, self._left = at + 2, 0
        else:
            self.more = True
        del unread[:at]
        if not self._left and not self._last:
            self._check_size_line(unread)
        if self._framing_nbytes > MAX_FRAMING_NBYTES + self._nbytes // 8:
            raise HttpProtocolError("body: expected larger chunks")
        return self._last and self._take_trailers(unread)

    def _check_size_line(self, unread: bytearray) -> None:
        line = unread[:MAX_SIZE_LINE_NBYTES]
        if not self.more and (b"\n" in line or len(line) == MAX_SIZE_LINE_NBYTES):
            raise HttpProtocolError("chunk: expected its size in hexadecimal digits, ended by CR LF")

    def _take_trailers(self, unread: bytearray) -> bool:
        """Consume the trailers; return True if their end has arrived."""
        if unread.startswith(b"\r\n"):
            del unread[:2]
            return True
        end = unread.find(END, self._searched)
        self._searched = max(0, len(unread) - len(END) + 1)
        if (end if end >= 0 else len(unread)) > MAX_HEAD_NBYTES:
            raise HttpProtocolError(f"trailers: expected at most {MAX_HEAD_NBYTES} bytes, got more", 431)
        if end < 0:
            return False
        check_trailers(bytes(unread[: end + 2]))
        del unread[: end + len(END)]
        return True
