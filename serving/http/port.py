"""One listening port, or the connections of one: a uvicorn server whose owner starts and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from processor.errors import BadInput
from serving.front.backlog import HANDSHAKE_S, refuse_newcomers, waiting
from serving.http.farewell import LOOK_S, LeavingProtocol, end_connections

BACKLOG = 2048
# The event loop, the sessions and the writer hand the GIL to each other all the time; with Python's 5 ms a thread that
# only needs it for microseconds waits behind one that does not. Measured under locust at saturation, a delta a second,
# alternating runs: 1.17 to 1.25 times the requests, p99 0.7 to 0.8 of it, freshness 0.75; no better at 0.1 ms.
SWITCH_INTERVAL_S = 0.0005
KEEP_ALIVE_S = 75


class HttpPort(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner."""

    def __init__(
        self,
        app: Callable[..., Any],
        listener: socket.socket | None,
        shutdown_timeout_s: float,
        http: object = LeavingProtocol,
    ) -> None:
        """listener: bound and listening; None where connections come by adopt(). http: makes LeavingProtocols."""
        super().__init__(
            uvicorn.Config(
                app,
                http=http,  # type: ignore[arg-type]  # A function that makes protocols does as well.
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=BACKLOG,
            )
        )
        self._listener, self._shutdown_timeout_s = listener, shutdown_timeout_s
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the listener as serving.front.backlog says and the connections as serving.http.farewell does, instead of
        as uvicorn would."""
        if self._listener is not None:
            # The loop closes the listener that it has.
            with self._listener.dup() as listener:
                refuse_newcomers(listener)
                for server in self.servers:
                    server.close()
                self._listener.close()
                await self._adopt_rest(listener)
        await end_connections(self.server_state, self._shutdown_timeout_s, lambda: self.force_exit)

    async def _adopt_rest(self, listener: socket.socket) -> None:
        """Serves what waits for a listener that ends, and what its handshakes bring."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + HANDSHAKE_S
        while not self.force_exit:
            ends = loop.time() >= end_s
            for connection in waiting(listener):
                try:
                    await self.adopt(connection)
                except OSError:
                    connection.close()
            if ends:
                return
            await asyncio.sleep(LOOK_S)

    async def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere."""
        protocol = functools.partial(  # type: ignore[call-arg]  # uvicorn declares no more than asyncio.Protocol.
            self.config.http_protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    def end(self) -> None:
        """Stops accepting and finishes what is in flight."""
        self.should_exit = True

    def abort(self) -> None:
        """Stops without waiting for what is in flight."""
        self.should_exit = self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def reserve(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that keeps the port for processes that listen by SO_REUSEPORT, and the address as gRPC takes it; raises
    BadInput when somebody has it. port: 0 takes a free one."""
    reserved: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        if port:
            # SO_REUSEPORT would share the port with another server of the same user; a plain listener shares nothing.
            socket.create_server(address, family=family).close()
        reserved = socket.socket(family, kind)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as error:
        if reserved is not None:
            with contextlib.suppress(OSError):
                reserved.close()
        raise BadInput(f"{host}:{port}: cannot listen there: {error.strerror or error}") from None
    name, number = reserved.getsockname()[:2]
    return reserved, f"[{name}]:{number}" if ":" in name else f"{name}:{number}"


def raise_descriptor_limit() -> None:
    """Raises the limit of open files as far as this process may: a connection is one, and every mapped buffer."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def new_loop() -> asyncio.AbstractEventLoop:
    """The event loop that every port runs on."""
    import uvloop

    return uvloop.new_event_loop()
