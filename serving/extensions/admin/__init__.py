"""Serve the admin port: deltas, rollback, versions, labels, status and the console.

admin_port        the port, on a thread of its own
api               routes of changes, and the assembled port
admin_bodies      reading of bodies within bounds, and JSON replies
audit_trail       the latest changes made through the port
authorization     access control of the port
console_files     the console's files (console/), by fixed names
live_samples      current rates, latencies and errors, with five minutes of history
live_stream       live statistics as server-sent events
model_views       read-only views of one model
example_requests  an example request, recorded or generated
version_routes    decisions about full versions
erase_route       erases a user
item_features     how a version ranks items, and the columns of those in a reply
try_call          forwards one request to the data port
"""

from __future__ import annotations

import socket
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__ = ["admin_bodies", "authorization"]


def _admin_port(parts: Any, listening: socket.socket) -> Any:
    from freshet_serving.serving.extensions.admin.admin_port import AdminPort

    return AdminPort(parts, listening)


REQUIRES = ()
EXTENSION = ServerExtension(admin_port=_admin_port)
