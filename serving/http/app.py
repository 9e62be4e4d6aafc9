"""Serve all routes of the HTTP port as one ASGI application.

Protocols: TensorFlow Serving REST, KServe v2 and DeepRec's messages; also health and metrics.

Life of a predict request: path -> manifest -> codec -> Predictor.submit -> codec -> reply; serving.front.exchange
documents what is counted. All but the prediction runs on the event loop, except that long bodies and requests for a
version with a stage are read and submitted elsewhere (serving.front.offload_executor). With inline compute the
prediction runs on the loop, too: the requests read in one turn are computed at its end, and sockets are served between
two batches. Otherwise it runs on a session's thread, which returns the reply through Wakeups. A client that disconnects
costs only its own prediction: sends to it are dropped below ASGI.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.errors import (
    BadInput,
    Expired,
    FreshetError,
    NotFound,
    NotReady,
    Overloaded,
    TooLarge,
    json_kind,
    shortage,
)
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.versions.routes import AVAILABLE
from freshet_serving.serving.access.access_guard import Forbidden
from freshet_serving.serving.codecs.wire import (
    CONTENT_ENCODING,
    JSON_TYPE,
    Body,
    Headers,
    SizeLimit,
    deflate,
    dump_json,
    header_timeout_s,
    inflate,
    load_json,
)
from freshet_serving.serving.front import catalog, queries
from freshet_serving.serving.front.exchange import MAX_AT_ONCE_NBYTES, OK, DecodedRequest, Exchange, ServingContext
from freshet_serving.serving.front.model_control import ControlHandler, ModelControlAuthorizer, no_model_control
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.front.resource_limits import BodyMemory
from freshet_serving.serving.front.shared_memory import Regions
from freshet_serving.serving.http import origin_checks
from freshet_serving.serving.http.asgi import (
    Disconnected,
    MethodNotAllowed,
    RawHeaders,
    Receive,
    Scope,
    Send,
    WrongVerb,
    error_body,
    error_reply,
    read_body,
    reply,
)
from freshet_serving.serving.http.dialects import DIALECTS, Dialect
from freshet_serving.serving.http.http_head import Head, HeadCache
from freshet_serving.serving.http.paths import Route, parse
from freshet_serving.serving.request_headers import (
    MAX_REQUEST_ID_NBYTES,
    MODEL_DIGEST,
    REQUEST_ID,
    TOP_ITEMS,
    request_id_of,
)
from freshet_serving.serving.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from freshet_serving.serving.telemetry.logs import AccessLog

log = logging.getLogger("freshet.http")

CLIENT_CLOSED = 499
HTML_TYPE = (b"content-type", b"text/html; charset=utf-8")
MAX_CONTROL_NBYTES = 64 << 10
# Bodies that arrive in pieces may take so much memory in each process, and always as much as two of the largest.
INFLIGHT_NBYTES = 128 << 20

Answer = tuple[int, bytes, RawHeaders]


@lru_cache(maxsize=1024)
def generation_headers(version: int, step: int) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    return ((b"x-model-version", b"%d" % version), (b"x-model-generation", str(Generation(version, step)).encode()))


def internal_error(headers: Headers) -> Answer:
    """Return the reply to a request whose exception is being handled: a shortage's own, or 500, logged."""
    error = sys.exception()
    if error is not None and (short := shortage(error)) is not None:
        return error_reply(short)
    fields = {"request_id": request_id_of(headers)}
    log.exception("request failed with an internal error", extra={"fields": fields})
    return 500, error_body("internal error"), [JSON_TYPE]


