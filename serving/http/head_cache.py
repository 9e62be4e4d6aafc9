"""Cache parsed heads of predict requests by their bytes.

A client sends the same request line and headers with every request of one size, so the parsed result is kept. A head is
kept only if the parser has read it as the whole head of one message that began on a message boundary: the same bytes on
a boundary mean the same again. The cache is bounded in number and in bytes. A head that differs in every request (it
contains a trace id) costs a look-up and the parser, and is not kept.
"""

from __future__ import annotations

from typing import NamedTuple

from freshet_serving.serving.codecs.wire import Headers
from freshet_serving.serving.http.http_head import END, MAX_LENGTH_DIGITS
from freshet_serving.serving.http.paths import Route
from freshet_serving.serving.request_headers import REQUEST_ID, STICKY_KEY, TRACEPARENT

MAX_KEPT = 256
MAX_HEAD_NBYTES = 2048
# Headers that differ in nearly every request.
UNLIKE = frozenset({REQUEST_ID, STICKY_KEY, TRACEPARENT})


class Head(NamedTuple):
    """A parsed head. Requests share it, so `headers` must not be modified.

    Attributes:
        route: Model and dialect of the request.
        headers: Its headers by lower-case name.
        nbytes: Length of its body.
    """

    route: Route
    headers: Headers
    nbytes: int


class HeadCache:
    """The cached heads of all connections of one event loop."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Head] = {}

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return head and body if `data` is exactly one request with a cached head, else None."""
        end = data.find(END, 0, MAX_HEAD_NBYTES) + len(END)
        head = self._kept.get(data[:end])
        return None if head is None or head.nbytes != len(data) - end else (head, data[end:])

    def keep(self, data: bytes, route: Route, headers: Headers) -> None:
        """Cache the head of a request that the parser has read as all of `data`, on a connection that stays open.

        Args:
            data: The request, from message boundary to message boundary.
            route: Its model and dialect.
            headers: Its headers.
        """
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
