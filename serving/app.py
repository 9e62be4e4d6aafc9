"""The data port: TensorFlow Serving REST, KServe v2, health and metrics as one raw ASGI application.

Life of a predict request: path -> manifest -> codec -> Processor.submit -> codec -> reply. Everything but the
prediction runs on the event loop. With inline compute the prediction does too: what a turn of the loop has read is
computed at its end, batch by batch, the sockets getting their turn between two batches. Otherwise it runs on a
session's thread, which hands the reply back through Wakeups. A client that leaves costs its own prediction and nothing
else: sends to it are dropped below ASGI.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from processor.engine import PredictReply, PredictRequest
from processor.errors import FreshetError, NotFound, NotReady
from processor.generation import Generation
from serving.asgi import (
    JSON_TYPE,
    Disconnected,
    MethodNotAllowed,
    RawHeaders,
    Receive,
    Scope,
    Send,
    error_body,
    error_reply,
    read_body,
    reply,
)
from serving.codecs import kserve, tfs_rest
from serving.codecs.wire import MAX_BODY_NBYTES, Headers, dump_json, header_timeout_s, inflate
from serving.heads import Heads
from serving.lifecycle import Lifecycle
from serving.metrics import CONTENT_TYPE, Metrics
from serving.routes import Route, parse
from serving.wakeups import Wakeups

if TYPE_CHECKING:
    from processor.engine import Processor
    from serving.logs import AccessLog
    from serving.trail import Trace, Trail

log = logging.getLogger("freshet.http")

SERVER_NAME = "freshet"
# Clients branch on this list: nothing is named here that is not served.
EXTENSIONS = ["binary_tensor_data"]
CLIENT_CLOSED = 499
TIMED_EVERY = 16
TRACEPARENT = b"traceparent"
REQUEST_ID, MAX_REQUEST_ID_NBYTES = b"x-request-id", 128
PROTOCOLS = {"predict": "tfs_rest", "infer": "kserve"}


def _encode_tfs(result: PredictReply, options: Any) -> tuple[bytes, RawHeaders]:
    return tfs_rest.encode(result.outputs, options), [JSON_TYPE]


def _encode_kserve(result: PredictReply, options: Any) -> tuple[bytes, RawHeaders]:
    return kserve.encode(result.outputs, options, result.model, result.generation.version)


CODECS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[bytes, RawHeaders]]]] = {
    "predict": (tfs_rest.decode, _encode_tfs),
    "infer": (kserve.decode, _encode_kserve),
}

Answer = tuple[int, bytes, RawHeaders]
Finish = Callable[[PredictReply | FreshetError], None]


@lru_cache(maxsize=1024)
def generation_headers(generation: Generation) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """x-model-version and x-model-generation."""
    return (
        (b"x-model-version", b"%d" % generation.version),
        (b"x-model-generation", str(generation).encode()),
    )


def caller_of(headers: Headers) -> int | None:
    """x-caller-id as a number, the same in every process, or None."""
    text = headers.get(b"x-caller-id")
    return None if text is None else crc32(text)


def request_id_of(headers: Headers) -> str:
    """x-request-id, cut, or ""."""
    text = headers.get(REQUEST_ID)
    return "" if text is None else text[:MAX_REQUEST_ID_NBYTES].decode("latin-1")


def internal_error(headers: Headers) -> Answer:
    """The reply to a request that failed for a reason that is not its own; logs the exception being handled."""
    fields = {"request_id": request_id_of(headers)}
    log.exception("a request failed for a reason that is not its own", extra={"fields": fields})
    return 500, error_body("internal error"), [JSON_TYPE]


class DataApp:
    """ASGI 3 application. One event loop at a time runs it."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        metrics: Metrics,
        *,
        version: str = "",
        max_body_nbytes: int = MAX_BODY_NBYTES,
        default_timeout_s: float | None = None,
        access: AccessLog | None = None,
        trail: Trail | None = None,
    ):
        """default_timeout_s: how long a request may take that does not say so itself; None for any time."""
        self._lifecycle = lifecycle
        self.metrics = metrics
        self._version = version
        self.max_body_nbytes = max_body_nbytes
        self.heads = Heads()
        self._default_timeout_s = default_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = 0
        self.access, self._trail = access, trail
        self._hand_over: Callable[[Finish], Finish]
        self._gets: dict[str, Callable[[Route], Awaitable[Answer]]] = {
            "live": self._live,
            "ready": self._ready,
            "server": self._server,
            "metrics": self._scrape,
            "status": self._status,
            "metadata": self._metadata,
            "model": self._model,
            "model_ready": self._model_ready,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"http wanted, got {scope['type']}")
        start_s = time.perf_counter()
        protocol, sent = "http", dict(scope["headers"])
        try:
            route = parse(scope.get("raw_path") or scope["path"].encode())
            protocol = PROTOCOLS.get(route.action, "http")
            _check_method(scope["method"], route)
            if route.method == "POST":
                status, body, headers = await self._predict(route, sent, receive)
            else:
                status, body, headers = await self._gets[route.action](route)
        except FreshetError as error:
            status, body, headers = error_reply(error)
        except Disconnected:
            self.metrics.observe(protocol, CLIENT_CLOSED, time.perf_counter() - start_s)
            return
        except asyncio.CancelledError:
            # The drain has run out of time; while the connection is there, its client may as well know.
            if not self._lifecycle.draining:
                raise
            status, body, headers = error_reply(NotReady("server: draining"))
        except Exception:
            status, body, headers = internal_error(sent)
        seconds = time.perf_counter() - start_s
        self.metrics.observe(protocol, status, seconds)
        if self.access is not None:
            self.access(protocol, scope["path"][:200], status, seconds, request_id_of(sent), len(body))
        if REQUEST_ID in sent:
            headers = [*headers, (REQUEST_ID, sent[REQUEST_ID][:MAX_REQUEST_ID_NBYTES])]
        await reply(send, status, body, headers)

    def start(
        self,
        route: Route,
        headers: Headers,
        body: bytes,
        answered: Callable[[Answer], None],
        trace: Trace | None = None,
    ) -> None:
        """Decodes and submits one predict request; `answered` is called once, later, on the running event loop.

        body: whole, as sent. Raises FreshetError when the request cannot be submitted. Both the ASGI route and the
        protocol below ASGI (serving.protocol) go through here. trace: of a request that is traced already.
        """
        trail = self._trail
        if trail is not None and trace is None:
            trail.left -= 1
            asked = trail.left <= 0 or TRACEPARENT in headers
            if asked and self._start_traced(trail, route, headers, body, answered):
                return
        # Parsing and encoding are timed of one request in some: timing every one costs more than it tells.
        self._turn = turn = (self._turn + 1) % TIMED_EVERY
        began_s = 0.0 if turn else time.perf_counter()
        processor = self._lifecycle.processor()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._connect(loop, processor)
        # Most of an overload is refused here, before a byte of the body is read.
        timeout_s = header_timeout_s(headers) or self._default_timeout_s
        key = headers.get(b"x-sticky-key")
        replica = processor.admit(route.model, route.version, route.label, timeout_s, key)
        body = inflate(body, headers, self.max_body_nbytes)
        decode, encode = CODECS[route.action]
        inputs, options = decode(body, headers, replica.manifest)

        def finish(result: PredictReply | FreshetError) -> None:
            if isinstance(result, FreshetError):
                answered(error_reply(result))
                return
            if trace is not None:
                trace.computed(result.generation, result.timing)
            self.metrics.predicted(result.model, len(next(iter(result.outputs.values()))))
            encoding_s = time.perf_counter() if began_s else 0.0
            try:
                content, kinds = encode(result, options)
            except Exception:
                answered(internal_error(headers))
            else:
                if encoding_s:
                    self.metrics.stage(PROTOCOLS[route.action], "encode", time.perf_counter() - encoding_s)
                answered((200, content, (*kinds, *generation_headers(result.generation))))

        timeout_s = options.timeout_s or self._default_timeout_s
        request = PredictRequest(
            route.model, inputs, route.version, route.label, timeout_s, caller_of(headers), key, request_id_of(headers)
        )
        processor.submit(request, self._hand_over(finish), replica)
        if began_s:
            self.metrics.stage(PROTOCOLS[route.action], "parse", time.perf_counter() - began_s)

    def _start_traced(
        self, trail: Trail, route: Route, headers: Headers, body: bytes, answered: Callable[[Answer], None]
    ) -> bool:
        """start() of a request that is to be traced, and True; False where it is not."""
        trace = trail.begin(headers)
        if trace is None:
            return False
        trace.protocol, trace.model, trace.request_id = PROTOCOLS[route.action], route.model, request_id_of(headers)

        def traced(answer: Answer) -> None:
            trail.end(trace, answer[0])
            answered(answer)

        try:
            self.start(route, headers, body, traced, trace)
        except FreshetError as error:
            trail.end(trace, error.http_status)
            raise
        trace.parsed_s = time.monotonic()
        return True

    def _connect(self, loop: asyncio.AbstractEventLoop, processor: Processor) -> None:
        """Has replies come on this loop: computed there, or handed over by session threads."""
        thread = threading.get_ident()

        def wake(delay_s: float) -> None:
            if threading.get_ident() != thread:
                loop.call_soon_threadsafe(processor.run_once)
            elif delay_s:
                loop.call_later(delay_s, processor.run_once)
            else:
                loop.call_soon(processor.run_once)

        if processor.attach(wake):
            self._hand_over = lambda finish: finish
        else:
            post = Wakeups(loop).post
            self._hand_over = lambda finish: lambda result: post(finish, result)
        self._loop = loop

    async def _predict(self, route: Route, headers: Headers, receive: Receive) -> Answer:
        """The predict routes where the protocol below ASGI does not take them."""
        self._lifecycle.processor()
        body = await read_body(receive, headers, self.max_body_nbytes)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.start(route, headers, body, lambda answer: future.done() or future.set_result(answer))
        return await future

    async def _live(self, route: Route) -> Answer:
        return 200, dump_json({"live": True, "ready": self._lifecycle.ready}), [JSON_TYPE]

    async def _ready(self, route: Route) -> Answer:
        if not self._lifecycle.ready:
            raise NotReady("server: draining" if self._lifecycle.draining else "server: not every model is ready")
        return 200, dump_json({"ready": True}), [JSON_TYPE]

    async def _server(self, route: Route) -> Answer:
        return (
            200,
            dump_json({"name": SERVER_NAME, "version": self._version, "extensions": EXTENSIONS}),
            [JSON_TYPE],
        )

    async def _scrape(self, route: Route) -> Answer:
        # In a thread of its own: formatting a few hundred series must not stand between two predictions.
        text = await asyncio.to_thread(self.metrics.scrape)
        return 200, text, [(b"content-type", CONTENT_TYPE.encode())]

    async def _status(self, route: Route) -> Answer:
        processor = self._lifecycle.processor()
        wanted = route.version
        if route.label is not None:
            wanted = processor.manifest(route.model, label=route.label)[1].version
        versions = [(s.version, s.state, s.error) for s in processor.status(route.model) if wanted in (None, s.version)]
        if not versions:
            raise NotFound(f"Could not find version {wanted} of model {route.model[:64]}")
        return 200, tfs_rest.encode_status(versions), [JSON_TYPE]

    async def _metadata(self, route: Route) -> Answer:
        manifest, generation = self._lifecycle.processor().manifest(route.model, route.version, route.label)
        body = tfs_rest.encode_metadata(manifest, route.model, generation.version)
        return 200, body, [JSON_TYPE, *generation_headers(generation)]

    async def _model(self, route: Route) -> Answer:
        processor = self._lifecycle.processor()
        manifest, generation = processor.manifest(route.model, route.version)
        versions = [s.version for s in processor.status(route.model) if s.state == "AVAILABLE"]
        return (
            200,
            kserve.encode_metadata(manifest, route.model, versions),
            [JSON_TYPE, *generation_headers(generation)],
        )

    async def _model_ready(self, route: Route) -> Answer:
        self._lifecycle.processor().manifest(route.model, route.version)
        if self._lifecycle.draining:
            raise NotReady("server: draining")
        return 200, dump_json({"name": route.model, "ready": True}), [JSON_TYPE]


def _check_method(method: str, route: Route) -> None:
    allowed = ("GET", "HEAD") if route.method == "GET" else ("POST",)
    if method not in allowed:
        raise MethodNotAllowed(f"method: {' or '.join(allowed)} wanted, got {method[:16]}", ", ".join(allowed))
