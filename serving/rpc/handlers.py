"""What the handlers of the gRPC port share: messages in and out, errors as statuses, deadlines, metrics.

Handlers get and give bytes; the messages of the two hot methods are read by their codecs, others by the runtime. A
status has the code that means what HTTP's does, and its message; so do metrics, access log and traces, which know
HTTP's codes alone. A prediction's trailing metadata names what answered it, as HTTP's headers do; a request that was
shed is told when to come back; x-request-id comes back with every reply.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from processor.engine import PredictReply
from processor.errors import BadInput, FreshetError, NotReady, Overloaded
from processor.generation import Generation
from serving.codecs.messages import message
from serving.codecs.wire import Headers
from serving.lifecycle import Lifecycle
from serving.request_headers import TIMED_EVERY, request_id_of
from serving.telemetry.logs import AccessLog
from serving.telemetry.metrics import Metrics
from serving.telemetry.trail import Trail

log = logging.getLogger("freshet.grpc")

Metadata = tuple[tuple[str, str], ...]
Answer = tuple[bytes, Metadata]
"""A reply, and its trailing metadata."""

OK, INTERNAL = 200, 500


@lru_cache(maxsize=1024)
def generation_metadata(generation: Generation) -> Metadata:
    """x-model-version and x-model-generation."""
    return ("x-model-version", str(generation.version)), ("x-model-generation", str(generation))


def headers_of(context: Any) -> Headers:
    """What the metadata of a call say of it (serving.request_headers)."""
    return {
        name.encode(): value.encode() if isinstance(value, str) else bytes(value)
        for name, value in context.invocation_metadata() or ()
    }


def echo_of(headers: Headers) -> Metadata:
    """x-request-id, as it goes back; nothing where none came."""
    request_id = request_id_of(headers)
    # Metadata hold nothing else.
    return (("x-request-id", request_id),) if request_id.isascii() and request_id.isprintable() and request_id else ()


def timeout_of(context: Any, *others_s: float | None) -> float | None:
    """Seconds that a request may still take: the shortest of its deadline and of others."""
    given = [s for s in (context.time_remaining(), *others_s) if s is not None]
    return min(given) if given else None


def parse(kind: str, data: bytes) -> Any:
    """A message; raises BadInput."""
    try:
        return message(kind).FromString(data)
    except DecodeError:
        raise BadInput(f"request: {kind} wanted") from None


class Call:
    """One call while it is answered. headers: see headers_of(). timed: whether it is one of those whose reading and
    printing are noted. trace: None for most. model, encoding_s: once a prediction has come so far."""

    __slots__ = ("began_s", "context", "encoding_s", "headers", "model", "protocol", "timed", "trace")

    def __init__(self, context: Any, protocol: str, timed: bool, trail: Trail | None) -> None:
        self.context, self.protocol, self.timed = context, protocol, timed
        self.began_s = time.perf_counter()
        self.headers = headers_of(context)
        self.trace = trail.begin(self.headers, protocol) if trail is not None else None
        self.model = ""
        self.encoding_s = 0.0


class Calls:
    """Turns functions into handlers. protocol: a service's name in metrics. access, trail: where calls are logged and
    predictions traced; None for nowhere."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        metrics: Metrics,
        protocol: str,
        access: AccessLog | None = None,
        trail: Trail | None = None,
    ) -> None:
        self._lifecycle, self._metrics, self._protocol = lifecycle, metrics, protocol
        self._access, self._trail = access, trail
        self._turn = 0

    def raw(self, name: str, function: Callable[[bytes, Call], Awaitable[Answer]]) -> grpc.RpcMethodHandler:
        """A handler of predictions: a function that takes and gives bytes. name: of the method, in the access log."""
        return self._handler(name, function, self.begin)

    def _handler(
        self, name: str, function: Callable[[bytes, Call], Awaitable[Answer]], begin: Callable[[Any], Call]
    ) -> grpc.RpcMethodHandler:
        async def handle(data: bytes, context: Any) -> bytes:
            call = begin(context)
            try:
                reply, metadata = await function(data, call)
            except FreshetError as error:
                told = error
            except asyncio.CancelledError:
                if not self._lifecycle.draining:
                    raise
                told = NotReady("server: draining")
            except Exception:
                fields = {"request_id": request_id_of(call.headers)}
                log.exception("a request failed for a reason that is not its own", extra={"fields": fields})
                told = FreshetError("internal error")
            else:
                self.end(call, OK)
                self._observe(call, name, OK, len(reply))
                metadata += echo_of(call.headers)
                if metadata:
                    context.set_trailing_metadata(metadata)
                return reply
            self.end(call, told.http_status)
            self._observe(call, name, told.http_status, 0)
            await context.abort(code_of(told), str(told), _retry(told) + echo_of(call.headers))
            raise AssertionError("abort() raises")

        return grpc.unary_unary_rpc_method_handler(handle)

    def stream(
        self, name: str, function: Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
    ) -> grpc.RpcMethodHandler:
        """A handler of a function that takes a stream of bytes and gives one."""

        async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for reply in self._streamed(name, function(requests, context), context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(handle)

    def server_stream(self, name: str, function: Callable[[bytes, Any], AsyncIterator[bytes]]) -> grpc.RpcMethodHandler:
        """A handler of a function that takes bytes and gives a stream of them."""

        async def handle(data: bytes, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._streamed(name, function(data, context), context):
                yield reply

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _streamed(self, name: str, replies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        call, code, nbytes = self._plain(context), OK, 0
        try:
            async for reply in replies:
                nbytes += len(reply)
                yield reply
        except FreshetError as error:
            code = error.http_status
            await context.abort(code_of(error), str(error), echo_of(call.headers))
        except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception:
            log.exception("a stream failed for a reason that is not its own")
            code = INTERNAL
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            self._observe(call, name, code, nbytes)

    def unary(self, name: str, kind: str, function: Callable[[Any, Any], Awaitable[Any]]) -> grpc.RpcMethodHandler:
        """A handler of a function that takes a message of this kind and gives one."""

        async def answer(data: bytes, call: Call) -> Answer:
            reply = await function(parse(kind, data), call.context)
            return reply.SerializeToString(), ()

        return self._handler(name, answer, self._plain)

    def _plain(self, context: Any) -> Call:
        """A call that is no prediction: neither timed nor traced."""
        return Call(context, self._protocol, False, None)

    def begin(self, context: Any) -> Call:
        """A prediction that has come; or one of a stream, for each of them is timed and traced by itself."""
        # How long it takes to read and to print is noted of one call in some, as over HTTP.
        self._turn = (self._turn + 1) % TIMED_EVERY
        return Call(context, self._protocol, not self._turn, self._trail)

    def end(self, call: Call, code: int) -> None:
        """It has been answered. code: as HTTP's."""
        if call.timed and call.encoding_s:
            self._metrics.stage(call.protocol, "encode", time.perf_counter() - call.encoding_s)
        if call.trace is not None and self._trail is not None:
            self._trail.end(call.trace, code)

    def _observe(self, call: Call, name: str, code: int, nbytes: int) -> None:
        seconds = time.perf_counter() - call.began_s
        self._metrics.observe(self._protocol, code, seconds)
        if self._access is not None:
            target = f"{call.model}:{name}" if call.model else name
            self._access(self._protocol, target, code, seconds, request_id_of(call.headers), nbytes)


def code_of(error: FreshetError) -> grpc.StatusCode:
    return getattr(grpc.StatusCode, error.grpc_code)


def _retry(error: FreshetError) -> Metadata:
    if not isinstance(error, Overloaded):
        return ()
    return (
        ("grpc-retry-pushback-ms", str(max(1, math.ceil(error.retry_after_s * 1e3)))),
        ("retry-after", str(max(1, math.ceil(error.retry_after_s)))),
    )


def reply_future() -> tuple[asyncio.Future[PredictReply | FreshetError], Callable[[PredictReply | FreshetError], None]]:
    """A future on the running loop, and what sets it; a caller that has gone is no error."""
    future: asyncio.Future[PredictReply | FreshetError] = asyncio.get_running_loop().create_future()

    def finish(result: PredictReply | FreshetError) -> None:
        if not future.done():
            future.set_result(result)

    return future, finish


Handlers = dict[str, grpc.RpcMethodHandler]
