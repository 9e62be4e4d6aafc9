"""Find the sockets of a gRPC port among the process's descriptors, and send GOAWAY on them; gRPC does not expose them.

Invariants
- A descriptor is used through a duplicate: it cannot become another file between check and write.
- send_goaway() writes a GOAWAY frame of 17 bytes (NO_ERROR, last stream 2^31 - 1) between two writes of gRPC: the
  client finishes its calls and makes new ones on another connection. The kernel keeps the frame in one piece, and gRPC
  writes whole frames: it leaves one unfinished only if the socket's buffer is full. So is_between_frames() requires
  that nothing waits to be sent and at most an eighth of the buffer to be acknowledged.
- Nothing is written before gRPC's SETTINGS, the first frame of a connection.

On systems other than Linux no sockets are found.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator

FRAME = struct.pack(">HBBBIII", 0, 8, 7, 0, 0, 0x7FFFFFFF, 0)
# A SETTINGS frame without settings.
SETTINGS_NBYTES = 9
# In struct tcp_info: last_data_recv; bytes_acked and bytes_received.
SILENT_OFFSET, COUNTS_OFFSET, INFO_NBYTES = 52, 120, 136
# ioctl for the number of bytes not yet sent.
SIOCOUTQNSD = 0x894B
DESCRIPTORS = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)


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


def _count(each: socket.socket, what: int) -> int:
    number = array.array("i", [0])
    fcntl.ioctl(each.fileno(), what, number)
    return number[0]


def send_goaway(each: socket.socket) -> None:
    """Send GOAWAY: the client makes new calls on another connection."""
    each.send(FRAME, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def idle_s(each: socket.socket) -> float:
    """Return the seconds since data last arrived from the client."""
    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_NBYTES)
    (milliseconds,) = struct.unpack_from("@I", info, SILENT_OFFSET)
    return float(milliseconds) / 1e3


def unread_nbytes(each: socket.socket) -> int:
    """Return the bytes received that gRPC has not read."""
    return _count(each, termios.FIONREAD)
