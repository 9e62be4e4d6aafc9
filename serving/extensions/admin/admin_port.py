"""Serve the admin port of a server on an event loop of its own, so that no change delays a prediction.

Threads: `freshet-admin` runs the loop, `freshet-live` samples; the server's main thread starts and ends both.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import sys
import threading

from freshet_serving.processor.standby_thread import standing_pool
from freshet_serving.serving.access.credentials import ADMIN_PLACE
from freshet_serving.serving.extensions.admin.api import MAX_DELTA_NBYTES, create_admin
from freshet_serving.serving.extensions.admin.live_samples import LiveSamples
from freshet_serving.serving.front.resource_limits import BodyMemory, ConnectionLimits
from freshet_serving.serving.http.connection import HttpConnection
from freshet_serving.serving.http.port import SWITCH_INTERVAL_S, HttpPort, new_loop
from freshet_serving.serving.ports import SERVER
from freshet_serving.serving.server_parts import ServerParts

STOP_S = 5.0

HELPERS = 6
"""Helper threads for slow work, created at the start, because creating them may fail when memory is short."""


class AdminPort:
    def __init__(self, parts: ServerParts, listening: socket.socket) -> None:
        config = parts.config
        self._samples = LiveSamples(parts.lifecycle, parts.metrics)
        admin = create_admin(
            parts.lifecycle,
            parts.metrics,
            guard=parts.access.guard(ADMIN_PLACE) if config.admin_token or config.api_keys else None,
            host=config.admin_host,
            bulk=parts.bulk,
            live=self._samples,
            data_address=parts.data_address,
            tls=bool(config.tls_cert),
            recordings=config.record,
            routes={name: make(parts) for name, make in SERVER.offers("admin_routes").items()},
        )
        connection = functools.partial(HttpConnection, bodies=BodyMemory(MAX_DELTA_NBYTES))
        tls = parts.access.certificates if config.tls_cert else None
        self._port = HttpPort(admin, listening, STOP_S, connection, ConnectionLimits.here().admin, tls)
        self._thread = threading.Thread(target=self._run, name="freshet-admin", daemon=True)

    def start(self) -> None:
        """Begin to answer, and to sample as soon as the models are open."""
        self._thread.start()
        self._samples.start()

    def end(self) -> None:
        """Stop, and wait for STOP_S at most."""
        # Streams end with their samples: the port would wait for them.
        self._samples.close()
        self._port.end()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.get_loop().set_default_executor(standing_pool(HELPERS, "freshet-admin-helper"))
            runner.run(self._port.listen())
