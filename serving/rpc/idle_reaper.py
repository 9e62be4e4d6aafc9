"""Room for newcomers on the gRPC port, where connections run short: idle ones leave.

gRPC takes so many connections and refuses who comes beyond. It closes an idle one after a time that is set once, ten
minutes: clients keep theirs for the next call. So where no more than an eighth of the connections is left, those that
are idle for PRESSED_S make room, as they do over HTTP (serving.http.port): the one that has been silent for longest
first, told to leave by GOAWAY, and cut off where it has not gone TOLD_S later.

Invariants
- A connection is idle while no call of it is being answered and nothing has come of its client. A call whose message is
  not whole is not being answered yet: its client is waited for. Neither is a stream between two requests.
- No more are told than there is need of; one of which something comes is left.
- The loop waits for nothing: looks are another thread's, at most a tenth of its time, and cost one listing of the
  process's descriptors where there are fewer of these than the port may have connections.

What gRPC has no means for: to prefer one newcomer to another, to know who holds how many, to have newcomers wait for
room instead of refusing them. A client that sends a byte now and then is not idle.
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
from typing import Any, NamedTuple

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
    """The calls of a process that are being answered. On the event loop."""

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}
        self._next = 0

    @contextmanager
    def one(self, context: Any) -> Iterator[None]:
        """Answers a call, or one request of a stream."""
        number = self._next = self._next + 1
        self._contexts[number] = context
        try:
            yield
        finally:
            del self._contexts[number]

    def ports(self) -> set[int]:
        """Their clients' TCP ports, whatever their addresses."""
        found = set()
        for context in self._contexts.values():
            with contextlib.suppress(ValueError):
                found.add(int(context.peer().rpartition(":")[2]))
        return found


class IdleConnection(NamedTuple):
    """An idle connection, by its socket's inode."""

    idle_s: float
    inode: int


class IdleReaper:
    """The room of one port. most: connections that it takes. tls: whether it speaks TLS, between whose frames none of
    ours can go: there idle connections are cut off untold."""

    def __init__(self, answering: ActiveCalls, most: int, tls: bool = False) -> None:
        self._answering, self._tls = answering, tls
        self._wanted = most - max(1, most // 8)
        # When each was told to leave, by inode.
        self._told_s: dict[int, float] = {}

    async def keep(self, port: int) -> None:
        """Makes room whenever it runs short, until it is cancelled."""
        rest_s = LOOK_S
        while True:
            await asyncio.sleep(rest_s)
            began_s = time.monotonic()
            try:
                if await asyncio.to_thread(descriptors) > self._wanted:
                    await asyncio.to_thread(self.reap, port, self._answering.ports())
            except Exception:
                log.exception("idle connections could not be looked at")
            rest_s = max(LOOK_S, REST * (time.monotonic() - began_s))

    def reap(self, port: int, answering: Iterable[int] = ()) -> None:
        """Makes room once. answering: ports of clients that wait for an answer."""
        busy, idle, count = set(answering), [], 0
        for each in sockets_of(port):
            with each, contextlib.suppress(OSError, struct.error):
                each.getpeername()  # raises for the listener, and for who keeps the port
                count += 1
                if (found := _idle(each, busy)) is not None:
                    idle.append(found)
        idle.sort(reverse=True)
        leaving = {one.inode for one in idle[: max(0, count - self._wanted)]}
        # Those that were told, and said something or have gone, are told anew another time.
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


def _idle(each: socket.socket, busy: set[int]) -> IdleConnection | None:
    """A connection of which nothing has come for PRESSED_S, unless its client waits for an answer."""
    if each.getpeername()[1] in busy or unread_nbytes(each):
        return None
    silent = idle_s(each)
    return IdleConnection(silent, os.fstat(each.fileno()).st_ino) if silent >= PRESSED_S else None
