"""Heads of predict requests, known by their bytes.

A client sends the same request line and headers with every request of one size, so what the parser made of them once
is kept. A head is kept only when the parser has read it as the whole head of one message, on a message boundary: the
same bytes on a boundary mean the same again. What is kept is bounded in number and in bytes; a head that is new to
every request (a trace id in it) costs a look-up and the parser, and is not kept.
"""

from __future__ import annotations

from typing import NamedTuple

from freshet_serving.serving.codecs.wire import Headers
from freshet_serving.serving.http.http_head import END, MAX_LENGTH_DIGITS
from freshet_serving.serving.http.paths import Route
from freshet_serving.serving.request_headers import REQUEST_ID, STICKY_KEY, TRACEPARENT

MAX_KEPT = 256
MAX_HEAD_NBYTES = 2048
# Headers that make nearly every head another one.
UNLIKE = frozenset({REQUEST_ID, STICKY_KEY, TRACEPARENT})


class Head(NamedTuple):
    """A request's head, read. nbytes: of the body behind it. Shared by requests: nobody writes to `headers`."""

    route: Route
    headers: Headers
    nbytes: int


class HeadCache:
    """The heads that the connections of one event loop know by their bytes."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Head] = {}

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body of a request that is all of `data`, if its head is known."""
        end = data.find(END, 0, MAX_HEAD_NBYTES) + len(END)
        head = self._kept.get(data[:end])
        return None if head is None or head.nbytes != len(data) - end else (head, data[end:])

    def keep(self, data: bytes, route: Route, headers: Headers) -> None:
        """The parser has read `data` as one request, from boundary to boundary, on a connection that stays."""
        end = data.find(END, 0, MAX_HEAD_NBYTES) + len(END)
        if not UNLIKE.isdisjoint(headers):
            return
        length = headers.get(b"content-length", b"")
        if end < len(END) or b"transfer-encoding" in headers or not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
            return
        if int(length) == len(data) - end:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[data[:end]] = Head(route, headers, int(length))
