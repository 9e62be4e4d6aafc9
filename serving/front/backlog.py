"""What waits in a listener's queue when its port ends: it is served, not reset.

A listening socket that is closed resets the connections in its queue, and those whose handshake is under way. Their
clients have been told that they are connected, and may have sent a request. So the end of a listener is:

1. refuse_new_connections(): the kernel drops every SYN that comes to it. Who asks now asks again a second later, as TCP
   does, and is refused then: nobody listens any more.
2. What is queued is accepted and served, and so is what the handshakes under way bring within HANDSHAKE_S.
3. The listener is closed.

Refused: listen(fd, 0) (a full queue drops the last packet of a handshake, whose client thinks that it is connected);
shutdown() of the listener (it resets the queue as close() does); TCP_MIGRATE_REQ (another process must listen).
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Iterator

# A round trip and a retransmission of its last packet.
HANDSHAKE_S = 0.1
SO_ATTACH_FILTER = 26
# Classic BPF on a segment's header, as (code, if true, if false, operand): byte 13 holds the flags; a SYN without an
# ACK is cut to 0 bytes, which drops it.
NO_NEWCOMERS = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def refuse_new_connections(listener: socket.socket) -> None:
    """Has the kernel drop whoever wants to connect from now on; elsewhere than on Linux it does nothing."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in NO_NEWCOMERS))
    with contextlib.suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(NO_NEWCOMERS), ctypes.addressof(program))
        )


def waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """Accepts what waits in the queue of a listener that does not block."""
    while True:
        try:
            connection, _ = listener.accept()
        except ConnectionAbortedError:
            continue
        except OSError:
            # Nothing is left, or there are no descriptors for it.
            return
        connection.setblocking(False)
        yield connection
