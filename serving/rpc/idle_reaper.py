"""Close idle connections of the gRPC port when connections run short, so that new clients get in.

gRPC refuses connections above a fixed limit, and its timeout for idle ones is fixed at ten minutes. So when at most an
eighth of the connections is left, connections idle for PRESSED_S are closed, as over HTTP (serving.http.port): the
longest idle first, by GOAWAY, and by shutdown if it is still open TOLD_S later.

Invariants
- A connection is idle while none of its calls is being answered and nothing has arrived from its client. A call whose
  message is incomplete is not being answered; nor is a stream between two requests.
- No more connections are closed than necessary; one from which something arrives is left alone.
- The loop does not wait: another thread makes the checks, for at most a tenth of its time. A check costs one listing of
  the process's descriptors if there are fewer of these than the port may have connections.

gRPC cannot prefer one new client to another, count connections by client, or let new clients wait for room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.rpc.port_sockets import (
    descriptors,
    idle_s,
    is_between_frames,
    send_goaway,
    sockets_of,
    unread_nbytes,
)

log = logging.getLogger("freshet.grpc")

LOOK_S, REST, PRESSED_S, TOLD_S = 1.0, 9, 3.0, 1.0


class ActiveCalls:
    """The calls of a process that are being answered. Used on the event loop."""

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}
        self._next = 0

    @contextmanager
    def one(self, context: Any) -> Iterator[None]:
        """Register a call, or one request of a stream, while it is answered."""
        number = self._next = self._next + 1
        self._contexts[number] = context
        try:
            yield
        finally:
            del self._contexts[number]

    def ports(self) -> set[int]:
        """Return the TCP ports of the clients, whatever their addresses."""
        ports = set()
        for context in self._contexts.values():
            with contextlib.suppress(ValueError):
                ports.add(int(context.peer().rpartition(":")[2]))
        return ports


class IdleReaper:
    """Closes idle connections of one port.

    Args:
        most: Limit of the port's connections.
        tls: Whether the port speaks TLS. GOAWAY cannot be inserted between TLS records, so idle connections are then
            shut down without it.
    """

    def __init__(self, answering: ActiveCalls, most: int, tls: bool = False) -> None:
        self._answering, self._tls = answering, tls
        self._max_kept = most - max(1, most // 8)
        # Time of GOAWAY for each connection, by inode.
        self._told_s: dict[int, float] = {}

    async def keep(self, port: int) -> None:
        """Make room whenever connections run short, until it is cancelled."""
        rest_s = LOOK_S
        while True:
            await asyncio.sleep(rest_s)
            began_s = time.monotonic()
            try:
                if await in_thread(None, descriptors) > self._max_kept:
                    await in_thread(None, partial(self.reap, port, self._answering.ports()))
            except Exception:
                log.exception("could not check for idle connections")
            rest_s = max(LOOK_S, REST * (time.monotonic() - began_s))

    def reap(self, port: int, answering: Iterable[int] = ()) -> None:
        """Make room once; `answering` are the TCP ports of clients that wait for an answer."""
        busy, idle, count = set(answering), [], 0
        for each in sockets_of(port):
            with each, contextlib.suppress(OSError, struct.error):
                each.getpeername()  # raises for the listener, and for the socket that reserves the port
                count += 1
                if (connection := _idle(each, busy)) is not None:
                    idle.append(connection)
        idle.sort(reverse=True)
        leaving = {inode for _, inode in idle[: max(0, count - self._max_kept)]}
        # A connection that was sent GOAWAY and has become active or gone is forgotten, and may get another GOAWAY
        # later.
        self._told_s = {inode: told_s for inode, told_s in self._told_s.items() if inode in leaving}
        for each in sockets_of(port) if leaving else ():
            with each, contextlib.suppress(OSError, struct.error):
                inode = os.fstat(each.fileno()).st_ino
                if inode in leaving and _idle(each, busy) is not None:
                    self._send_off(each, inode)

    def _send_off(self, each: socket.socket, inode: int) -> None:
        now_s = time.monotonic()
        if inode in self._told_s:
            if now_s - self._told_s[inode] >= TOLD_S:
                each.shutdown(socket.SHUT_RDWR)
            return
        if not self._tls and is_between_frames(each):
            send_goaway(each)
        self._told_s[inode] = now_s


def _idle(each: socket.socket, busy: set[int]) -> tuple[float, int] | None:
    """Return (seconds idle, inode) of a connection idle for PRESSED_S, unless its client waits for an answer."""
    if each.getpeername()[1] in busy or unread_nbytes(each):
        return None
    silent_s = idle_s(each)
    return (silent_s, os.fstat(each.fileno()).st_ino) if silent_s >= PRESSED_S else None
