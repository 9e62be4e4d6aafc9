"""Serve inference.GRPCInferenceService: KServe v2 and the served part of Triton's extensions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import ParseDict

from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.errors import BadInput, FreshetError, NotFound, NotReady
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.serving.codecs import kserve_rpc
from freshet_serving.serving.codecs.messages import POOL, message
from freshet_serving.serving.codecs.templates import Templates
from freshet_serving.serving.front import catalog, queries
from freshet_serving.serving.front.exchange import OK, DecodedRequest
from freshet_serving.serving.front.model_control import ControlHandler, ModelControlAuthorizer
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.front.shared_memory import Regions
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.rpc.handlers import (
    Answer,
    HandlerFactory,
    Handlers,
    RpcExchange,
    code_of,
    echo_of,
    generation_metadata,
    headers_of,
)

if TYPE_CHECKING:
    from freshet_serving.processor.sessions.predictor import Predictor

PACKAGE = "inference."
SERVICE = f"{PACKAGE}GRPCInferenceService"
# With this in a stream's metadata an error ends the stream with its status instead of being sent as a reply.
STATUS_ERRORS = b"triton_grpc_error"
# Requests of one stream that are computed at once; replies keep the order of the requests.
MAX_IN_FLIGHT = 64


_CUDA = "CUDA shared memory is not supported; use system shared memory, with --shared-memory on"
_OFF = "shared memory is disabled; --shared-memory on enables it"
UNSERVED = {
    "CudaSharedMemoryStatus": _CUDA,
    "CudaSharedMemoryRegister": _CUDA,
    "CudaSharedMemoryUnregister": _CUDA,
    "TraceSetting": "trace settings are not supported; calls with a traceparent are traced",
    "LogSettings": "log settings cannot be changed over this port; set them with the option log_level",
}
MEMORY_OFF = {f"SystemSharedMemory{act}": _OFF for act in ("Status", "Register", "Unregister")}
"""Triton's methods that are not served, with the alternative; these if shared memory is off."""


