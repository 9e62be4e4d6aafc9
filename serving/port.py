"""One listening port, or the connections of one: a uvicorn server whose owner starts and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import socket
from collections.abc import Iterator

import uvicorn

BACKLOG = 2048
# The event loop, the sessions and the writer hand the GIL to each other all the time; with Python's 5 ms a thread that
# only needs it for microseconds waits behind one that does not. Measured under locust at saturation, a delta a second,
# alternating runs: 1.17 to 1.25 times the requests, p99 0.7 to 0.8 of it, freshness 0.75; no better at 0.1 ms.
SWITCH_INTERVAL_S = 0.0005
KEEP_ALIVE_S = 75


class Port(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner."""

    def __init__(
        self, app: object, listener: socket.socket | None, shutdown_timeout_s: float, http: object = "httptools"
    ) -> None:
        """listener: bound and listening; None where connections come by adopt(). http: a class of protocols."""
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http=http,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=shutdown_timeout_s,  # type: ignore[arg-type]
                backlog=BACKLOG,
            )
        )
        self._listener = listener
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def listen(self) -> None:
        """Serves until end() is called, then closes the listener."""
        await self.serve([self._listener] if self._listener is not None else [])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    def opened(self) -> None:
        """See serving.server.Front. The application asks the same Lifecycle, so there is nothing to tell it."""

    async def drain(self) -> None:
        """See serving.server.Front, and opened()."""

    async def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere."""
        protocol = functools.partial(
            self.config.http_protocol_class,  # type: ignore[arg-type]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)  # type: ignore[arg-type]

    def end(self) -> None:
        """Stops accepting and finishes what is in flight."""
        self.should_exit = True

    def abort(self) -> None:
        """Stops without waiting for what is in flight."""
        self.should_exit = self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def raise_descriptor_limit() -> None:
    """As many open files as this process may have: a connection is one, and every mapped buffer."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def new_loop() -> asyncio.AbstractEventLoop:
    """The event loop that every port runs on."""
    import uvloop

    return uvloop.new_event_loop()
