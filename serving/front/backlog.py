"""Serve the connections in a listener's queue when its port ends, instead of resetting them.

Closing a listening socket resets the connections in its queue and those whose handshake is in progress, although their
clients may have sent a request. So a listener ends in three steps:

1. refuse_new_connections(): the kernel drops every new SYN. The client's TCP sends it again a second later, and is
refused then because the listener is closed.

2. Queued connections are accepted and served, and so are those whose handshake completes within HANDSHAKE_S.

3. The listener is closed.

Rejected: listen(fd, 0) (a full queue drops the last packet of a handshake, whose client believes that it is connected);
shutdown() of the listener (it resets the queue as close() does); TCP_MIGRATE_REQ (another process must listen).
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Iterator

# One round trip and one retransmission of its last packet.
HANDSHAKE_S = 0.1
SO_ATTACH_FILTER = 26
# Classic BPF on a segment's header, as (code, if true, if false, operand): byte 13 holds the flags; a SYN without an
# ACK is cut to 0 bytes, which drops it.
NO_NEWCOMERS = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def refuse_new_connections(listener: socket.socket) -> None:
    """Make the kernel drop new connection attempts; on systems other than Linux, do nothing."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in NO_NEWCOMERS))
    with contextlib.suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(NO_NEWCOMERS), ctypes.addressof(program))
        )


def waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections in the queue of a non-blocking listener."""
    while True:
        try:
            connection, _ = listener.accept()
        except ConnectionAbortedError:
            continue
        except OSError:
            # The queue is empty, or there is no free descriptor.
            return
        connection.setblocking(False)
        yield connection
