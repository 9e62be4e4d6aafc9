"""Build the handlers of the gRPC port: messages, predictions, errors as statuses, deadlines, metrics.

Handlers receive and return bytes. The codecs of the two hot methods read their own messages, the protobuf runtime all
others. An error's status has the code that corresponds to its HTTP status; metrics, access log and traces use HTTP
status codes only. The trailing metadata of a prediction names the generation that answered; a request refused by load
shedding gets a time to retry; x-request-id is returned with every reply.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady, Overloaded, TooLarge
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.message_tree import MessageTree
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.access.scopes import ADMIN_WRITE, RPC_SCOPES
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Templates
from freshet_serving.serving.codecs.wire import Headers
from freshet_serving.serving.front import queries
from freshet_serving.serving.front.exchange import MAX_AT_ONCE_NBYTES, OK, DecodedRequest, Exchange, ServingContext
from freshet_serving.serving.request_headers import MODEL_DIGEST, request_id_of
from freshet_serving.serving.rpc.idle_reaper import ActiveCalls
from freshet_serving.serving.telemetry.logs import AccessLog

log = logging.getLogger("freshet.grpc")

Metadata = tuple[tuple[str, str], ...]
T = TypeVar("T")
S = TypeVar("S")
Answer = tuple[bytes, Metadata]
"""A reply, and its trailing metadata."""

INTERNAL = 500
AUTHORIZATION = b"authorization"
# Limit of messages that are no predictions: requests by name, and a configuration of many models.
MAX_CONTROL_NBYTES = 1 << 20


@lru_cache(maxsize=1024)
def generation_metadata(generation: Generation) -> Metadata:
    return ("x-model-version", str(generation.version)), ("x-model-generation", str(generation))


def headers_of(context: Any) -> Headers:
    """Return the metadata of a call as headers (serving.request_headers).

    Of two authorizations a proxy may check the first and this server the last: joined they are no key's.
    """
    headers: dict[bytes, bytes] = {}
    for name, value in context.invocation_metadata() or ():
        key, data = name.encode(), value.encode() if isinstance(value, str) else bytes(value)
        headers[key] = b"%b, %b" % (headers[key], data) if key == AUTHORIZATION and key in headers else data
    return headers


def address_of(context: Any) -> str:
    """Return the address of a call's client, or "" without one; a peer is ipv4:10.0.0.1:4711 or ipv6:%5B::1%5D:4711."""
    kind, _, peer = context.peer().partition(":")
    host = peer.rpartition(":")[0]
    if kind == "ipv4":
        return str(host)
    return unquote(host).strip("[]") if kind == "ipv6" else ""


def echo_of(headers: Headers) -> Metadata:
    """Return x-request-id for the reply; empty if the request had none."""
    request_id = request_id_of(headers)
    # Metadata values must be printable ASCII.
    return (("x-request-id", request_id),) if request_id.isascii() and request_id.isprintable() and request_id else ()


def parse(kind: str, data: bytes, limits: RequestLimits | None = None) -> Any:
    """Parse a message of the type `kind`; with `limits` it is a prediction."""
    if limits is not None:
        _tree(kind).check_limits(data, limits)
    elif len(data) > MAX_CONTROL_NBYTES:
        raise TooLarge(f"request: expected at most {MAX_CONTROL_NBYTES} bytes of {kind}, got {len(data)}")
    try:
        return message(kind).FromString(data)
    except DecodeError:
        raise BadInput(f"request: expected {kind}") from None


@lru_cache(maxsize=8)
def _tree(kind: str) -> MessageTree:
    return MessageTree(message(kind).DESCRIPTOR)


class Unimplemented(FreshetError):
    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class RpcCall:
    """A call that is no prediction, while it is answered; `headers` are those of headers_of()."""

    __slots__ = ("began_s", "context", "headers")
    model = ""

    def __init__(self, context: Any) -> None:
        self.context, self.headers = context, headers_of(context)
        self.began_s = time.perf_counter()

    def end(self, status: int) -> None:
        """End the call; it needs no record beyond that of every call."""


