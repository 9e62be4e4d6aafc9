"""Close the connections of an HTTP port so that no client loses a request or a reply.

    serving ──▶ draining ──its last reply──▶ finished ──the client's FIN, or LINGER_S──▶ closed
                   └──idle for PATIENCE_S──▶┘

draining   Requests are answered. The first reply with nothing behind it is the last, and says `connection: close`.
finished   A FIN follows the last byte. Bytes that still arrive are read and dropped.
closed     The descriptor is closed.

The flag `draining` begins it, at the end of a port (drain_connections) or when a worker gives up some connections
(DataPorts.drain_some). A connection that ends for another reason (a client's own `connection: close`, a refused body,
75 s without a request) is finished in the same way.

Invariants
- Everything that a client sent before it could know of the end is answered. A reply is the last only if nothing unread
  follows the request, here or in the kernel; an idle connection is finished only after PATIENCE_S without a byte.
- No reset follows a reply. Closing a descriptor with unread bytes sends RST, on which the client's system discards what
  the client has not read yet. So we send FIN, read on, and close when the client has finished as well (lingering
  close).
- The end is bounded: requests still in flight after timeout_s are answered 503, and ANSWERED_S later every connection
  is closed.

One race remains, which HTTP/1.1 leaves to every server: a client that sends for the first time in PATIENCE_S while the
FIN is on its way reads end of file instead of a reply.

Costs: a wrapper whose methods are the transport's own, and one look into the kernel's buffer for each reply of a
draining connection.

Rejected: closing idle connections at once, as uvicorn does (8 to 12 of 12 busy ones were reset: between two requests
each is idle); SO_LINGER (it waits until the sent bytes are acknowledged, and still resets if bytes are unread).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import socket
import termios
from array import array
from collections.abc import Callable
from typing import Any, Protocol, cast

from uvicorn.server import ServerState

log = logging.getLogger("freshet.http")

# Between a reply and a busy client's next request lies one round trip, up to about 0.3 s.
PATIENCE_S = 0.5
LINGER_S = 2.0
# A client that keeps sending (a body that was refused) is read for longer: many send everything before they read.
SENDING_S = 30.0
SENDING_NBYTES = 128 << 20
# A client that reads nothing of its last reply for this long is cut off.
STALLED_S = 30.0
ANSWERED_S = 1.0
LOOK_S = 0.02
CLOSE = (b"connection", b"close")


class LingeringTransport:
    """A connection's transport whose close() performs a lingering close."""

    __slots__ = (
        "_dropping", "_heard_nbytes", "_stalled_s", "_timer", "_transport", "_unsent_nbytes", "_waited_s", "abort",
        "get_extra_info", "get_write_buffer_size", "is_closing", "pause_reading", "resume_reading", "write",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_nbytes, self._stalled_s, self._waited_s, self._heard_nbytes = math.inf, 0.0, 0.0, 0
        self.abort, self.get_extra_info = transport.abort, transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.is_closing: Callable[[], bool] = transport.is_closing
        self.write: Callable[[bytes], None] = transport.write

    def close(self, finished: bool = False) -> None:
        """Send all written bytes and FIN; close when the client has finished too (`finished`), or after LINGER_S."""
        if self.is_closing():
            return
        self.is_closing, self.write = _true, _drop
        transport = self._transport
        self._dropping = _LingeringProtocol(transport.get_protocol(), self._lost, self.abort)
        transport.set_protocol(self._dropping)
        if finished:
            transport.close()
        else:
            transport.write_eof()
            # Reading may be paused behind unread requests, and the client's FIN must be noticed.
            transport.resume_reading()
        self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._give_up)

    def _give_up(self) -> None:
        # Wait for a slow reader as long as it makes progress.
        self._waited_s += LINGER_S
        heard, self._heard_nbytes = self._dropping.nbytes > self._heard_nbytes, self._dropping.nbytes
        before, self._unsent_nbytes = self._unsent_nbytes, self.get_write_buffer_size()
        self._stalled_s = 0.0 if self._unsent_nbytes < before else self._stalled_s + LINGER_S
        reads, sends = self._unsent_nbytes and self._stalled_s < STALLED_S, heard and self._waited_s < SENDING_S
        if reads or sends:
            self._wait()
        else:
            self._transport.abort()

    def _lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _LingeringProtocol(asyncio.Protocol):
    """A finished connection: received bytes are dropped, within bounds; lost() is called at its end."""

    def __init__(self, protocol: asyncio.BaseProtocol, lost: Callable[[], None], abort: Callable[[], None]) -> None:
        self._protocol, self._lost, self._abort = protocol, lost, abort
        self.nbytes = 0

    def data_received(self, data: bytes) -> None:
        self.nbytes += len(data)
        if self.nbytes > SENDING_NBYTES:
            self._abort()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
        self._protocol.connection_lost(exc)


class DrainableConnection(Protocol):
    """A connection as connection draining needs it; `draining` is set to let it end."""

    draining: bool
    transport: Any

    @property
    def idle(self) -> bool: ...

    def give_up(self) -> None: ...


async def drain_connections(state: ServerState, timeout_s: float, hurried: Callable[[], bool]) -> None:
    """Drain every connection; return when none is left.

    Args:
        timeout_s: Time for requests in flight.
        hurried: Once it returns True, all connections have been or are being aborted.
    """
    loop = asyncio.get_running_loop()
    connections = cast(set[DrainableConnection], state.connections)
    quiet_since_s: dict[DrainableConnection, float] = {}
    finished: set[DrainableConnection] = set()
    end_s = loop.time() + timeout_s
    for connection in connections:
        connection.draining = True
    # A finished idle connection is owed no reply, so its client is not waited for.
    while (busy := connections - finished) and not hurried() and (now_s := loop.time()) < end_s:
        for connection in busy:
            if connection.transport.is_closing():
                continue
            if not connection.idle or unread(connection.transport):
                quiet_since_s.pop(connection, None)
            elif now_s - quiet_since_s.setdefault(connection, now_s) >= PATIENCE_S:
                finished.add(connection)
                _send_fin(connection.transport)
                connection.transport.close()
        await asyncio.sleep(LOOK_S)
    if busy and not hurried():
        log.warning("%d connections are still busy after shutdown_timeout_s and are closed", len(busy))
        for task in list(state.tasks):
            task.cancel()
        for connection in busy:
            connection.give_up()
        end_s = loop.time() + ANSWERED_S
        while connections - finished and not hurried() and loop.time() < end_s:
            await asyncio.sleep(LOOK_S)
    for connection in list(connections):
        connection.transport.abort()


def _send_fin(transport: asyncio.Transport) -> None:
    """Send FIN now on a connection with nothing to write: in the loop's next turn, unchecked bytes may be there."""
    if transport.get_extra_info("ssl_object") is not None:
        # A close_notify must go first, and close() writes it.
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as dup:
        dup.shutdown(socket.SHUT_WR)


def unread(transport: asyncio.Transport) -> bool:
    """Return True if the kernel holds unread bytes of the client; the transport must not be closing."""
    nbytes = array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, nbytes)
    return nbytes[0] > 0


def _true() -> bool:
    return True


def _drop(data: bytes) -> None:
    """Drop bytes written after the last reply."""
