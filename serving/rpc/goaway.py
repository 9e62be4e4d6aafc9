"""GOAWAY to the connections of a gRPC port, before its server stops.

gRPC's own stop answers what it has begun, and sends GOAWAY as HTTP/2 wants it: first one that names no last stream, so
that what crosses it on the wire is still served. But from that moment it kills what reaches it: calls that were sent
before their client could have heard of the end fail with CANCELLED, which no client repeats. There is no call to send
the GOAWAY first and to stop later; so the frame is written here, on the connection's own socket:

1. Newcomers are refused (serving.front.backlog): who is told to leave must not come back.
2. A GOAWAY frame of 17 bytes (NO_ERROR, last stream 2^31 - 1) goes out between two writes of gRPC's.
3. TOLD_S later nobody begins a call any more, what was begun is at work, and the server may be stopped.

Invariants
- The frame stands between two frames. The kernel keeps it in one piece, and gRPC writes whole frames: it leaves one
  unfinished only where the socket's buffer is full, so nothing is written while anything waits to be acknowledged.
- Nothing is written before gRPC's SETTINGS, the first frame of a connection. Who has none has no call either.
- A descriptor is looked at by a duplicate of it: it cannot become another one between the look and the write.

A connection whose buffer never empties within TOLD_S is left to gRPC's stop. Elsewhere than on Linux all are.

Refused: stop() alone (under load some call of every other connection was CANCELLED); grpc.max_connection_age_ms (it
counts from the connection's beginning, and cannot be called); a proxy of our own before the port.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator

from serving.front.backlog import refuse_newcomers

TOLD_S = 0.5
LOOK_S = 0.002
FRAME = struct.pack(">HBBBIII", 0, 8, 7, 0, 0, 0x7FFFFFFF, 0)
# A SETTINGS frame without settings.
SETTINGS_NBYTES = 9
# Of struct tcp_info: bytes_acked.
ACKED_OFFSET, INFO_NBYTES = 120, 128
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)


async def say_goaway(port: int) -> None:
    """Tells every client of the port that this process serves to call elsewhere; returns when all have heard it."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as held:
        found = [held.enter_context(each) for each in _sockets(port)]
        for each in found:
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                refuse_newcomers(each)
        untold = [each for each in found if _connected(each)]
        if not untold:
            return
        end_s = loop.time() + TOLD_S
        while untold and loop.time() < end_s:
            for each in untold:
                if _tell(each):
                    # It is not to outlive gRPC's own descriptor.
                    each.close()
            untold = [each for each in untold if each.fileno() >= 0]
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(max(0.0, end_s - loop.time()))


def _sockets(port: int) -> Iterator[socket.socket]:
    """Duplicates of this process's TCP sockets on that port of its own, connected or not; the caller's to close."""
    try:
        numbers = os.listdir(DESCRIPTORS)
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError), contextlib.ExitStack() as unwanted:
            descriptor = os.dup(int(number))
            unwanted.callback(os.close, descriptor)
            each = socket.socket(fileno=descriptor)
            unwanted.pop_all()
            if each.family in FAMILIES and each.type == socket.SOCK_STREAM and each.getsockname()[1] == port:
                yield each
            else:
                each.close()


def _connected(each: socket.socket) -> bool:
    try:
        each.getpeername()
    except OSError:
        return False
    return True


def _tell(each: socket.socket) -> bool:
    """Whether the client has been told, or needs not be; False while gRPC may be in the middle of a frame."""
    unacknowledged = array.array("i", [0])
    try:
        fcntl.ioctl(each.fileno(), termios.TIOCOUTQ, unacknowledged)
        (acked,) = struct.unpack_from(
            "@Q", each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_NBYTES), ACKED_OFFSET
        )
        if unacknowledged[0] or acked < SETTINGS_NBYTES:
            return False
        each.send(FRAME, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BlockingIOError:
        return False
    except (OSError, struct.error):
        # It has gone.
        return True
    return True
