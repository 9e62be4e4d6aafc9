"""The data ports of one process, HTTP and gRPC, on one event loop: begun and ended together."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any

from serving.front.desk import Desk
from serving.front.model_control import Act, Gate
from serving.front.shared_memory import Regions
from serving.http.app import DataApp
from serving.http.port import Port
from serving.http.protocol import PredictProtocol
from serving.lifecycle import Lifecycle
from serving.rpc.rpc_port import RpcPort
from serving.telemetry.logs import AccessLog
from serving.telemetry.metrics import Metrics
from serving.telemetry.trail import Trail


class DataPorts:
    """See serving.server.Front."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        metrics: Metrics,
        *,
        http: Any,
        grpc: str,
        control: Act,
        gate: Gate,
        version: str,
        max_body_nbytes: int,
        default_timeout_s: float | None,
        shutdown_timeout_s: float,
        shared_memory: bool = False,
        access: AccessLog | None = None,
        trail: Trail | None = None,
        protocol: Callable[..., PredictProtocol] = PredictProtocol,
        protocol_options: Mapping[str, Any] | None = None,
    ) -> None:
        """http: a listening socket, or None where connections come by adopt(). grpc: a reserved address. protocol: of a
        connection of the HTTP port. The rest: see DataApp."""
        self.desk = Desk()
        shared = {
            "version": version,
            "max_body_nbytes": max_body_nbytes,
            "default_timeout_s": default_timeout_s,
            "desk": self.desk,
            "control": control,
            "gate": gate,
            "regions": Regions() if shared_memory else None,
            "access": access,
            "trail": trail,
        }
        app = DataApp(lifecycle, metrics, **shared)
        connection = functools.partial(protocol, data_app=app, **(protocol_options or {}))
        self.http = Port(app, http, shutdown_timeout_s, connection)
        self._rpc = RpcPort(lifecycle, metrics, address=grpc, shutdown_timeout_s=shutdown_timeout_s, **shared)
        self._stopping: list[asyncio.Task[None]] = []

    async def listen(self) -> None:
        """Serves until end() is called and what was in flight is answered."""
        await self._rpc.start()
        await self.http.listen()
        await asyncio.gather(*self._stopping)

    def opened(self) -> None:
        """The applications ask the same Lifecycle, so there is nothing to tell them."""

    async def drain(self) -> None:
        """See opened()."""

    def shed(self, count: int) -> None:
        """Has so many HTTP connections end with their next reply, which says so; their clients connect again."""
        connections = self.http.server_state.connections
        staying = [c for c in connections if isinstance(c, PredictProtocol) and not c.leaving]
        for connection in staying[:count]:
            connection.leaving = True

    def end(self) -> None:
        """Stops accepting and finishes what is in flight."""
        self._stop(hurry=False)
        self.http.end()

    def abort(self) -> None:
        """Stops without waiting for what is in flight."""
        self._stop(hurry=True)
        self.http.abort()

    def _stop(self, hurry: bool) -> None:
        self._stopping.append(asyncio.get_running_loop().create_task(self._rpc.stop(hurry)))