class RpcExchange(Exchange):
    """The exchange of a prediction's call, or of one of a stream; `model` is "" until a replica is selected."""

    __slots__ = ("_nbytes", "_parsed", "context", "model")

    def __init__(self, shared: ServingContext, protocol: str, context: Any) -> None:
        super().__init__(shared, protocol, headers_of(context))
        self.context, self.model = context, ""
        # Size of the message, and whether it had to be parsed.
        self._nbytes, self._parsed = 0, False

    async def opened(self, data: bytes, open_: Callable[[], T], templates: Templates[Any] | None = None) -> T:
        """Return the result of open_(), which reads the message; a long one without a template on another thread."""
        self._nbytes = len(data)
        if len(data) <= MAX_AT_ONCE_NBYTES or (templates is not None and templates.find(data) is not None):
            return open_()
        self._parsed = True
        shared = self.shared
        return await shared.dispatcher.run_in_thread(shared.lifecycle.processor(), open_, len(data))

    def offload_nbytes(self, source: Callable[[Manifest, RequestLimits], DecodedRequest]) -> int:
        return self._nbytes if self._nbytes > MAX_AT_ONCE_NBYTES and (self._parsed or self.computes_inputs) else 0

    def read(self, source: Callable[[Manifest, RequestLimits], DecodedRequest], manifest: Manifest) -> DecodedRequest:
        return source(manifest, self.limits)

    def remaining_s(self, own_s: float | None, waited_s: float = 0.0) -> float | None:
        """Return the shortest of the default timeout, the request's own, and the call's deadline.

        The call's deadline continues while the request waits and is read, so only the other two are reduced.
        """
        limits_s = [s - waited_s for s in (self.shared.default_timeout_s, own_s) if s is not None]
        if (left_s := self.context.time_remaining()) is not None:
            limits_s.append(left_s)
        return min(limits_s) if limits_s else None

    async def predict(
        self, who: queries.ModelSpec, source: Callable[[Manifest, RequestLimits], DecodedRequest], servable: bool
    ) -> PredictReply:
        """Select a replica, submit the request, and return what it computes; declared() makes a reply of it."""
        self.model = self.select_replica(who, servable, self.remaining_s(None)).model
        future: asyncio.Future[PredictReply | FreshetError] = asyncio.get_running_loop().create_future()

        def done(result: PredictReply | FreshetError) -> None:
            # A cancelled call is not an error.
            if not future.done():
                future.set_result(result)

        self.submit(source, done)
        result = await future
        self.finish(result)
        if isinstance(result, FreshetError):
            raise result
        return result

    def trailing_metadata(self, reply: PredictReply) -> Metadata:
        """Return the trailing metadata of a reply: its generation, the digest if asked for, features looked up."""
        digest = (("x-model-digest", reply.generation.digest),) if MODEL_DIGEST in self.headers else ()
        features = tuple([(name.decode(), value.decode()) for name, value in self.feature_headers(reply)])
        return generation_metadata(reply.generation) + digest + features


C = TypeVar("C", RpcCall, RpcExchange)


