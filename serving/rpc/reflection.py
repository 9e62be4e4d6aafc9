"""Serve grpc.reflection for grpcurl and similar tools, in both versions of the service, which differ only in name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from freshet_serving.serving.codecs.messages import POOL, message
from freshet_serving.serving.rpc.handlers import HandlerFactory, Handlers, parse

VERSIONS = ("v1", "v1alpha")
NOT_FOUND, UNIMPLEMENTED = 5, 12


class Reflection:
    """The reflection services.

    Args:
        handlers_of: Makes a protocol's handlers.
        names: Names of the services that it lists besides itself.
    """

    def __init__(self, handlers_of: Callable[[str], HandlerFactory], names: Iterable[str]) -> None:
        own = [f"grpc.reflection.{version}.ServerReflection" for version in VERSIONS]
        self._names = sorted([*names, *own])
        calls = handlers_of("grpc")
        self.services: dict[str, Handlers] = {
            name: {"ServerReflectionInfo": calls.stream("ServerReflectionInfo", self._version(name.rpartition(".")[0]))}
            for name in own
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
    """Return the serialized file and its imports, each once, itself first."""
    files = {file.name: file.serialized_pb}
    for imported in file.dependencies:
        for each in [imported, *imported.dependencies]:
            files.setdefault(each.name, each.serialized_pb)
    return list(files.values())
