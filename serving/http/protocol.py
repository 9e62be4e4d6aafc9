"""Predict requests below ASGI: no task, no scope and no queue of events for the route that is nearly all traffic.

A subclass of uvicorn's httptools protocol. A request that is a plain POST to a predict route, the only one in flight
on its connection, is collected, decoded, submitted and answered by parser callbacks and one transport.write.
Whatever else it is (another route, HTTP/1.0, Expect: 100-continue, pipelined behind another request) takes uvicorn's
own way to the ASGI application, which serves every route, these included.

A request that one read brought whole, and whose head is known (serving.http.head_cache), does not pass the parser
either: the parser stands between two messages before and after it.

Invariants: one request in flight on a connection, whichever way it takes: while a Flight is unanswered it stands in
uvicorn's `cycle`, so that a pipelined request queues behind it and a shutdown waits for it. A reply is written at most
once and only to a connection that is still there.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from processor.errors import FreshetError, NotReady, TooLarge
from serving.codecs.wire import Headers
from serving.http.app import Answer, DataApp, internal_error
from serving.http.asgi import error_reply
from serving.http.dialects import DIALECTS
from serving.http.farewell import CLOSE, LeavingProtocol
from serving.http.paths import Route, parse
from serving.request_headers import MAX_REQUEST_ID_NBYTES, REQUEST_ID, request_id_of

PREDICT_SUFFIXES = tuple(dialect.suffix.encode() for dialect in DIALECTS.values())


class _Deaf:
    """uvicorn sets its cycle's event when a connection ends; nobody waits for a Flight's."""

    def set(self) -> None:
        pass


class Flight:
    """A predict request between its headers and its reply, with the attributes that uvicorn expects of a cycle."""

    __slots__ = ("chunks", "disconnected", "headers", "keep_alive", "nbytes", "response_complete", "route", "start_s")

    message_event = _Deaf()

    def __init__(self, route: Route, headers: Headers, keep_alive: bool) -> None:
        self.route, self.headers, self.keep_alive = route, headers, keep_alive
        self.start_s = time.perf_counter()
        self.chunks: list[bytes] = []
        self.nbytes = 0
        self.response_complete = self.disconnected = False


class PredictProtocol(LeavingProtocol):
    """One connection of the HTTP port."""

    def __init__(self, *args: Any, data_app: DataApp, **options: Any) -> None:
        super().__init__(*args, **options)
        self._app = data_app
        self._receiving: Flight | None = None
        # What the parser has been given on a boundary, for as long as it can be one whole request.
        self._whole: bytes | None = None
        self._idle_since_s: float | None = None

    def data_received(self, data: bytes) -> None:
        if self._on_boundary:
            known = self._app.heads.split(data)
            if known is not None and self._free():
                self._idle_since_s = None
                head, body = known
                flight = Flight(head.route, head.headers, True)
                self.cycle = flight  # type: ignore[assignment]
                self._start(flight, body)
                return
            self._whole = data
        super().data_received(data)
        self._whole = None

    def on_message_begin(self) -> None:
        self._on_boundary = False
        # The scope is built only for requests that go on to ASGI.
        self._idle_since_s = None
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        route = self._predict_route()
        if route is not None:
            flight = Flight(route, dict(self.headers), self.parser.should_keep_alive())
            self.cycle = flight  # type: ignore[assignment]
            self._receiving = flight
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        flight = self._receiving
        if flight is None:
            super().on_body(body)
        elif not flight.response_complete:
            flight.nbytes += len(body)
            limit = self._app.max_body_nbytes
            if flight.nbytes <= limit:
                flight.chunks.append(body)
            else:
                flight.chunks.clear()
                flight.keep_alive = False
                self._answer(flight, error_reply(TooLarge(f"body: at most {limit} bytes wanted, got more")))

    def on_message_complete(self) -> None:
        self._on_boundary = True
        flight, self._receiving = self._receiving, None
        whole, self._whole = self._whole, None
        if flight is None:
            super().on_message_complete()
        elif not flight.response_complete:
            if whole is not None and flight.keep_alive:
                self._app.heads.keep(whole, flight.route, flight.headers)
            body = flight.chunks[0] if len(flight.chunks) == 1 else b"".join(flight.chunks)
            flight.chunks.clear()
            if self.leaving:
                # Once all that was read is parsed: a reply is to know what is behind it.
                self.loop.call_soon(self._start, flight, body)
            else:
                self._start(flight, body)

    def _start(self, flight: Flight, body: bytes) -> None:
        try:
            self._app.start(flight.route, flight.headers, body, lambda answer: self._answer(flight, answer))
        except FreshetError as error:
            self._answer(flight, error_reply(error))
        except Exception:
            self._answer(flight, internal_error(flight.headers))

    def give_up(self) -> None:
        """See LeavingProtocol."""
        flight: Any = self.cycle
        if isinstance(flight, Flight) and not flight.response_complete:
            flight.keep_alive = False
            self._answer(flight, error_reply(NotReady("server: draining")))
            # Its reply may still come.
            flight.disconnected = True

    def _predict_route(self) -> Route | None:
        """The route, if this request can be answered here."""
        if not self.url.endswith(PREDICT_SUFFIXES) or self.parser.get_method() != b"POST":
            return None
        if not self._free() or self.expect_100_continue or self.parser.get_http_version() != "1.1":
            return None
        if self.limit_concurrency is not None or self.parser.should_upgrade():
            return None
        try:
            route = parse(self.url)
        except FreshetError:
            return None
        return route if route.action in DIALECTS else None

    def _answer(self, flight: Flight, answer: Answer) -> None:
        status, body, headers = answer
        flight.response_complete = True
        protocol, seconds = DIALECTS[flight.route.action].protocol, time.perf_counter() - flight.start_s
        self._app.metrics.observe(protocol, status, seconds)
        request_id = flight.headers.get(REQUEST_ID)
        if self._app.access is not None:
            target = f"{flight.route.model}:{flight.route.action}"
            self._app.access(protocol, target, status, seconds, request_id_of(flight.headers), len(body))
        if flight.disconnected or self.transport.is_closing():
            return
        if self.leaving and self._ends():
            flight.keep_alive = False
        said = CLOSE in headers
        start = _head(status, tuple(headers), flight.keep_alive or said)
        flight.keep_alive = flight.keep_alive and not said
        parts = (
            start,
            _lines(tuple(self.server_state.default_headers)),
            # Not among the lines that are kept: there is another one in every reply.
            b"" if request_id is None else b"x-request-id: %b\r\n" % request_id[:MAX_REQUEST_ID_NBYTES],
            b"content-length: %d\r\n\r\n" % len(body),
            body,
        )
        self.transport.write(b"".join(parts))
        if not flight.keep_alive:
            self.transport.close()
        self.on_response_complete()

    # A timer that is set and cancelled with every request costs as much as parsing the request. This one is set once
    # a connection and looks, when it goes off, whether the connection has been idle for the whole time.

    def _unset_keepalive_if_required(self) -> None:
        if self.transport.is_closing():
            super()._unset_keepalive_if_required()

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        idle_s = 0.0 if self._idle_since_s is None else self.loop.time() - self._idle_since_s
        if idle_s >= self.timeout_keep_alive:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive - idle_s, self.timeout_keep_alive_handler
            )


@lru_cache(maxsize=1024)
def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


@lru_cache(maxsize=1024)
def _head(status: int, headers: tuple[tuple[bytes, bytes], ...], keep_alive: bool) -> bytes:
    """The first lines of a reply: what they say is the same for thousands of them."""
    return STATUS_LINE[status] + _lines(headers) + (b"" if keep_alive else b"connection: close\r\n")
