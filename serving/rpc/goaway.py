"""GOAWAY to the connections of a gRPC port, before its server stops.

gRPC's own stop answers what it has begun, and sends GOAWAY as HTTP/2 wants it: first one that names no last stream, so
that what crosses it on the wire is still served. But from that moment it kills what reaches it: calls that were sent
before their client could have heard of the end, and those that wait to be handed over, fail with CANCELLED, which no
client repeats. There is no call to send the GOAWAY first and to stop later; so the frame is written here, on the
connection's own socket:

1. Newcomers are refused (serving.front.backlog): who is told to leave must not come back.
2. A GOAWAY frame of 17 bytes (NO_ERROR, last stream 2^31 - 1) goes out between two writes of gRPC's, to every
   connection there is, and to those that the listener's queue still brings.
3. TOLD_S after the last one was told, and once no call has begun for QUIET_S, the server may be stopped.

Invariants
- The frame stands between two frames. The kernel keeps it in one piece, and gRPC writes whole frames: it leaves one
  unfinished only where the socket's buffer is full, so nothing is written while anything waits to be sent, or more than
  an eighth of the buffer to be acknowledged.
- Nothing is written before gRPC's SETTINGS, the first frame of a connection. Who has none has no call either.
- A descriptor is looked at by a duplicate of it: it cannot become another one between the look and the write.

A connection whose buffer is never empty enough is left to gRPC's stop. Elsewhere than on Linux all are.

Refused: stop() alone (it cancelled a call of 8 to 12 of 12 busy clients); grpc.max_connection_age_ms (it counts from a
connection's beginning, and cannot be called); a proxy of our own before the port.
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
from collections.abc import Callable, Iterator

from serving.front.backlog import HANDSHAKE_S, refuse_newcomers

TOLD_S = 0.5
QUIET_S = 0.1
LOOK_S = 0.02
FRAME = struct.pack(">HBBBIII", 0, 8, 7, 0, 0, 0x7FFFFFFF, 0)
# A SETTINGS frame without settings.
SETTINGS_NBYTES = 9
# Of struct tcp_info: bytes_acked.
ACKED_OFFSET, INFO_NBYTES = 120, 128
# Bytes that wait to be sent.
SIOCOUTQNSD = 0x894B
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)


async def say_goaway(port: int, begun: Callable[[], int], end_s: float) -> None:
    """Tells every client of the port that this process serves to call elsewhere; returns when all have heard it and
    what they had called has begun, or at end_s, by the loop's clock. begun: how many calls have begun so far."""
    loop = asyncio.get_running_loop()
    told: set[int] = set()
    start_s = told_s = changed_s = loop.time()
    there, last = False, begun()
    while (now_s := loop.time()) < end_s:
        before = len(told)
        there |= _tell_all(port, told)
        if len(told) > before:
            told_s = now_s
        if begun() != last:
            last, changed_s = begun(), now_s
        if now_s >= start_s + HANDSHAKE_S and (not there or now_s >= max(told_s + TOLD_S, changed_s + QUIET_S)):
            return
        await asyncio.sleep(LOOK_S)


def _tell_all(port: int, told: set[int]) -> bool:
    """Refuses newcomers and tells who is untold; whether anybody is connected. told: the inodes of who was told."""
    there = False
    for each in _sockets(port):
        with each, contextlib.suppress(OSError, struct.error):
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                refuse_newcomers(each)
                continue
            each.getpeername()
            there, inode = True, os.fstat(each.fileno()).st_ino
            if inode not in told and _is_between_frames(each):
                each.send(FRAME, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                told.add(inode)
    return there


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


def _is_between_frames(each: socket.socket) -> bool:
    """Whether gRPC has begun to write on a connection and is in the middle of nothing."""
    unsent, unacknowledged = array.array("i", [0]), array.array("i", [0])
    fcntl.ioctl(each.fileno(), SIOCOUTQNSD, unsent)
    fcntl.ioctl(each.fileno(), termios.TIOCOUTQ, unacknowledged)
    (acked,) = struct.unpack_from("@Q", each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_NBYTES), ACKED_OFFSET)
    room = each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return not unsent[0] and unacknowledged[0] <= room // 8 and acked >= SETTINGS_NBYTES
