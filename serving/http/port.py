"""Run one listening port, or only its connections: a uvicorn server whose owner starts and ends it.

A port has a limit of connections (serving.front.resource_limits). At the limit, or while the process has no free
descriptor, new connections wait in the listener's queue; to make room, connections that have waited PRESSED_S for a
request or the rest of one are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.front.backlog import HANDSHAKE_S, refuse_new_connections, waiting
from freshet_serving.serving.front.resource_limits import ConnectionLimits
from freshet_serving.serving.http.connection import HttpConnection
from freshet_serving.serving.http.connection_draining import LOOK_S, drain_connections

if TYPE_CHECKING:
    from freshet_serving.serving.access.certificates import CertificateSource
    from freshet_serving.serving.http.tls_transport import Handshakes

log = logging.getLogger("freshet.http")

BACKLOG = 2048
# The event loop, the sessions and the writer pass the GIL to each other all the time; with Python's 5 ms a thread that
# needs it only for microseconds waits behind one that does not. Measured under locust at saturation, a delta a second,
# alternating runs: 1.17 to 1.25 times the requests, p99 0.7 to 0.8 of it, freshness 0.75; no better at 0.1 ms.
SWITCH_INTERVAL_S = 0.0005
ACCEPTS_A_TURN = 64
# Interval between checks for room.
RETRY_S = 0.1
# Interval between checks for connections that wait for their clients.
ROOM_S = 1.0
PRESSED_S = 3.0
ANY_IPV4, ANY_IPV6 = "0.0.0.0", "::"


class HttpPort(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner."""

    def __init__(
        self,
        app: Callable[..., Any],
        listener: socket.socket | None,
        shutdown_timeout_s: float,
        http: Callable[..., HttpConnection],
        most: int | None = None,
        tls: CertificateSource | None = None,
    ) -> None:
        """Configure the port.

        Args:
            listener: Bound and listening; None if connections come by adopt().
            shutdown_timeout_s: Time for requests in flight at the end.
            http: Makes connections.
            most: Limit of connections; None for the limit of an HTTP port of this process.
            tls: Source of certificates; None to speak without TLS.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=http,  # type: ignore[arg-type]  # Not one of uvicorn's own.
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
            )
        )
        self._listener, self._shutdown_timeout_s = listener, shutdown_timeout_s
        self._most = ConnectionLimits.here().http if most is None else most
        self._handshakes: Handshakes | None = None
        if tls is not None:
            from freshet_serving.serving.http.tls_transport import Handshakes

            self._handshakes = Handshakes(tls)
        self._adopting: set[asyncio.Task[None]] = set()
        self._pressed = self._starved = False
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def listen(self) -> None:
        """Serve until end() is called, then close the listener."""
        await self.serve([])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start uvicorn without a listener, because it would accept without limit, and accept connections here."""
        await super().startup(sockets)
        if self._listener is not None:
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the listener (serving.front.backlog), then the connections (serving.http.connection_draining)."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            refuse_new_connections(self._listener)
            await self._adopt_rest(self._listener)
            self._listener.close()
        self.end_handshakes()
        await asyncio.gather(*self._adopting, return_exceptions=True)
        if self._handshakes is not None:
            self._handshakes.close()
        await drain_connections(self.server_state, self._shutdown_timeout_s, lambda: self.force_exit)

    async def _adopt_rest(self, listener: socket.socket) -> None:
        """Serve the connections that wait at a listener that ends, and those whose TCP handshake completes soon."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + HANDSHAKE_S
        while not self.force_exit:
            ends = loop.time() >= end_s
            for connection in waiting(listener):
                self._adopt_soon(connection)
            if ends:
                return
            await asyncio.sleep(LOOK_S)

    async def adopt(self, connection: socket.socket) -> None:
        """Serve an accepted connection; raise OSError if it has gone."""
        if len(self.server_state.connections) + 1 >= self._most:
            self._make_room()
        protocol = functools.partial(  # type: ignore[call-arg]  # uvicorn declares no more than asyncio.Protocol.
            self.config.http_protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        if self._handshakes is None:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        else:
            await self._handshakes.accept(protocol, connection)

    def end_handshakes(self) -> None:
        """Let no client hold up the end by a TLS handshake that it does not finish."""
        if self._handshakes is not None:
            self._handshakes.end()

    def end(self) -> None:
        self.should_exit = True

    def abort(self) -> None:
        self.should_exit = self.force_exit = True
        if self._handshakes is not None:
            self._handshakes.abort()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _accept(self) -> None:
        assert self._listener is not None, "it is readable"
        for _ in range(ACCEPTS_A_TURN):
            if len(self.server_state.connections) + len(self._adopting) >= self._most:
                # Connections in one burst each found room when they were checked.
                self._make_room()
                self._pause()
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if not self._starved:
                    log.error("cannot accept connections now: %s", error.strerror)
                self._starved = True
                self._pause()
                return
            self._starved = False
            self._adopt_soon(connection)

    def _adopt_soon(self, connection: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._take(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _take(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self.adopt(connection)
        except OSError:
            connection.close()

    def _pause(self) -> None:
        """Leave new connections in the listener's queue for a moment."""
        assert self._listener is not None, "it was readable"
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        loop.call_later(RETRY_S, self._resume)

    def _resume(self) -> None:
        if self._listener is not None and not self.should_exit:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _make_room(self) -> None:
        """End connections that wait for their clients, now and as long as there is no room."""
        if self._pressed or self.should_exit:
            return
        for connection in list(self._connections):
            connection.hurry(PRESSED_S)
        self._pressed = len(self._connections) + 1 >= self._most
        if self._pressed:
            asyncio.get_running_loop().call_later(ROOM_S, self._look_again)

    def _look_again(self) -> None:
        self._pressed = False
        self._make_room()

    @property
    def _connections(self) -> set[HttpConnection]:
        return cast(set[HttpConnection], self.server_state.connections)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket that does not block: `::` is every address of both families, `0.0.0.0` of IPv4.

    Raises BadInput if the address is in use or unusable, as reserve() does.
    """
    try:
        family, address = _resolve(host, port)
        listener = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=_is_dual(address))
    except OSError as error:
        raise BadInput(f"{host}:{port}: cannot listen on this address: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def reserve(host: str, port: int) -> tuple[contextlib.ExitStack, str]:
    """Reserve a port, or a free one for 0, on listen()'s addresses, for processes that listen by SO_REUSEPORT.

    Returns:
        What keeps the port until it is closed, and the address in gRPC's notation.
    """
    with contextlib.ExitStack() as sockets:
        try:
            family, address = _resolve(host, port)
            if port:
                # SO_REUSEPORT would share it with another server of the same user; a plain listener fails instead.
                socket.create_server(address, family=family, dualstack_ipv6=_is_dual(address)).close()
            reserved = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not _is_dual(address))
            reserved.bind(address)
        except OSError as error:
            raise BadInput(f"{host}:{port}: cannot listen: {error.strerror or error}") from None
        name, number = reserved.getsockname()[:2]
        if name == ANY_IPV4:
            # gRPC takes 0.0.0.0 for both families; where the port is taken on IPv6 it falls back to IPv4.
            with contextlib.suppress(OSError):
                ipv6 = sockets.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
                ipv6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                ipv6.bind((ANY_IPV6, number))
        return sockets.pop_all(), f"[{name}]:{number}" if ":" in name else f"{name}:{number}"


def _resolve(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return addresses[0][0], addresses[0][4]


def _is_dual(address: tuple[Any, ...]) -> bool:
    return address[0] == ANY_IPV6 and socket.has_dualstack_ipv6()


def new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()
