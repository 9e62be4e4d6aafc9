"""Serve grpc.health.v1.Health: readiness of the server, as a whole and by service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from freshet_serving.processor.errors import NotFound
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.rpc.handlers import HandlerFactory, Handlers, parse

PACKAGE = "grpc.health.v1."
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
LOOK_S = 0.1


class Health:
    """The service grpc.health.v1.Health.

    Args:
        lifecycle: Says whether the server is ready.
        handlers_of: Makes a protocol's handlers.
        names: Names of the services that it answers for, besides "" for all.
    """

    def __init__(
        self, lifecycle: Availability[object], handlers_of: Callable[[str], HandlerFactory], names: Iterable[str]
    ) -> None:
        self._lifecycle = lifecycle
        self._names = frozenset(["", *names])
        self._ended = False
        calls = handlers_of("grpc")
        self.services: dict[str, Handlers] = {
            f"{PACKAGE}Health": {
                "Check": calls.unary("Check", f"{PACKAGE}HealthCheckRequest", self._check),
                "Watch": calls.server_stream("Watch", self._watch),
            }
        }

    def end(self) -> None:
        """End every watch after it has sent the newest status: the end of a port waits for all calls."""
        self._ended = True

    async def _check(self, request: Any, context: Any) -> Any:
        if request.service not in self._names:
            raise NotFound("service: is not a service of this server")
        return message(f"{PACKAGE}HealthCheckResponse")(status=self._status(request.service))

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """Send the status now, and again after each change."""
        name, sent = parse(f"{PACKAGE}HealthCheckRequest", data).service, None
        while not (self._ended and sent == self._status(name)):
            status = self._status(name)
            if status != sent:
                sent = status
                yield message(f"{PACKAGE}HealthCheckResponse")(status=status).SerializeToString()
            await asyncio.sleep(LOOK_S)

    def _status(self, name: str) -> int:
        if name not in self._names:
            return SERVICE_UNKNOWN
        return SERVING if self._lifecycle.ready else NOT_SERVING
