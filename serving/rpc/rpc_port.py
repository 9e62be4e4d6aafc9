"""Run the gRPC port: a grpc.aio server on the HTTP port's event loop, so that one Dispatcher submits for both.

HTTP/2, TLS (at least 1.2, ALPN h2) and its sockets are handled by gRPC on its own threads, without the GIL; only whole
messages reach the loop. Each handshake has the newest certificates.

Several processes may share the port: each listens by SO_REUSEPORT, and the kernel distributes connections. Their parent
reserves the port by a socket that is bound but never listens. A process that dies takes only its own connections with
it.

Bounds: message size (max_body_bytes), metadata, streams of a connection, connections (serving.front.resource_limits),
and the time a connection may take to begin, be idle (less when connections run short: serving.rpc.idle_reaper), or
leave a ping unanswered. A client that pings more often than KEEPALIVE_MIN_MS gets GOAWAY and connects anew. The total
size of all messages is not bounded: gRPC reads one for each call.

Rejected: handing over accepted connections as the HTTP port does (gRPC takes no descriptors from Python); an event loop
and thread of its own (measured in docs/reference/grpc.md).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.front.exchange import ServingContext
from freshet_serving.serving.front.model_control import ControlHandler, ModelControlAuthorizer
from freshet_serving.serving.front.resource_limits import ConnectionLimits
from freshet_serving.serving.front.shared_memory import Regions
from freshet_serving.serving.rpc.handlers import HandlerFactory
from freshet_serving.serving.rpc.idle_reaper import ActiveCalls, IdleReaper
from freshet_serving.serving.rpc.inference import Inference
from freshet_serving.serving.rpc.port_sockets import send_goaway_to_all
from freshet_serving.serving.rpc.standard_services import Health, Reflection
from freshet_serving.serving.rpc.tfs import TensorFlowServing
from freshet_serving.serving.telemetry.logs import AccessLog

if TYPE_CHECKING:
    from freshet_serving.serving.access.certificates import Certificates, CertificateSource

# Allowance of a message besides its tensors, which the limit of bodies covers.
MARGIN_NBYTES = 64 << 10
KEEPALIVE_MIN_MS = 10_000
MAX_METADATA_NBYTES = 64 << 10
MAX_STREAMS = 1024
# The time that a client over HTTP gets when connections run short (serving.http.port).
HANDSHAKE_MS = 3_000
# A ping detects a peer that has disappeared silently.
PING_MS, PONG_MS = 120_000, 20_000


class RpcPort:
    def __init__(
        self,
        serving_context: ServingContext,
        *,
        address: str,
        control: ControlHandler,
        regions: Regions | None = None,
        access: AccessLog | None = None,
        guard: AccessGuard | None = None,
        tls: CertificateSource | None = None,
    ) -> None:
        """Configure the port.

        Args:
            address: host:port, reserved.
            control: Performs control operations that clients may request of the whole server.
            regions: Shared memory; None if it is not served.
            access: The access log; None for no log.
            guard: Checks every call; None for no check.
            tls: Source of certificates; None to speak without TLS.
        """
        lifecycle, options = serving_context.lifecycle, serving_context.options
        self._serving_context, self._tls, most = serving_context, tls, ConnectionLimits.here().rpc
        self._address, self._shutdown_timeout_s = address, options.shutdown_timeout_s
        self._options = [
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", options.max_body_bytes + MARGIN_NBYTES),
            ("grpc.max_send_message_length", -1),
            # Clients may check now and then whether the connection is alive, even while no call is in flight.
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MIN_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.keepalive_timeout_ms", PONG_MS),
            ("grpc.max_metadata_size", MAX_METADATA_NBYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_NBYTES),
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            ("grpc.max_connection_idle_ms", round(options.idle_timeout_s * 1e3)),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_allowed_incoming_connections", most),
        ]
        answering = ActiveCalls()
        self._idle_reaper = IdleReaper(answering, most, tls is not None)
        self._keeping: asyncio.Task[None] | None = None
        handlers_of = partial(HandlerFactory, serving_context, answering=answering, access=access, guard=guard)
        authorizer = ModelControlAuthorizer(options.model_control, "" if guard is not None else options.admin_token)
        services = {
            **TensorFlowServing(lifecycle, handlers_of, control, authorizer).services,
            **Inference(lifecycle, handlers_of, control, authorizer, regions, options.version).services,
        }
        self._health = Health(lifecycle, handlers_of, services)
        services |= self._health.services
        services |= Reflection(handlers_of, services).services
        self.services = services
        self._server: Any = None
        self._port = 0

    async def start(self) -> None:
        """Listen from now on; raise BadInput if the address is in use or unusable."""
        server = grpc.aio.server(options=self._options)
        handlers = [grpc.method_handlers_generic_handler(name, methods) for name, methods in self.services.items()]
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            if self._tls is None:
                bound = server.add_insecure_port(self._address)
            else:
                bound = server.add_secure_port(self._address, _credentials(self._tls))
        except RuntimeError:
            bound = 0
        if not bound:
            raise BadInput(f"{self._address}: cannot listen")
        await server.start()
        self._server, self._port = server, bound
        self._keeping = asyncio.get_running_loop().create_task(self._idle_reaper.keep(bound))

    async def stop(self, hurry: bool = False) -> None:
        """Stop accepting; return when the calls in flight are answered or out of time.

        With `hurry` it stops at once, also while an earlier call waits.
        """
        if self._server is None:
            return
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (0.0 if hurry else self._shutdown_timeout_s)
        self._health.end()
        if self._keeping is not None:
            self._keeping.cancel()
        # Our frame cannot go between TLS records: those clients learn of the end from gRPC's own stop.
        if not hurry and self._tls is None:
            # Half of the time is reserved for calls that have begun.
            told_s = (loop.time() + end_s) / 2
            await send_goaway_to_all(self._port, lambda: self._serving_context.begun, told_s)
        await self._server.stop(max(0.0, end_s - loop.time()))


def _credentials(tls: CertificateSource) -> grpc.ServerCredentials:
    current = tls()

    def newest() -> Any:
        """Return a new configuration, or None if unchanged; gRPC calls this for each handshake on its own thread."""
        nonlocal current
        certificates = tls()
        if certificates is current:
            return None
        current = certificates
        return _configuration(certificates)

    return grpc.dynamic_ssl_server_credentials(_configuration(current), newest, bool(current.client_ca))


def _configuration(certificates: Certificates) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.chain)], certificates.client_ca or None
    )
