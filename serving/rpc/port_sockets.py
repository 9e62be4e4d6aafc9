"""Find the sockets of a gRPC port among the process's descriptors, and send GOAWAY on them; gRPC does not expose them.

Invariants
- A descriptor is used through a duplicate: it cannot become another file between check and write.
- send_goaway() writes a GOAWAY frame (NO_ERROR, last stream 2^31 - 1) between two writes of gRPC: the client finishes
  its calls and makes new ones on another connection. The kernel keeps its 17 bytes in one piece, and gRPC leaves a
  frame unfinished only if the socket's buffer is full. So is_between_frames() requires that nothing waits to be sent
  and at most an eighth of the buffer to be acknowledged.
- Nothing is written before gRPC's SETTINGS, the first frame of a connection.

send_goaway_to_all() tells all connections before the server stops (graceful shutdown). gRPC's own stop answers the
calls that have begun, but cancels those sent before their client could know of the end, and those not yet handed to
Python; no client retries CANCELLED. So:

1. New connections are refused (serving.front.backlog), so that a client that received GOAWAY does not come back.

2. A GOAWAY frame is written to every connection, and to those still in the listener's queue. One whose send buffer is
never empty enough is left to gRPC's stop.

3. The server may be stopped TOLD_S after the last frame, once QUIET_LOOKS consecutive checks found nothing: an empty
queue, no connection without GOAWAY that has sent anything, nothing unread, no call begun. A check that runs late does
not count: a load that delays this process delays gRPC's threads as well.

On systems other than Linux no sockets are found.

Rejected: stop() alone (it cancelled a call of 8 to 12 of 12 busy clients); grpc.max_connection_age_ms (it counts from a
connection's beginning, and cannot be triggered); a proxy of our own in front of the port.
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

from freshet_serving.serving.front.backlog import refuse_new_connections

FRAME = struct.pack(">HBBBIII", 0, 8, 7, 0, 0, 0x7FFFFFFF, 0)
# A SETTINGS frame without settings.
SETTINGS_NBYTES = 9
# In struct tcp_info: last_data_recv; bytes_acked and bytes_received.
SILENT_OFFSET, COUNTS_OFFSET, INFO_NBYTES = 52, 120, 136
# ioctl for the number of bytes not yet sent.
SIOCOUTQNSD = 0x894B
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)
TOLD_S = 0.5
LOOK_S, LATE_S, QUIET_LOOKS = 0.02, 0.06, 5


def descriptors() -> int:
    """Return how many descriptors the process has; 0 if the system does not report it."""
    try:
        return len(os.listdir(DESCRIPTORS))
    except OSError:
        return 0


def sockets_of(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's TCP sockets with this local port, connected or not; the caller closes them."""
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


def is_between_frames(each: socket.socket) -> bool:
    """Return True if gRPC has begun to write on a connection and has no unfinished frame."""
    room, (acked, _) = each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), counts_of(each)
    return acked >= SETTINGS_NBYTES and not _count(each, SIOCOUTQNSD) and _count(each, termios.TIOCOUTQ) <= room // 8


def counts_of(each: socket.socket) -> tuple[int, int]:
    """Return the bytes that the client has acknowledged, and the bytes received from it."""
    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_NBYTES)
    acked, received = struct.unpack_from("@QQ", info, COUNTS_OFFSET)
    return acked, received


def _count(each: socket.socket, request: int) -> int:
    number = array.array("i", [0])
    fcntl.ioctl(each.fileno(), request, number)
    return number[0]


def send_goaway(each: socket.socket) -> None:
    each.send(FRAME, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def idle_s(each: socket.socket) -> float:
    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_NBYTES)
    (milliseconds,) = struct.unpack_from("@I", info, SILENT_OFFSET)
    return float(milliseconds) / 1e3


def unread_nbytes(each: socket.socket) -> int:
    return _count(each, termios.FIONREAD)


async def send_goaway_to_all(port: int, begun: Callable[[], int], end_s: float) -> None:
    """Send GOAWAY to every client of the port, as far as this process serves it.

    Returns when all clients have had time to read it and their calls have begun (begun() counts them), or at end_s.
    """
    loop = asyncio.get_running_loop()
    notified: set[int] = set()
    looked_s, told_s, last, quiet = loop.time(), -math.inf, begun(), 0
    while (now_s := loop.time()) < end_s:
        before = len(notified)
        busy = _tell_all(port, notified) or begun() != last or now_s > looked_s + LATE_S
        if len(notified) > before:
            told_s = now_s
        looked_s, last, quiet = now_s, begun(), 0 if busy else quiet + 1
        if quiet >= QUIET_LOOKS and now_s >= told_s + TOLD_S:
            return
        await asyncio.sleep(LOOK_S)


def _tell_all(port: int, notified: set[int]) -> bool:
    """Refuse new connections, send GOAWAY to sockets whose inode is not `notified`; return True if any is busy."""
    busy = False
    for each in sockets_of(port):
        with each, contextlib.suppress(OSError, struct.error):
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                refuse_new_connections(each)
                queue = select.poll()
                queue.register(each, select.POLLIN)
                busy |= bool(queue.poll(0))
                continue
            inode = os.fstat(each.fileno()).st_ino
            if inode not in notified and is_between_frames(each):
                send_goaway(each)
                notified.add(inode)
            _, received = counts_of(each)
            busy |= (inode not in notified and received > 0) or unread_nbytes(each) > 0
    return busy