class Inference:
    def __init__(
        self,
        lifecycle: Availability[Predictor],
        handlers_of: Callable[[str], HandlerFactory],
        control: ControlHandler,
        authorizer: ModelControlAuthorizer,
        regions: Regions | None,
        version: str,
    ) -> None:
        self._lifecycle, self._control, self._authorizer = lifecycle, control, authorizer
        self._regions, self._version = regions, version
        self._templates: Templates[kserve_rpc.InferParams] = Templates()
        self._calls = calls = handlers_of("kserve_grpc")
        self._answer_in_stream = calls.guarded("ModelStreamInfer", self._answer_marked)
        unary: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._metadata,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": partial(self._change, "Load"),
            "RepositoryModelUnload": partial(self._change, "Unload"),
        }
        if regions is not None:
            unary |= {
                "SystemSharedMemoryStatus": self._shm_status,
                "SystemSharedMemoryRegister": self._shm_register,
                "SystemSharedMemoryUnregister": self._shm_unregister,
            }
        handlers: Handlers = {name: calls.unary(name, f"{PACKAGE}{name}Request", f) for name, f in unary.items()}
        unimplemented = UNSERVED if regions is not None else UNSERVED | MEMORY_OFF
        handlers |= {name: calls.unimplemented(name, why) for name, why in unimplemented.items()}
        handlers["ModelInfer"] = calls.raw("ModelInfer", self._infer)
        handlers["ModelStreamInfer"] = calls.stream("ModelStreamInfer", self._stream, each=True)
        self.services = {SERVICE: handlers}

    async def _infer(self, data: bytes, exchange: RpcExchange) -> Answer:
        reply, result, _ = await self._answer(data, exchange)
        return reply, exchange.trailing_metadata(result)

    async def _answer_marked(self, data: bytes, exchange: RpcExchange) -> tuple[bytes, Generation]:
        """Return the reply to one request of a stream, marked if it is the final one, and its generation."""
        reply, result, final = await self._answer(data, exchange)
        # A stream has one trailing metadata for all of its replies.
        reply += kserve_rpc.rows_parameters(exchange.feature_headers(result))
        return reply + kserve_rpc.IS_FINAL if final else reply, result.generation

    async def _answer(self, data: bytes, exchange: RpcExchange) -> tuple[bytes, PredictReply, bool]:
        """Return the encoded reply, the reply, and whether a stream must mark it as final."""
        open_ = partial(kserve_rpc.InferDecoder, data, self._templates, exchange.shared.options)
        infer = await exchange.opened(data, open_, self._templates)
        params = infer.params

        def read(manifest: Manifest, limits: RequestLimits) -> DecodedRequest:
            nonlocal params
            inputs, params = infer.columns(manifest, limits, self._regions)
            return inputs, params.timeout_s

        result = await exchange.predict(params, read, servable=False)
        result = exchange.declared(result, asked=[output.name for output in params.outputs])
        reply = kserve_rpc.encode(result.outputs, params, result.generation.version, self._regions)
        return reply, result, infer.params.final

    async def _answer_one(self, data: bytes, context: Any) -> tuple[bytes, Generation]:
        with self._calls.answering.one(context):
            exchange = self._calls.begin(context)
            try:
                answer = await self._answer_in_stream(data, exchange)
            except FreshetError as error:
                exchange.end(error.http_status)
                raise
            exchange.end(OK)
            return answer

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Compute the requests of a stream concurrently and yield replies in the order of the requests."""
        headers = headers_of(context)
        as_status, echo = headers.get(STATUS_ERRORS) == b"true", echo_of(headers)
        waiting: asyncio.Queue[asyncio.Task[tuple[bytes, Generation]] | None] = asyncio.Queue(MAX_IN_FLIGHT)

        async def read() -> None:
            async for data in requests:
                await waiting.put(asyncio.create_task(self._answer_one(data, context)))
            await waiting.put(None)

        reading = asyncio.create_task(read())
        try:
            while (task := await waiting.get()) is not None:
                try:
                    reply, generation = await task
                except FreshetError as error:
                    if as_status:
                        await context.abort(code_of(error), str(error), echo)
                    yield _stream_error(str(error))
                else:
                    context.set_trailing_metadata(generation_metadata(generation) + echo)
                    yield _in_stream(reply)
            await reading
        finally:
            reading.cancel()
            while not waiting.empty():
                left = waiting.get_nowait()
                if left is not None:
                    left.cancel()

    async def _live(self, request: Any, context: Any) -> Any:
        return message(f"{PACKAGE}ServerLiveResponse")(live=True)

    async def _ready(self, request: Any, context: Any) -> Any:
        return message(f"{PACKAGE}ServerReadyResponse")(ready=self._lifecycle.ready)

    async def _model_ready(self, request: Any, context: Any) -> Any:
        version = kserve_rpc.version_of(request.version)
        try:
            self._lifecycle.processor().manifest(request.name, version)
            ready = not self._lifecycle.draining
        except (NotFound, NotReady):
            ready = False
        return message(f"{PACKAGE}ModelReadyResponse")(ready=ready)

    async def _server(self, request: Any, context: Any) -> Any:
        document = catalog.server_metadata(self._version, queries.extensions(self._authorizer, self._regions))
        return message(f"{PACKAGE}ServerMetadataResponse")(**document)

    async def _metadata(self, request: Any, context: Any) -> Any:
        version = kserve_rpc.version_of(request.version)
        document, generation = queries.model_metadata(self._lifecycle.processor(), request.name, version)
        context.set_trailing_metadata(generation_metadata(generation))
        return ParseDict(document, message(f"{PACKAGE}ModelMetadataResponse")(), descriptor_pool=POOL)

    async def _config(self, request: Any, context: Any) -> Any:
        version = kserve_rpc.version_of(request.version)
        manifest, _ = self._lifecycle.processor().manifest(request.name, version)
        document = {"config": catalog.model_config(manifest, request.name)}
        return ParseDict(document, message(f"{PACKAGE}ModelConfigResponse")(), descriptor_pool=POOL)

    async def _statistics(self, request: Any, context: Any) -> Any:
        arguments = {"model": request.name, "version": kserve_rpc.version_of(request.version)}
        document = await self._act("statistics", arguments)
        return ParseDict(document, message(f"{PACKAGE}ModelStatisticsResponse")(), descriptor_pool=POOL)

    async def _index(self, request: Any, context: Any) -> Any:
        processor = self._lifecycle.processor()
        models = [(name, processor.status(name)) for name in processor.models()]
        document = {"models": catalog.repository_index(models, request.ready)}
        return ParseDict(document, message(f"{PACKAGE}RepositoryIndexResponse")(), descriptor_pool=POOL)

    async def _change(self, operation: str, request: Any, context: Any) -> Any:
        self._authorizer.authorize(headers_of(context).get(b"authorization"))
        queries.check_load(request.parameters)
        await self._act(operation.lower(), {"model": request.model_name})
        return message(f"{PACKAGE}RepositoryModel{operation}Response")()

    async def _act(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Perform a control operation in the process that owns the models, off the loop."""
        self._lifecycle.processor()
        return await in_thread(None, partial(self._control, operation, arguments))

    async def _shm_status(self, request: Any, context: Any) -> Any:
        reply = message(f"{PACKAGE}SystemSharedMemoryStatusResponse")()
        for region in self._shared_memory().status(request.name):
            ParseDict(region, reply.regions[region["name"]])
        return reply

    async def _shm_register(self, request: Any, context: Any) -> Any:
        if request.offset >= 2**63 or request.byte_size >= 2**63:
            raise BadInput(f"byte_size: expected below {2**63}, got {request.byte_size} from {request.offset}")
        self._shared_memory().register(request.name, request.key, request.offset, request.byte_size)
        return message(f"{PACKAGE}SystemSharedMemoryRegisterResponse")()

    async def _shm_unregister(self, request: Any, context: Any) -> Any:
        self._shared_memory().unregister(request.name)
        return message(f"{PACKAGE}SystemSharedMemoryUnregisterResponse")()

    def _shared_memory(self) -> Regions:
        assert self._regions is not None, "these methods exist only with it"
        return self._regions


def _in_stream(reply: bytes) -> bytes:
    nbytes, length = len(reply), bytearray(b"\x12")
    while nbytes >= 0x80:
        length.append(nbytes & 0x7F | 0x80)
        nbytes >>= 7
    length.append(nbytes)
    return bytes(length) + reply


def _stream_error(text: str) -> bytes:
    data: bytes = message(f"{PACKAGE}ModelStreamInferResponse")(error_message=text).SerializeToString()
    return data
