"""GOAWAY to the connections of a gRPC port, before its server stops.

gRPC's own stop answers what it has begun, and sends GOAWAY as HTTP/2 wants it: first one that names no last stream, so
that what crosses it on the wire is still served. But from that moment it kills what reaches it: calls that were sent
before their client could have heard of the end, and those that wait to be handed over, fail with CANCELLED, which no
client repeats. There is no call to send the GOAWAY first and to stop later; so the frame is written here, on the
connection's own socket:

1. Newcomers are refused (serving.front.backlog): who is told to leave must not come back.
2. A GOAWAY frame of 17 bytes (NO_ERROR, last stream 2^31 - 1) goes out between two writes of gRPC's, to every
   connection there is, and to those that the listener's queue still brings.
3. TOLD_S after the last one was told, and once nothing has been under way for QUIET_LOOKS looks, the server may be
   stopped: nobody in the queue, nobody untold who has said something, nothing unread, no call begun. A look that comes
   late says nothing: whoever starves this process starves gRPC's threads as well.

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
import math
import os
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterator

from serving.front.backlog import refuse_newcomers

TOLD_S = 0.5
LOOK_S, LATE_S, QUIET_LOOKS = 0.02, 0.06, 5
FRAME = struct.pack(">HBBBIII", 0, 8, 7, 0, 0, 0x7FFFFFFF, 0)
# A SETTINGS frame without settings.
SETTINGS_NBYTES = 9
# Of struct tcp_info: bytes_acked and bytes_received.
COUNTS_OFFSET, INFO_NBYTES = 120, 136
# Bytes that wait to be sent.
SIOCOUTQNSD = 0x894B
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)


async def say_goaway(port: int, begun: Callable[[], int], end_s: float) -> None:
    """Tells every client of the port that this process serves to call elsewhere; returns when all have heard it and
    what they had called has begun, or at end_s, by the loop's clock. begun: how many calls have begun so far."""
    loop = asyncio.get_running_loop()
    told: set[int] = set()
    looked_s, told_s, last, quiet = loop.time(), -math.inf, begun(), 0
    while (now_s := loop.time()) < end_s:
        before = len(told)
        busy = _tell_all(port, told) or begun() != last or now_s > looked_s + LATE_S
        if len(told) > before:
            told_s = now_s
        looked_s, last, quiet = now_s, begun(), 0 if busy else quiet + 1
        if quiet >= QUIET_LOOKS and now_s >= told_s + TOLD_S:
            return
        await asyncio.sleep(LOOK_S)


def _tell_all(port: int, told: set[int]) -> bool:
    """Refuses newcomers and tells who is untold; whether anything is under way. told: the inodes of who was told."""
    busy = False
    for each in _sockets(port):
        with each, contextlib.suppress(OSError, struct.error):
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                refuse_newcomers(each)
                queue = select.poll()
                queue.register(each, select.POLLIN)
                busy |= bool(queue.poll(0))
                continue
            inode = os.fstat(each.fileno()).st_ino
            if inode not in told and _is_between_frames(each):
                each.send(FRAME, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                told.add(inode)
            _, received = _counts(each)
            busy |= (inode not in told and received > 0) or _count(each, termios.FIONREAD) > 0
    return busy


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
    room, (acked, _) = each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), _counts(each)
    return acked >= SETTINGS_NBYTES and not _count(each, SIOCOUTQNSD) and _count(each, termios.TIOCOUTQ) <= room // 8


def _counts(each: socket.socket) -> tuple[int, int]:
    """Bytes that the client has acknowledged, and bytes that came of it."""
    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_NBYTES)
    acked, received = struct.unpack_from("@QQ", info, COUNTS_OFFSET)
    return acked, received


def _count(each: socket.socket, what: int) -> int:
    number = array.array("i", [0])
    fcntl.ioctl(each.fileno(), what, number)
    return number[0]
