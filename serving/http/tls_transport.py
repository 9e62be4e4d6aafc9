"""Run TLS below a connection of an HTTP port, with handshakes off the event loop.

    accepted ──▶ handshake, on a thread ──▶ open: bytes in and out ──▶ close_notify, FIN
                     │ HANDSHAKE_S, MOST_HANDSHAKES
                     ▼
                  aborted

A handshake costs 0.3 to 1 ms of a core with RSA, and as much again with a client's certificate. On the loop, all
requests would wait behind it; on a thread they wait at most for a core, as the library releases the GIL.

Invariants
- A session belongs to the thread during a step of its handshake, and to the loop otherwise: bytes that arrive meanwhile
  are buffered, beyond MAX_EARLY_NBYTES in the kernel. The application sees no connection before its handshake is done.
- At most MOST_HANDSHAKES are in progress: above that, the oldest is aborted, so that clients that connect and send
  nothing cannot keep others out.
- The bytes of one read of the socket reach the protocol in one call, as without TLS.
- The last message is a close_notify, then FIN: a client can tell a complete reply from a truncated one.

Rejected: asyncio's and uvloop's own TLS (handshakes on the loop, and no half-close: serving.http.connection_draining
sends FIN and reads on); a handshake thread for each core (they would take the cores from those that serve).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from freshet_serving.processor.errors import first_of
from freshet_serving.processor.standby_thread import standing_pool
from freshet_serving.serving.access.certificates import CertificateSource

HANDSHAKE_S = 10.0
# Time that handshakes in progress get when the port ends.
LAST_HANDSHAKE_S = 1.0
MOST_HANDSHAKES = 256
# Bytes buffered during a step: a client may send everything right behind its part of the handshake.
MAX_EARLY_NBYTES = 256 << 10
READ_NBYTES = 256 << 10


class Handshakes:
    def __init__(self, certificates: CertificateSource) -> None:
        self._certificates = certificates
        self._thread: ThreadPoolExecutor = standing_pool(1, "freshet-handshakes")
        # Ordered by arrival.
        self._waiting: dict[TlsTransport, None] = {}

    async def accept(self, protocol: Callable[[], asyncio.Protocol], connection: socket.socket) -> None:
        """Run the handshake of a connection, then give it to a new protocol; raise OSError if it failed."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        transport = TlsTransport(self._certificates().context, protocol, opened, self._thread)
        if len(self._waiting) >= MOST_HANDSHAKES:
            first_of(self._waiting).abort()
        self._waiting[transport] = None
        timer = loop.call_later(HANDSHAKE_S, transport.abort)
        try:
            await loop.connect_accepted_socket(lambda: transport, connection)
            await opened
        finally:
            timer.cancel()
            del self._waiting[transport]

    def end(self) -> None:
        """Abort handshakes whose client has sent nothing, and the others after LAST_HANDSHAKE_S."""
        for transport in list(self._waiting):
            if not transport.begun:
                transport.abort()
        asyncio.get_running_loop().call_later(LAST_HANDSHAKE_S, self.abort)

    def abort(self) -> None:
        for transport in list(self._waiting):
            transport.abort()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of the HTTP connection on it."""

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        opened: asyncio.Future[None],
        thread: ThreadPoolExecutor,
    ) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make, self._opened, self._thread = protocol, opened, thread
        self._protocol: asyncio.Protocol | None = None
        self._raw: asyncio.Transport | None = None
        self._early = bytearray()
        self._shaking = self._full = self._finished = self.begun = False

    # asyncio.Protocol, called by the socket's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        if self._opened.done():
            self._raw.abort()

    def data_received(self, data: bytes) -> None:
        if self._finished:
            # Only counted, and dropped.
            assert self._protocol is not None, "the transport was open"
            self._protocol.data_received(data)
        elif self._protocol is None:
            self.begun = True
            self._early += data
            if not self._shaking:
                self._shake()
            elif len(self._early) > MAX_EARLY_NBYTES and not self._full:
                self._full = True
                self.pause_reading()
        else:
            self._incoming.write(data)
            self._read(self._protocol)

    def eof_received(self) -> bool:
        if self._protocol is None:
            return False
        return bool(self._protocol.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # The handshake.

    def _shake(self) -> None:
        """Continue the handshake on the thread with the received bytes."""
        self._shaking = True
        data, self._early = bytes(self._early), bytearray()

        def step() -> bool:
            self._incoming.write(data)
            try:
                self._session.do_handshake()
            except ssl.SSLWantReadError:
                return False
            return True

        try:
            shaking = asyncio.get_running_loop().run_in_executor(self._thread, step)
        except RuntimeError:
            # The port has ended.
            self.abort()
            return
        shaking.add_done_callback(self._shaken)

    def _shaken(self, shaking: asyncio.Future[bool]) -> None:
        self._shaking = False
        if shaking.cancelled():
            self.abort()
            return
        error = shaking.exception()
        raw = self._raw
        if raw is None or raw.is_closing():
            return
        if self._full:
            self._full = False
            raw.resume_reading()
        # After a failure, this sends the alert with its reason.
        self._flush(raw)
        if error is not None:
            raw.close()
            self._fail()
        elif not shaking.result():
            if self._early:
                self._shake()
        elif not self._opened.done():
            self._opened.set_result(None)
            self._protocol = protocol = self._make()
            protocol.connection_made(self)
            self._incoming.write(self._early)
            self._early = bytearray()
            self._read(protocol)

    def _fail(self) -> None:
        if not self._opened.done():
            self._opened.set_exception(ConnectionAbortedError("the TLS handshake was not finished"))

    # The session.

    def _read(self, protocol: asyncio.Protocol) -> None:
        pieces, ended = [], False
        try:
            while piece := self._session.read(READ_NBYTES):
                pieces.append(piece)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError:
            self.abort()
            return
        if self._outgoing.pending and self._raw is not None:
            self._flush(self._raw)
        if pieces:
            protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended and not self._finished and not self.is_closing() and not protocol.eof_received():
            self.close()

    def _flush(self, raw: asyncio.Transport) -> None:
        if data := self._outgoing.read():
            raw.write(data)

    def _finish(self) -> None:
        if self._finished or self._protocol is None or self._raw is None:
            return
        self._finished = True
        with contextlib.suppress(ssl.SSLError):
            self._session.unwrap()
        self._flush(self._raw)

    # asyncio.Transport, used by the HTTP connection.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raw = self._raw
        if raw is None or self._finished or not data:
            return
        try:
            self._session.write(data)
        except ssl.SSLError:
            self.abort()
            return
        self._flush(raw)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._finish()
        if self._raw is not None:
            self._raw.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._finish()
        if self._raw is not None:
            self._raw.close()

    def abort(self) -> None:
        self._fail()
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._session
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._raw is not None:
            self._raw.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "it is open"
        return self._protocol
