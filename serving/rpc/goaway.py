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
- The frame stands between two frames, and after gRPC's SETTINGS (serving.rpc.port_sockets). Who has none has no call
  either.

A connection whose buffer is never empty enough is left to gRPC's stop. Elsewhere than on Linux all are.

Refused: stop() alone (it cancelled a call of 8 to 12 of 12 busy clients); grpc.max_connection_age_ms (it counts from a
connection's beginning, and cannot be called); a proxy of our own before the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import socket
import struct
from collections.abc import Callable

from freshet_serving.serving.front.backlog import refuse_new_connections
from freshet_serving.serving.rpc.port_sockets import (
    counts_of,
    is_between_frames,
    send_goaway,
    sockets_of,
    unread_nbytes,
)

TOLD_S = 0.5
LOOK_S, LATE_S, QUIET_LOOKS = 0.02, 0.06, 5


async def send_goaway_to_all(port: int, begun: Callable[[], int], end_s: float) -> None:
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
    for each in sockets_of(port):
        with each, contextlib.suppress(OSError, struct.error):
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                refuse_new_connections(each)
                queue = select.poll()
                queue.register(each, select.POLLIN)
                busy |= bool(queue.poll(0))
                continue
            inode = os.fstat(each.fileno()).st_ino
            if inode not in told and is_between_frames(each):
                send_goaway(each)
                told.add(inode)
            _, received = counts_of(each)
            busy |= (inode not in told and received > 0) or unread_nbytes(each) > 0
    return busy
