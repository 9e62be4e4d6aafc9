"""What the handlers of the gRPC port share: messages in and out, errors as statuses, deadlines, metrics.

Handlers get and give bytes; the messages of the two hot methods are read by their codecs, others by the runtime. A
status has the code that means what HTTP's does, and its message. A prediction's trailing metadata names what answered
it, as HTTP's headers do; a request that was shed is told when to come back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any
from zlib import crc32

import grpc
from google.protobuf.message import DecodeError

from processor.engine import PredictReply
from processor.errors import BadInput, FreshetError, NotReady, Overloaded
from processor.generation import Generation
from serving.lifecycle import Lifecycle
from serving.metrics import Metrics
from serving.rpc.messages import message

log = logging.getLogger("freshet.grpc")

Metadata = tuple[tuple[str, str], ...]
Answer = tuple[bytes, Metadata]
"""A reply, and its trailing metadata."""

OK, INTERNAL = 200, 500


@lru_cache(maxsize=1024)
def generation_metadata(generation: Generation) -> Metadata:
    """x-model-version and x-model-generation."""
    return ("x-model-version", str(generation.version)), ("x-model-generation", str(generation))


def caller_of(context: Any) -> int | None:
    """x-caller-id as a number, the same as over HTTP, or None."""
    for name, value in context.invocation_metadata() or ():
        if name == "x-caller-id":
            return crc32(value.encode() if isinstance(value, str) else value)
    return None


def authorization_of(context: Any) -> bytes | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value.encode() if isinstance(value, str) else bytes(value)
    return None


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


class Calls:
    """Turns functions into handlers. protocol: a service's name in metrics."""

    def __init__(self, lifecycle: Lifecycle, metrics: Metrics, protocol: str) -> None:
        self._lifecycle, self._metrics, self._protocol = lifecycle, metrics, protocol

    def raw(self, function: Callable[[bytes, Any], Awaitable[Answer]]) -> grpc.RpcMethodHandler:
        """A handler of a function that takes and gives bytes."""

        async def handle(data: bytes, context: Any) -> bytes:
            started_s = time.perf_counter()
            try:
                reply, metadata = await function(data, context)
            except FreshetError as error:
                told = error
            except asyncio.CancelledError:
                if not self._lifecycle.draining:
                    raise
                told = NotReady("server: draining")
            except Exception:
                log.exception("a request failed for a reason that is not its own")
                told = FreshetError("internal error")
            else:
                self._metrics.observe(self._protocol, OK, time.perf_counter() - started_s)
                if metadata:
                    context.set_trailing_metadata(metadata)
                return reply
            self._metrics.observe(self._protocol, told.http_status, time.perf_counter() - started_s)
            await context.abort(code_of(told), str(told), _retry(told))
            raise AssertionError("abort() raises")

        return grpc.unary_unary_rpc_method_handler(handle)

    def stream(self, function: Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]) -> grpc.RpcMethodHandler:
        """A handler of a function that takes a stream of bytes and gives one."""

        async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for reply in self._streamed(function(requests, context), context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(handle)

    def server_stream(self, function: Callable[[bytes, Any], AsyncIterator[bytes]]) -> grpc.RpcMethodHandler:
        """A handler of a function that takes bytes and gives a stream of them."""

        async def handle(data: bytes, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._streamed(function(data, context), context):
                yield reply

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _streamed(self, replies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        started_s, code = time.perf_counter(), OK
        try:
            async for reply in replies:
                yield reply
        except FreshetError as error:
            code = error.http_status
            await context.abort(code_of(error), str(error))
        except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception:
            log.exception("a stream failed for a reason that is not its own")
            code = INTERNAL
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            self._metrics.observe(self._protocol, code, time.perf_counter() - started_s)

    def unary(self, kind: str, function: Callable[[Any, Any], Awaitable[Any]]) -> grpc.RpcMethodHandler:
        """A handler of a function that takes a message of this kind and gives one."""

        async def answer(data: bytes, context: Any) -> Answer:
            reply = await function(parse(kind, data), context)
            return reply.SerializeToString(), ()

        return self.raw(answer)


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
