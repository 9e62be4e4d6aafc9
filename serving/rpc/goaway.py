"""Send GOAWAY to all connections of a gRPC port before its server stops (graceful shutdown).

gRPC's own stop answers the calls that have begun, and sends GOAWAY as HTTP/2 prescribes: first one without a last
stream, so that calls that cross it on the wire are still served. But from that moment it cancels new calls: those sent
before their client could know of the end, and those not yet handed to Python, fail with CANCELLED, which no client
retries. gRPC has no function to send GOAWAY first and stop later, so this module writes the frame itself, on each
connection's socket:

1. New connections are refused (serving.front.backlog), so that a client that received GOAWAY does not come back. 2. A
GOAWAY frame of 17 bytes (NO_ERROR, last stream 2^31 - 1) is written between two writes of gRPC, to every connection,
and to those still in the listener's queue. 3. The server may be stopped TOLD_S after the last frame, once QUIET_LOOKS
consecutive checks found nothing: an empty queue, no connection without GOAWAY that has sent anything, nothing unread,
no call begun. A check that runs late does not count: a load that delays this process delays gRPC's threads as well.

Invariants
- The frame stands between two frames, and after gRPC's SETTINGS (serving.rpc.port_sockets). A connection without
  SETTINGS has no call either.

A connection whose send buffer is never empty enough is left to gRPC's stop. On systems other than Linux all are.

Rejected: stop() alone (it cancelled a call of 8 to 12 of 12 busy clients); grpc.max_connection_age_ms (it counts from a
connection's beginning, and cannot be triggered); a proxy of our own in front of the port.
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
    """Send GOAWAY to every client of the port, as far as this process serves it.

    Returns when all clients have had time to read it and their calls have begun, or at end_s.

    Args:
        port: The port's number.
        begun: Returns the number of calls that have begun so far.
        end_s: Time limit, by the loop's clock.
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
    """Refuse new connections, and send GOAWAY where it was not sent yet; return True if anything is in progress.

    Args:
        port: The port's number.
        notified: Inodes of the sockets that were sent GOAWAY; extended.
    """
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