class HandlerFactory:
    """Turns functions into handlers; a method's name is for the access log, and determines its scope.

    A cancelled call no longer counts as in flight, although its prediction may still be computed.

    Args:
        protocol: The service's name in metrics.
        access: The access log; None for no log.
        guard: Checks each call before it is answered; None for no check.
    """

    def __init__(
        self,
        serving_context: ServingContext,
        protocol: str,
        *,
        answering: ActiveCalls,
        access: AccessLog | None = None,
        guard: AccessGuard | None = None,
    ) -> None:
        self._serving_context, self._protocol, self._access, self._guard = serving_context, protocol, access, guard
        self.answering = answering

    def guarded(self, name: str, function: Callable[[bytes, C], Awaitable[T]]) -> Callable[[bytes, C], Awaitable[T]]:
        """Wrap a function so that the guard checks its calls first; without a guard, return it unchanged."""
        if self._guard is None:
            return function
        guard, scope = self._guard, RPC_SCOPES.get(name, ADMIN_WRITE)

        async def asked(data: bytes, call: C) -> T:
            permit = guard.acquire(scope, call.headers.get(AUTHORIZATION), address_of(call.context))
            try:
                return await function(data, call)
            finally:
                permit.end()

        return asked

    def _opened(
        self, name: str, function: Callable[[S, Any], AsyncIterator[bytes]], each: bool
    ) -> Callable[[S, Any], AsyncIterator[bytes]]:
        """Wrap the function of a stream likewise; with `each`, its requests are checked separately."""
        if self._guard is None:
            return function
        guard, scope = self._guard, RPC_SCOPES.get(name, ADMIN_WRITE)

        async def asked(requests: S, context: Any) -> AsyncIterator[bytes]:
            sent = scope, headers_of(context).get(AUTHORIZATION), address_of(context)
            if each:
                guard.authorize_stream(*sent)
            permit = guard.no_permit if each else guard.acquire(*sent)
            try:
                async for reply in function(requests, context):
                    yield reply
            finally:
                permit.end()

        return asked

    def raw(self, name: str, function: Callable[[bytes, RpcExchange], Awaitable[Answer]]) -> grpc.RpcMethodHandler:
        """Return a handler of predictions, from a function of bytes to bytes."""
        return self._handler(name, function, self.begin)

    def _handler(
        self, name: str, function: Callable[[bytes, C], Awaitable[Answer]], begin: Callable[[Any], C]
    ) -> grpc.RpcMethodHandler:
        asked = self.guarded(name, function)

        async def answer(data: bytes, context: Any) -> bytes:
            call = begin(context)
            try:
                reply, metadata = await asked(data, call)
            except FreshetError as error:
                failure = error
            except asyncio.CancelledError:
                if not self._serving_context.lifecycle.draining:
                    raise
                failure = NotReady("server: draining")
            except Exception:
                fields = {"request_id": request_id_of(call.headers)}
                log.exception("request failed with an internal error", extra={"fields": fields})
                failure = FreshetError("internal error")
            else:
                call.end(OK)
                self._observe(call, name, OK, len(reply))
                metadata += echo_of(call.headers)
                if metadata:
                    context.set_trailing_metadata(metadata)
                return reply
            call.end(failure.http_status)
            self._observe(call, name, failure.http_status, 0)
            await context.abort(code_of(failure), str(failure), _retry(failure) + echo_of(call.headers))
            raise AssertionError("abort() raises")

        async def handle(data: bytes, context: Any) -> bytes:
            with self.answering.one(context):
                return await answer(data, context)

        return grpc.unary_unary_rpc_method_handler(handle)

    def stream(
        self, name: str, function: Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]], each: bool = False
    ) -> grpc.RpcMethodHandler:
        """Return a handler of a function of a stream of bytes; with `each` it has the guard check each request."""
        opened = self._opened(name, function, each)

        async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for reply in self._streamed(name, opened(requests, context), context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(handle)

    def server_stream(self, name: str, function: Callable[[bytes, Any], AsyncIterator[bytes]]) -> grpc.RpcMethodHandler:
        """Return a handler of a function from bytes to a stream of bytes."""
        opened = self._opened(name, function, each=False)

        async def handle(data: bytes, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._streamed(name, opened(data, context), context):
                yield reply

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _streamed(self, name: str, replies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        call, code, nbytes = RpcCall(context), OK, 0
        try:
            async for reply in replies:
                nbytes += len(reply)
                yield reply
        except FreshetError as error:
            code = error.http_status
            await context.abort(code_of(error), str(error), _retry(error) + echo_of(call.headers))
        except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception:
            log.exception("stream failed with an internal error")
            code = INTERNAL
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            self._observe(call, name, code, nbytes)

    def unary(self, name: str, kind: str, function: Callable[[Any, Any], Awaitable[Any]]) -> grpc.RpcMethodHandler:
        """Return a handler of a function from a message of the type `kind` to a message."""

        async def answer(data: bytes, call: RpcCall) -> Answer:
            reply = await function(parse(kind, data), call.context)
            return reply.SerializeToString(), ()

        return self._handler(name, answer, RpcCall)

    def unimplemented(self, name: str, why: str) -> grpc.RpcMethodHandler:
        """Return a handler of a method that clients call but that is not served; `why` names the alternative."""

        async def answer(data: bytes, call: RpcCall) -> Answer:
            raise Unimplemented(why)

        return self._handler(name, answer, RpcCall)

    def begin(self, context: Any) -> RpcExchange:
        """Start the exchange of a prediction, or of one prediction of a stream: each is timed and traced separately."""
        return RpcExchange(self._serving_context, self._protocol, context)

    def _observe(self, call: RpcCall | RpcExchange, name: str, code: int, nbytes: int) -> None:
        seconds = time.perf_counter() - call.began_s
        self._serving_context.metrics.observe(self._protocol, code, seconds)
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


Handlers = dict[str, grpc.RpcMethodHandler]
