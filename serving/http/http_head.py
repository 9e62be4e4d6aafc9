"""Parse the head of a request: request line, fields, and the length of the body (RFC 9110, RFC 9112).

The parser is strict against request smuggling: where a proxy parses differently, one of the two may read a body where
the other reads a request. A line ends in CR LF and nothing else, no field continues on a second line, nothing stands
before a colon, a length is given once and in digits, and a body is chunked or has a length, never both. `Upgrade` is an
ordinary field.

Costs: two patterns over the bytes of a whole head, without backtracking (possessive): linear in its length.

Rejected: an incremental parser (llhttp). It stops at `Upgrade`; it does not report where in a segment a message ended;
names and values that arrive byte by byte cost the square of their length.

HeadCache keeps parsed heads of predict requests by their bytes, because a client sends the same head with every request
of one size. A head is kept only if the parser has read it as the whole head of one message on a message boundary: the
same bytes on a boundary mean the same again. A head that differs in every request (it contains a trace id) is not kept.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from freshet_serving.processor.errors import FreshetError
from freshet_serving.serving.codecs.wire import Headers, show
from freshet_serving.serving.http.paths import Route
from freshet_serving.serving.request_headers import REQUEST_ID, STICKY_KEY, TRACEPARENT

MAX_HEAD_NBYTES = 64 << 10
MAX_FIELDS = 128
MAX_LENGTH_DIGITS = 18
END = b"\r\n\r\n"
TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
LINE = re.compile(rb"(" + TOKEN + rb"{1,32}) ([!-~]++) HTTP/([0-9])\.([0-9])\r\n")
FIELD = re.compile(rb"(?<=\r\n)(" + TOKEN + rb"++):[ \t]*+([\t -~\x80-\xff]*+)\r\n")
# Bytes that are invalid in any head, so an incomplete head with them can be refused.
STRAY = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)")
TARGET = re.compile(rb"(?i:https?://[^/?#]*+)?(/[^?#]*+)(?:\?([^#]*+))?")
# Of two authorizations, a proxy may check the first and this server the last.
ONCE = (b"host", b"content-length", b"transfer-encoding", b"authorization")
MAX_KEPT = 256
MAX_KEPT_NBYTES = 2048
# Headers that differ in nearly every request.
UNLIKE = frozenset({REQUEST_ID, STICKY_KEY, TRACEPARENT})


class HttpProtocolError(FreshetError):
    """Bytes that are not a valid request, or a request that this server does not read; the connection ends."""

    grpc_code = "INVALID_ARGUMENT"

    def __init__(self, message: str, http_status: int = 400) -> None:
        super().__init__(message)
        self.http_status = http_status


class RequestHead(NamedTuple):
    """A parsed head; `fields` are names (lower case) and values, in order, and `headers` the same by name.

    Attributes:
        version: "1.0" or "1.1".
        keep_alive: Whether the client keeps the connection open.
        expects: Whether the client waits for 100 (Continue).
        nbytes: Length of the body; None for a chunked one.
    """

    method: bytes
    target: bytes
    version: str
    fields: list[tuple[bytes, bytes]]
    headers: dict[bytes, bytes]
    keep_alive: bool
    expects: bool
    nbytes: int | None


def read_head(head: bytes) -> RequestHead:
    """Parse a whole head, from the request line to the empty line; raise HttpProtocolError if it is none."""
    line = LINE.match(head)
    if line is None:
        first, _, _ = head.partition(b"\r")
        raise HttpProtocolError(f"request line: expected method, target and HTTP/1.1, got {show(first)}")
    method, target, major, minor = line.groups()
    if major != b"1" or minor not in b"01":
        raise HttpProtocolError(f"version: expected HTTP/1.1 or 1.0, got {major.decode()}.{minor.decode()}", 505)
    count = head.count(b"\r\n") - 2
    if count > MAX_FIELDS:
        raise HttpProtocolError(f"head: expected at most {MAX_FIELDS} header fields, got {count}", 431)
    fields = [(name.lower(), value.rstrip(b" \t")) for name, value in FIELD.findall(head, line.end() - 2)]
    if len(fields) != count:
        raise HttpProtocolError("head: expected lines of a name, a colon and a value, each ended by CR LF")
    headers = dict(fields)
    connection = headers.get(b"connection", b"")
    if len(headers) != count:
        for once in ONCE:
            if sum(name == once for name, _ in fields) > 1:
                raise HttpProtocolError(f"{once.decode()}: expected once, got it again")
        connection = b",".join(value for name, value in fields if name == b"connection")
    if minor == b"1" and b"host" not in headers:
        raise HttpProtocolError("host: expected with HTTP/1.1, got none")
    return RequestHead(
        method,
        target,
        "1.1" if minor == b"1" else "1.0",
        fields,
        headers,
        not _has_option(b"close", connection)
        if minor == b"1"
        else _has_option(b"keep-alive", connection) and not _has_option(b"close", connection),
        minor == b"1" and b"expect" in headers and headers[b"expect"].lower() == b"100-continue",
        _body_nbytes(headers, minor),
    )


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Return path and query of a request's target; raise HttpProtocolError if it has no path on this server."""
    match = TARGET.match(target)
    if match is None:
        raise HttpProtocolError(f"target: expected a path, got {show(target)}")
    return match[1], match[2] or b""


def check_trailers(lines: bytes) -> None:
    """Raise HttpProtocolError unless the lines after the last chunk are header fields; their content is ignored."""
    count = lines.count(b"\r\n")
    if count > MAX_FIELDS:
        raise HttpProtocolError(f"trailers: expected at most {MAX_FIELDS}, got {count}", 431)
    if len(FIELD.findall(b"\r\n" + lines)) != count:
        raise HttpProtocolError("trailers: expected lines of a name, a colon and a value, each ended by CR LF")


def _has_option(option: bytes, connection: bytes) -> bool:
    connection = connection.lower()
    return option in connection and option in [token.strip() for token in connection.split(b",")]


def _body_nbytes(headers: dict[bytes, bytes], minor: bytes) -> int | None:
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if coding is not None:
        if coding.lower() != b"chunked" or length is not None or minor != b"1":
            raise HttpProtocolError("transfer-encoding: expected chunked alone, without content-length, in HTTP/1.1")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
        raise HttpProtocolError(f"content-length: expected a whole number, got {show(length)}")
    return int(length)


class Head(NamedTuple):
    """A cached head. Requests share it, so `headers` must not be modified; `nbytes` is the body's."""

    route: Route
    headers: Headers
    nbytes: int


class HeadCache:
    def __init__(self) -> None:
        self._kept: dict[bytes, Head] = {}

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return head and body if `data` is exactly one request with a cached head, else None."""
        end = data.find(END, 0, MAX_KEPT_NBYTES) + len(END)
        head = self._kept.get(data[:end])
        return None if head is None or head.nbytes != len(data) - end else (head, data[end:])

    def keep(self, data: bytes, route: Route, headers: Headers) -> None:
        """Cache the head of a request that the parser has read as all of `data`, on a connection that stays open."""
        end = data.find(END, 0, MAX_KEPT_NBYTES) + len(END)
        if not UNLIKE.isdisjoint(headers):
            return
        length = headers.get(b"content-length", b"")
        if end < len(END) or b"transfer-encoding" in headers or not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
            return
        if int(length) == len(data) - end:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[data[:end]] = Head(route, headers, int(length))
