"""Encode Redis commands, and parse replies within a deadline and a size limit.

ReplyReader plugs into redis-py's connections as parser. A server, or whatever poses as one, is not trusted: it may drip
one byte at a time, announce terabytes, or send nonsense.

Invariants
- A batch of replies takes at most the time and the bytes that begin() allowed, whatever is sent. What has arrived by
  the end of that time is taken, also if this thread comes to read it later.
- Anything that is not RESP2, nests deeper than MAX_DEPTH or is larger than allowed raises MalformedReply; late replies
  raise socket.timeout. The caller then closes the connection: what is left on it never reaches another caller.
- Until begin() is called, the connection's own handshake has HANDSHAKE_NBYTES and the connection's timeout.

Cost: a timeout that is set, and one recv() for up to READ_NBYTES; a microsecond to parse each of 1,000 values.

Rejected: redis-py's parsers with a smaller socket_timeout (it limits one read, not a reply); hiredis (it limits the
nesting, but neither bytes nor time); redis-py's packer of commands (it takes any type, and several times as long).
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from ssl import SSLWantReadError
from typing import Any

from redis import exceptions

HANDSHAKE_NBYTES = 1 << 16
LINE_NBYTES = 1 << 16
READ_NBYTES = 1 << 16
MAX_DEPTH = 8
LEAST_S = 0.001

ERRORS = {
    "NOAUTH": exceptions.AuthenticationError,
    "WRONGPASS": exceptions.AuthenticationError,
    "LOADING": exceptions.BusyLoadingError,
    "OOM": exceptions.OutOfMemoryError,
}
"""Exceptions by the first word of an error reply."""


def encode_command(words: Sequence[bytes]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(parts)


class MalformedReply(exceptions.RedisError):
    """Raised for anything that is not a reply, or that is larger than allowed."""


class ReplyTooLarge(MalformedReply):
    """Raised for a reply that is larger than begin() allowed."""


class MovedRedirect(exceptions.ResponseError):
    """A cluster node's answer for a slot that another node serves."""


class ReplyReader:
    """Reads the replies of one connection; implements what redis-py calls of a parser."""

    def __init__(self, socket_read_size: int) -> None:
        # redis-py gives its read size, which is not used.
        self._socket: Any = None
        self._buffer = bytearray()
        self._at = self._left = 0
        self._end_s = 0.0
        self._looked = False

    def on_connect(self, connection: Any) -> None:
        """Begin to read a new connection, which keeps its reader as `replies`."""
        self._socket, connection.replies = connection._sock, self
        self._buffer.clear()
        self._at = 0
        self.begin(time.monotonic() + (connection.socket_timeout or 0.0), HANDSHAKE_NBYTES)

    def on_disconnect(self) -> None:
        self._socket = None
        self._buffer.clear()

    def begin(self, end_s: float, max_nbytes: int) -> None:
        """Allow replies until `end_s` on time.monotonic(), together at most `max_nbytes`."""
        self._end_s, self._left, self._looked = end_s, max_nbytes, False
        # The timeout also applies to the commands sent first.
        self._socket.settimeout(max(LEAST_S, end_s - time.monotonic()))

    def can_read(self, timeout: float = 0) -> bool:
        """Return True if there is something to read, including the end of the connection."""
        if self._at < len(self._buffer):
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def read_response(self, disable_decoding: bool = False, **_: Any) -> Any:
        """Read one reply.

        Returns:
            bytes, int, None or a list of these; an error reply as a ResponseError that is not raised.

        Raises:
            MalformedReply: The reply is not RESP2, or larger than begin() allowed.
            TimeoutError: It did not arrive in time.
            redis.ConnectionError: The server closed the connection, or refused it.
        """
        reply = self._reply(0)
        if self._at == len(self._buffer):
            self._buffer.clear()
            self._at = 0
        return reply

    def _reply(self, depth: int) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return self._bulk(_number(rest))
        if kind == b"*":
            return self._array(_number(rest), depth)
        if kind == b":":
            return _number(rest)
        if kind == b"+":
            return rest
        if kind == b"-":
            return _error(rest)
        raise MalformedReply("unknown reply type")

    def _array(self, count: int, depth: int) -> Any:
        if count == -1:
            return None
        # Each element takes at least three bytes.
        if count < 0 or depth == MAX_DEPTH or 3 * count > self._left + len(self._buffer) - self._at:
            raise ReplyTooLarge("array is larger than expected")
        return [self._reply(depth + 1) for _ in range(count)]

    def _bulk(self, nbytes: int) -> bytes | None:
        if nbytes == -1:
            return None
        end = nbytes + 2
        if nbytes < 0 or end > self._left + len(self._buffer) - self._at:
            raise ReplyTooLarge("value is larger than expected")
        while len(self._buffer) - self._at < end:
            self._receive()
        at, self._at = self._at, self._at + end
        if self._buffer[self._at - 2 : self._at] != b"\r\n":
            raise MalformedReply("value has no end")
        return bytes(self._buffer[at : at + nbytes])

    def _line(self) -> bytes:
        searched = self._at
        while (end := self._buffer.find(b"\r\n", searched)) < 0:
            if len(self._buffer) - self._at > LINE_NBYTES:
                raise MalformedReply("line has no end")
            searched = max(self._at, len(self._buffer) - 1)
            self._receive()
        at, self._at = self._at, end + 2
        return bytes(self._buffer[at:end])

    def _receive(self) -> None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            # The thread may have waited for a core or Python's lock while the reply came: take what is there, once.
            if self._looked:
                raise TimeoutError
            self._looked, left_s = True, 0.0
        if self._left <= 0:
            raise ReplyTooLarge("more bytes than expected")
        self._socket.settimeout(left_s)
        try:
            data = self._socket.recv(min(READ_NBYTES, self._left))
        except (BlockingIOError, SSLWantReadError):
            raise TimeoutError from None
        if not data:
            raise exceptions.ConnectionError("closed by the server")
        self._left -= len(data)
        self._buffer += data


def reader_of(connection: Any) -> ReplyReader:
    reader: ReplyReader = connection.replies
    return reader


def _number(text: bytes) -> int:
    if not text.removeprefix(b"-").isdigit() or len(text) > 20:
        raise MalformedReply("not a whole number")
    return int(text)


def _error(text: bytes) -> exceptions.ResponseError:
    """Return an error reply; raise one that ends the connection."""
    word = text.partition(b" ")[0].decode("ascii", "replace")
    if word == "MOVED":
        return MovedRedirect(word)
    error = ERRORS.get(word, exceptions.ResponseError)(word)
    if not isinstance(error, exceptions.ResponseError):
        raise error
    return error