class HttpExchange(Exchange):
    """A predict request of the HTTP port.

    Attributes:
        options: The dialect's options, set when the request is decoded.
        whole: The body without its content coding, once it is known.
    """

    __slots__ = ("answered", "dialect", "options", "regions", "whole")

    dialect: Dialect
    regions: Regions | None
    answered: Callable[[Answer], None]
    options: Any
    whole: Body | None

    def offload_nbytes(self, source: Body) -> int:
        """Return how many bytes to decode off the event loop; 0 to decode on the loop."""
        self.whole = whole = source
        if CONTENT_ENCODING in self.headers:
            try:
                most = min(MAX_AT_ONCE_NBYTES, self.dialect.bound(self.headers, self.shared.options).nbytes)
                self.whole = whole = inflate(source, self.headers, SizeLimit(most))
            except TooLarge:
                self.whole = None
                return len(source)
        if len(whole) <= MAX_AT_ONCE_NBYTES:
            return 0
        looked_at = self.computes_inputs or self.dialect.parsed(len(whole), self.headers) > MAX_AT_ONCE_NBYTES
        return len(whole) if looked_at else 0

    def read(self, source: Body, manifest: Manifest) -> DecodedRequest:
        body = self.whole
        if body is None:
            options = self.shared.options
            bound = self.dialect.bound(self.headers, options)
            body = inflate(source, self.headers, bound, options.max_inflation)
        self.whole = None
        inputs, self.options = self.dialect.decode(body, self.headers, manifest, self.limits, self.regions)
        return inputs, self.options.timeout_s

    def computed(self, result: PredictReply | FreshetError) -> None:
        self.finish(result)
        answer: Answer
        if isinstance(result, FreshetError):
            answer = error_reply(result)
        else:
            try:
                options, asked = self.options, self.dialect.asked
                signature, names = self.dialect.signature(options), () if asked is None else asked(options)
                content, kinds = self.dialect.encode(self.declared(result, signature, names), options, self.regions)
                if b"accept-encoding" in self.headers:
                    content, coding = deflate(content, self.headers)
                    kinds = (*kinds, *coding)
                kinds = (*kinds, *self.feature_headers(result))
                if MODEL_DIGEST in self.headers:
                    kinds = (*kinds, (MODEL_DIGEST, result.generation.digest.encode()))
                generation = result.generation
                answer = OK, content, (*kinds, *generation_headers(generation.version, generation.step))
            except FreshetError as error:
                answer = error_reply(error)
            except Exception:
                answer = internal_error(self.headers)
        self.end(answer[0])
        self.answered(answer)


