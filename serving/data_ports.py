"""Start and stop the data ports of one process, HTTP and gRPC, together on one event loop."""

from __future__ import annotations

import asyncio
import functools
import math
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.front.exchange import ServingContext
from freshet_serving.serving.front.model_control import ControlHandler
from freshet_serving.serving.front.shared_memory import region_opener
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.http.app import DataApp
from freshet_serving.serving.http.connection import HttpConnection
from freshet_serving.serving.http.guarded_protocol import GuardedProtocol
from freshet_serving.serving.http.port import HttpPort
from freshet_serving.serving.http.protocol import PredictProtocol
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.rpc.rpc_port import RpcPort
from freshet_serving.serving.telemetry.metrics import PortMetrics
from freshet_serving.serving.telemetry.observers import Observers

if TYPE_CHECKING:
    from freshet_serving.processor.sessions.predictor import Predictor
    from freshet_serving.serving.access.certificates import CertificateSource


class DataPorts:
    """The data ports of one process; a serving.server.Frontend."""

    def __init__(
        self,
        lifecycle: Availability[Predictor],
        metrics: PortMetrics,
        options: FrontendOptions,
        watching: Observers,
        *,
        http: socket.socket | None,
        grpc: str,
        control: ControlHandler,
        guard: AccessGuard | None = None,
        tls: CertificateSource | None = None,
        protocol: Callable[..., PredictProtocol] | None = None,
        protocol_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the ports.

        Args:
            http: A listening socket; None if connections are handed over by adopt().
            grpc: A reserved address.
            control: Handles requests about the whole server, such as loading models.
            protocol: Creates the protocol of an HTTP connection; None for the default.
            protocol_options: Extra arguments for it.
        """
        serving_context = ServingContext(lifecycle, metrics, options, watching.tracer, guard)
        self.dispatcher = serving_context.dispatcher
        regions = region_opener()(options.max_body_bytes) if options.shared_memory == "on" else None
        app = DataApp(
            serving_context, control=control, regions=regions, access=watching.access, guarded=guard is not None
        )
        protocol_type = protocol or (PredictProtocol if guard is None else GuardedProtocol)
        access_options = {} if guard is None else {"guard": guard}
        connection = functools.partial(
            protocol_type, data_app=app, idle_s=options.idle_timeout_s, **access_options, **(protocol_options or {})
        )
        self.http = HttpPort(app, http, options.shutdown_timeout_s, connection, tls=tls)
        self._rpc = RpcPort(
            serving_context,
            address=grpc,
            control=control,
            regions=regions,
            access=watching.access,
            guard=guard,
            tls=tls,
        )
        self._stopping: list[asyncio.Task[None]] = []

    async def listen(self) -> None:
        await self.start_grpc()
        await self.serve_http()

    async def start_grpc(self) -> None:
        """Start serving gRPC. Raises BadInput if the address cannot be bound."""
        await self._rpc.start()

    async def serve_http(self) -> None:
        """Serve HTTP connections until end() is called and requests in flight on both ports are answered."""
        await self.http.listen()
        await asyncio.gather(*self._stopping)
        self.dispatcher.close()

    def opened(self) -> None:
        """Do nothing: the applications read the same Lifecycle."""

    async def drain(self) -> None:
        """Do nothing, like opened()."""

    def drain_some(self, count: int) -> None:
        """Drain HTTP connections until `count` of them are draining; their clients connect again."""
        staying = self._staying()
        self._leave(staying[: max(0, count - len(self.http.server_state.connections) + len(staying))])

    def drain_share(self, share: float) -> None:
        """Drain a share of the HTTP connections; gRPC can only announce the end of a connection."""
        staying = self._staying()
        self._leave(staying[: math.ceil(share * len(staying))])

    def end(self) -> None:
        self._stop(hurry=False)
        self.http.end()

    def abort(self) -> None:
        self._stop(hurry=True)
        self.http.abort()

    def _staying(self) -> list[HttpConnection]:
        connections = cast(set[HttpConnection], self.http.server_state.connections)
        return [connection for connection in connections if not connection.draining]

    def _leave(self, connections: list[HttpConnection]) -> None:
        for connection in connections:
            connection.draining = True

    def _stop(self, hurry: bool) -> None:
        self._stopping.append(asyncio.get_running_loop().create_task(self._rpc.stop(hurry)))
