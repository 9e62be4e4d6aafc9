"""Serve gRPC's own services: grpc.health.v1.Health, and grpc.reflection for grpcurl and similar tools.

Health says whether the server is ready, as a whole and by service. The two versions of reflection differ only in name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from freshet_serving.processor.errors import NotFound
from freshet_serving.serving.codecs.messages import POOL, message
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.rpc.handlers import HandlerFactory, Handlers, parse

PACKAGE = "grpc.health.v1."
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
LOOK_S = 0.1
VERSIONS = ("v1", "v1alpha")
NOT_FOUND, UNIMPLEMENTED = 5, 12


class Health:
    """The service grpc.health.v1.Health, for the services of these names and "" for all."""

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


class Reflection:
    """The reflection services, which list the services of these names and themselves."""

    def __init__(self, handlers_of: Callable[[str], HandlerFactory], names: Iterable[str]) -> None:
        services = [f"grpc.reflection.{version}.ServerReflection" for version in VERSIONS]
        self._names = sorted([*names, *services])
        calls = handlers_of("grpc")
        self.services: dict[str, Handlers] = {
            name: {"ServerReflectionInfo": calls.stream("ServerReflectionInfo", self._version(name.rpartition(".")[0]))}
            for name in services
        }

    def _version(self, package: str) -> Any:
        async def info(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for data in requests:
                request = parse(f"{package}.ServerReflectionRequest", data)
                reply = message(f"{package}.ServerReflectionResponse")(
                    valid_host=request.host, original_request=request
                )
                self._answer(request, reply)
                yield reply.SerializeToString()

        return info

    def _answer(self, request: Any, reply: Any) -> None:
        which = request.WhichOneof("message_request")
        if which == "list_services":
            for name in self._names:
                reply.list_services_response.service.add(name=name)
            return
        if which not in ("file_by_filename", "file_containing_symbol"):
            reply.error_response.error_code, reply.error_response.error_message = UNIMPLEMENTED, "no extensions"
            return
        asked = getattr(request, which)
        find = POOL.FindFileByName if which == "file_by_filename" else POOL.FindFileContainingSymbol
        try:
            file = find(asked)
        except KeyError:
            reply.error_response.error_code, reply.error_response.error_message = NOT_FOUND, "name: does not exist"
            return
        reply.file_descriptor_response.file_descriptor_proto.extend(_with_imports(file))


def _with_imports(file: Any) -> list[bytes]:
    files = {file.name: file.serialized_pb}
    for imported in file.dependencies:
        for each in [imported, *imported.dependencies]:
            files.setdefault(each.name, each.serialized_pb)
    return list(files.values())