class DataApp:
    """The HTTP port's routes as an ASGI 3 application. One event loop at a time runs it."""

    def __init__(
        self,
        serving_context: ServingContext,
        *,
        control: ControlHandler = no_model_control,
        regions: Regions | None = None,
        access: AccessLog | None = None,
        guarded: bool = False,
    ):
        """Set up the routes.

        Args:
            control: Performs control operations that clients may request of the whole server.
            regions: Shared memory; None if it is not served.
            access: The access log; None for no log.
            guarded: Whether a guard checks API keys before requests reach the application.
        """
        options = serving_context.options
        self.serving_context = serving_context
        self._lifecycle, self.metrics = serving_context.lifecycle, serving_context.metrics
        self._version = options.version
        self.limits: RequestLimits = options
        self.heads = HeadCache()
        # The route whose last request was refused for want of room or time; None once one is admitted, and on ports
        # that log or trace what they refuse.
        self.shed: Route | None = None
        self.bodies = BodyMemory(max(INFLIGHT_NBYTES, 2 * options.max_body_bytes))
        self._control, self._regions = control, regions
        self._authorizer = ModelControlAuthorizer(options.model_control, "" if guarded else options.admin_token)
        self.access = access
        self._gets: dict[str, Callable[[Route], Awaitable[Answer]]] = {
            "live": self._live,
            "up": self._up,
            "ready": self._ready,
            "server": self._server,
            "metrics": self._scrape,
            "openapi": self._openapi,
            "root": self._root,
            "docs": self._docs,
            "status": self._status,
            "metadata": self._metadata,
            "model": self._model,
            "model_ready": self._model_ready,
            "config": self._config,
            "stats": self._stats,
            "shm_status": self._shm_status,
        }
        self._posts: dict[str, Callable[[Route, dict[str, Any]], Awaitable[Answer]]] = {
            "index": self._index,
            "load": self._load,
            "unload": self._load,
            "shm_register": self._shm_register,
            "shm_unregister": self._shm_unregister,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"expected http, got {scope['type']}")
        start_s = time.perf_counter()
        protocol, sent = "http", dict(scope["headers"])
        try:
            route = parse(scope.get("raw_path") or scope["path"].encode(), scope["method"])
            dialect = DIALECTS.get(route.action)
            protocol = "http" if dialect is None else dialect.protocol
            _check_method(scope, route)
            if dialect is not None:
                status, body, headers = await self._predict(route, sent, receive)
            elif route.method == "POST":
                status, body, headers = await self._post(route, sent, receive)
            else:
                status, body, headers = await self._gets[route.action](route)
        except FreshetError as error:
            status, body, headers = error_reply(error)
        except Disconnected:
            self.metrics.observe(protocol, CLIENT_CLOSED, time.perf_counter() - start_s)
            return
        except asyncio.CancelledError:
            # The drain has timed out; answer while the client is still connected.
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
        body: Body,
        answered: Callable[[Answer], None],
        unread_s: Callable[[], float] = float,
    ) -> None:
        """Decode and submit one predict request, of the ASGI route or of the protocol below ASGI; raises FreshetError.

        Args:
            body: Its whole body, as sent.
            answered: Called once, later, on the running event loop.
            unread_s: Measures how long the request waited before it was read; called only if it has a deadline.
        """
        dialect = DIALECTS[route.action]
        if not route.model:
            route, headers, body = self._named_by_body(dialect, route, headers, body)
        self.serving_context.dispatcher.catch_up()
        exchange = HttpExchange(self.serving_context, dialect.protocol, headers)
        exchange.dialect, exchange.regions, exchange.answered = dialect, self._regions, answered
        if exchange.trace is not None:
            exchange.trace.model = route.model
        try:
            timeout_s = header_timeout_s(headers)
            timed = timeout_s is not None or self.serving_context.default_timeout_s is not None
            self._select(exchange, route, timeout_s, unread_s() if timed else 0.0)
            exchange.submit(body, exchange.computed)
        except FreshetError as error:
            exchange.end(error.http_status)
            raise

    def _named_by_body(
        self, dialect: Dialect, route: Route, headers: Headers, body: Body
    ) -> tuple[Route, Headers, Body]:
        """Inflate the body and set the route's model to the one that the body names."""
        assert dialect.model_of is not None, "its path names no model"
        advice = f"; longer ones name the model in their path, /v1/models/MODEL{dialect.suffix}"
        short = SizeLimit(MAX_AT_ONCE_NBYTES, advice=advice)
        body = inflate(body, headers, short)
        model = dialect.model_of(body, self.limits)
        return replace(route, model=model), {n: v for n, v in headers.items() if n != CONTENT_ENCODING}, body

    def _select(self, exchange: HttpExchange, route: Route, timeout_s: float | None, unread_s: float) -> None:
        try:
            exchange.select_replica(route, exchange.dialect.servable, timeout_s, unread_s)
        except (Expired, Overloaded):
            if self.access is None and self.serving_context.tracer is None:
                self.shed = route
            raise
        if self.shed is not None:
            self.shed = None

    def refusal(self, head: Head, unread_s: Callable[[], float]) -> Answer | None:
        """Return the answer to a request of the route `shed` if start() would refuse it as well; None to start() it.

        In overload most requests are refused. This takes a quarter less time than start(): it needs neither exchange
        nor body.
        """
        context = self.serving_context
        context.dispatcher.catch_up()
        try:
            timeout_s, waited_s = header_timeout_s(head.headers), 0.0
            if timeout_s is not None or context.default_timeout_s is not None:
                waited_s = unread_s()
            context.lifecycle.processor().check_room(head.route.model, context.left_s(timeout_s, waited_s), waited_s)
        except FreshetError as error:
            answer = error_reply(error)
            self.metrics.observe(DIALECTS[head.route.action].protocol, answer[0], 0.0)
            return answer
        return None

    def validate_prefix(self, route: Route, headers: Headers, text: bytes) -> None:
        """Raise the error that the beginning of a body already shows; see Dialect."""
        validate_prefix = DIALECTS[route.action].validate_prefix
        # A request for the best items has other inputs: it is checked when it is complete.
        if validate_prefix is not None and TOP_ITEMS not in headers:
            processor = self._lifecycle.processor()
            manifest, _ = processor.manifest(route.model, route.version)
            validate_prefix(text, manifest, processor.limits(route.model))

    async def _predict(self, route: Route, headers: Headers, receive: Receive) -> Answer:
        """Answer the predict routes for requests that the protocol below ASGI does not handle."""
        self._lifecycle.processor()
        body = await read_body(receive, headers, DIALECTS[route.action].bound(headers, self.limits))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        self.start(route, headers, body, answered)
        return await future

    async def _post(self, route: Route, headers: Headers, receive: Receive) -> Answer:
        """Answer routes that change something, or that KServe's clients POST to."""
        if route.action != "index" and origin_checks.from_browser(headers):
            # Only a page on this machine has a legitimate reason to send these.
            refusal = origin_checks.cross_site_refusal(headers, changes=True) or origin_checks.rebinding_refusal(
                headers
            )
            if refusal:
                raise Forbidden(refusal)
        if route.action in ("load", "unload"):
            self._authorizer.authorize(headers.get(b"authorization"))
        bound = SizeLimit(MAX_CONTROL_NBYTES)
        body = bytes(inflate(await read_body(receive, headers, bound), headers, bound))
        return await self._posts[route.action](route, load_json(body) if body.strip() else {})

    async def _live(self, route: Route) -> Answer:
        return _json({"live": True})

    async def _up(self, route: Route) -> Answer:
        return _json({"live": True, "ready": self._lifecycle.ready})

    async def _ready(self, route: Route) -> Answer:
        if not self._lifecycle.ready:
            raise NotReady(self._lifecycle.unready_reason)
        return _json({"ready": True, **self._lifecycle.reasons})

    async def _server(self, route: Route) -> Answer:
        return _json(catalog.server_metadata(self._version, queries.extensions(self._authorizer, self._regions)))

    async def _scrape(self, route: Route) -> Answer:
        # In a thread: formatting a few hundred series must not delay predictions.
        text = await in_thread(None, self.metrics.scrape)
        return 200, text, [(b"content-type", CONTENT_TYPE.encode())]

    async def _openapi(self, route: Route) -> Answer:
        # What people read is loaded when they ask, here and below.
        from freshet_serving.serving.http import openapi

        return 200, openapi.document(self._version), (JSON_TYPE,)

    async def _root(self, route: Route) -> Answer:
        from freshet_serving.serving.http import pages

        return _json(pages.root(self._version, self._lifecycle.ready))

    async def _docs(self, route: Route) -> Answer:
        from freshet_serving.serving.http import pages

        headers = [(name.encode(), value.encode()) for name, value in pages.PAGE_HEADERS.items()]
        return 200, pages.reference("/openapi.json").encode(), [HTML_TYPE, *headers]

    async def _status(self, route: Route) -> Answer:
        statuses = queries.servable_status(self._lifecycle.processor(), route)
        # KServe's v1 clients use the same route to ask whether the model is ready.
        ready = not self._lifecycle.draining and any(s.state == AVAILABLE for s in statuses)
        return _json(catalog.version_status(statuses) | {"name": route.model, "ready": ready})

    async def _metadata(self, route: Route) -> Answer:
        manifest, generation = queries.servable_manifest(self._lifecycle.processor(), route)
        spec = {"name": route.model, "signature_name": "", "version": str(generation.version)}
        document = {"model_spec": spec, "metadata": {"signature_def": catalog.signatures(manifest)}}
        return _json(document, generation)

    async def _model(self, route: Route) -> Answer:
        document, generation = queries.model_metadata(self._lifecycle.processor(), route.model, route.version)
        return _json(document, generation)

    async def _model_ready(self, route: Route) -> Answer:
        self._lifecycle.processor().manifest(route.model, route.version)
        if self._lifecycle.draining:
            raise NotReady("server: draining")
        return _json({"name": route.model, "ready": True})

    async def _config(self, route: Route) -> Answer:
        manifest, generation = self._lifecycle.processor().manifest(route.model, route.version)
        return _json(catalog.model_config(manifest, route.model), generation)

    async def _stats(self, route: Route) -> Answer:
        return _json(await self._act("statistics", {"model": route.model, "version": route.version}))

    async def _index(self, route: Route, body: dict[str, Any]) -> Answer:
        processor, ready = self._lifecycle.processor(), body.get("ready", False)
        if type(ready) is not bool:
            raise BadInput(f"ready: expected a boolean, got {json_kind(ready)}")
        models = [(name, processor.status(name)) for name in processor.models()]
        return _json(catalog.repository_index(models, ready))

    async def _load(self, route: Route, body: dict[str, Any]) -> Answer:
        queries.check_load(body.get("parameters"))
        return _json(await self._act(route.action, {"model": route.model}))

    async def _shm_status(self, route: Route) -> Answer:
        return _json(self._shared_memory().status(route.region))

    async def _shm_register(self, route: Route, body: dict[str, Any]) -> Answer:
        key, offset, nbytes = body.get("key"), body.get("offset", 0), body.get("byte_size")
        if type(key) is not str or type(offset) is not int or type(nbytes) is not int:
            raise BadInput("body: expected key, byte_size and optionally offset")
        self._shared_memory().register(route.region, key, offset, nbytes)
        return _json({})

    async def _shm_unregister(self, route: Route, body: dict[str, Any]) -> Answer:
        self._shared_memory().unregister(route.region)
        return _json({})

    def _shared_memory(self) -> Regions:
        if self._regions is None:
            raise NotFound("shared memory is disabled; --shared-memory on enables it")
        return self._regions

    async def _act(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Perform a control operation in the process that owns the models, off the loop."""
        self._lifecycle.processor()
        return await in_thread(None, partial(self._control, operation, arguments))


def _json(document: Any, generation: Generation | None = None) -> Answer:
    headers: RawHeaders = () if generation is None else generation_headers(generation.version, generation.step)
    return 200, dump_json(document), (JSON_TYPE, *headers)


def _check_method(scope: Scope, route: Route) -> None:
    method, allowed = scope["method"], ("GET", "HEAD") if route.method == "GET" else ("POST",)
    if method in allowed:
        return
    expected = f"method: expected {' or '.join(allowed)}, got {method[:16]}"
    if scope["path"][:4].lower() == "/v1/":
        raise WrongVerb(f"Malformed request: {method[:16]} {scope['path'][:200]}: {expected}", ", ".join(allowed))
    raise MethodNotAllowed(expected, ", ".join(allowed))
