"""Answer predict requests below ASGI, without task, scope or event queue, for the routes with nearly all traffic.

POSTs to a predict route are collected, decoded, submitted and answered in the connection's own callbacks, with one
transport.write. Other requests (another route, HTTP/1.0) go to the ASGI application, which serves every route.

A request that arrives whole in one read and whose head is cached (serving.http.http_head) is not parsed; in
overload it is refused by its head alone.

Invariants: one request is in flight on a connection, whichever way it takes; an unanswered InFlightRequest is in
`cycle`. A reply is written at most once, and only to an open connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from functools import partial
from typing import Any

from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.serving.access.access_guard import Permit
from freshet_serving.serving.codecs.wire import CONTENT_ENCODING, Body, Headers, SizeLimit
from freshet_serving.serving.front.resource_limits import SPARE_NBYTES
from freshet_serving.serving.http.app import Answer, DataApp, internal_error
from freshet_serving.serving.http.asgi import error_reply
from freshet_serving.serving.http.connection import HttpConnection, header_lines, reply_head
from freshet_serving.serving.http.connection_draining import CLOSE
from freshet_serving.serving.http.dialects import DIALECTS
from freshet_serving.serving.http.http_head import Head, RequestHead
from freshet_serving.serving.http.paths import Route, parse
from freshet_serving.serving.http.request_body import SHORT_NBYTES, BodyBuffer
from freshet_serving.serving.request_headers import MAX_REQUEST_ID_NBYTES, REQUEST_ID, request_id_of

# tcpi_last_data_recv of linux/tcp.h: milliseconds since data was last received.
TCP_INFO_NBYTES = 56
LAST_DATA_RECEIVED, LAST_DATA_RECEIVED_AT = struct.Struct("=I"), 52
PREDICT_SUFFIXES = tuple(dialect.suffix.encode() for dialect in DIALECTS.values())


class InFlightRequest:
    """A predict request between its head and its reply, with the attributes of a cycle that its connection uses.

    Attributes:
        body: What has arrived of the body, while it arrives in pieces.
        nbytes: Declared length of the body; None for a chunked one.
        prefix_nbytes: Length of the prefix by which the request can be validated before the rest arrives; 0 once that
            is done, or if it cannot.
        permit: The guard's permit, on guarded ports only (serving.http.guarded_protocol).
    """

    __slots__ = (
        "body",
        "bound",
        "disconnected",
        "headers",
        "keep_alive",
        "nbytes",
        "permit",
        "prefix_nbytes",
        "response_complete",
        "route",
        "start_s",
    )  # fmt: skip

    # No task waits for it here.
    message_event = asyncio.Event()

    body: bytes | bytearray | BodyBuffer
    bound: SizeLimit
    nbytes: int | None
    prefix_nbytes: int
    permit: Permit

    def __init__(self, route: Route, headers: Headers, keep_alive: bool) -> None:
        self.route, self.headers, self.keep_alive = route, headers, keep_alive
        self.start_s = time.perf_counter()
        self.response_complete = self.disconnected = False


class PredictProtocol(HttpConnection):
    def __init__(self, *args: Any, data_app: DataApp, **options: Any) -> None:
        super().__init__(*args, bodies=data_app.bodies, **options)
        self._app = data_app
        # Bytes received at rest, while they may be one whole request.
        self._whole: bytes | None = None

    def data_received(self, data: bytes) -> None:
        if self._at_rest:
            split = self._app.heads.split(data)
            if split is not None:
                head, body = split
                if head.route is self._app.shed and self._refuse_at_head(head):
                    return
                self._at_rest = False
                self.cycle = pending = InFlightRequest(head.route, head.headers, True)
                self._bodies.nbytes += head.nbytes
                self._body_nbytes = head.nbytes
                self._start(pending, body)
                return
            self._whole = data
        super().data_received(data)
        self._whole = None

    def _refuse_at_head(self, head: Head) -> bool:
        """Refuse a request in overload without reading it; False if it has to be read."""
        if self.draining or self._half_closed or self.flow.write_paused or self.transport.is_closing():
            return False
        answer = self._app.refusal(head, self._unread_s)
        if answer is None:
            return False
        status, body, headers = answer
        parts = (
            reply_head(status, tuple(headers), True),
            header_lines(tuple(self.server_state.default_headers)),
            b"content-length: %d\r\n\r\n" % len(body),
            body,
        )
        self.transport.write(b"".join(parts))
        self.server_state.total_requests += 1
        self._deadline_timer.wait(self._idle_s)
        return True

    def _begin(self, head: RequestHead) -> None:
        route = self._predict_route(head)
        if route is None:
            super()._begin(head)
            return
        self.cycle = pending = InFlightRequest(route, head.headers, head.keep_alive)
        pending.body = b""
        pending.bound = DIALECTS[route.action].bound(head.headers, self._app.limits)
        pending.nbytes, pending.prefix_nbytes = head.nbytes, 0
        pending.bound.check(head.nbytes or 0)
        if head.nbytes is not None and head.nbytes > SHORT_NBYTES and CONTENT_ENCODING not in head.headers:
            prefix_nbytes = DIALECTS[route.action].parsed(head.nbytes, head.headers)
            pending.prefix_nbytes = prefix_nbytes if prefix_nbytes <= SHORT_NBYTES else 0
        if head.expects:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _add(self, piece: bytes | bytearray) -> None:
        pending = self.cycle
        if type(pending) is not InFlightRequest:
            super()._add(piece)
            return
        pending.bound.check(len(pending.body) + len(piece), got="more")
        if not pending.body:
            pending.body = piece
        else:
            if not isinstance(pending.body, BodyBuffer):
                pending.body = BodyBuffer(pending.body, pending.nbytes)
            pending.body.add(piece)
        if 0 < pending.prefix_nbytes <= len(pending.body):
            text, pending.prefix_nbytes = _beginning(pending.body, pending.prefix_nbytes), 0
            self._app.validate_prefix(pending.route, pending.headers, text)

    def _complete(self) -> None:
        pending = self.cycle
        if type(pending) is not InFlightRequest:
            super()._complete()
            return
        if self._whole is not None and pending.keep_alive:
            self._app.heads.keep(self._whole, pending.route, pending.headers)
        body, pending.body = pending.body, b""
        self._start(pending, body.whole() if isinstance(body, BodyBuffer) else bytes(body))

    def _start(self, pending: InFlightRequest, body: Body) -> None:
        try:
            self._bodies.check(SPARE_NBYTES)
            answered = partial(self._answer, pending)
            self._app.start(pending.route, pending.headers, body, answered, self._unread_s)
        except FreshetError as error:
            self._answer(pending, error_reply(error))
        except Exception:
            self._answer(pending, internal_error(pending.headers))

    def _unread_s(self) -> float:
        """Return how long the last bytes read waited in the kernel, to about 4 ms; 0 if the system cannot tell."""
        try:
            tcp_info = self.transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_NBYTES
            )
        except (AttributeError, OSError):
            return 0.0
        return (
            LAST_DATA_RECEIVED.unpack_from(tcp_info, LAST_DATA_RECEIVED_AT)[0] / 1e3
            if len(tcp_info) == TCP_INFO_NBYTES
            else 0.0
        )

    def _refuse(self, error: FreshetError) -> None:
        pending = self.cycle
        if type(pending) is InFlightRequest and self._busy:
            pending.body = b""
            pending.keep_alive = False
            self._answer(pending, error_reply(error))
            return
        self._app.metrics.observe("http", error.http_status, 0.0)
        super()._refuse(error)

    def give_up(self) -> None:
        """Answer the request in flight with 503, without another answer later."""
        pending: Any = self.cycle
        if isinstance(pending, InFlightRequest) and not pending.response_complete:
            pending.keep_alive = False
            self._answer(pending, error_reply(NotReady("server: draining")))
            # The result may still arrive.
            pending.disconnected = True

    def _predict_route(self, head: RequestHead) -> Route | None:
        if not head.target.endswith(PREDICT_SUFFIXES) or head.method != b"POST" or head.version != "1.1":
            return None
        try:
            route = parse(head.target)
        except FreshetError:
            return None
        return route if route.action in DIALECTS else None

    def _answer(self, pending: InFlightRequest, answer: Answer) -> None:
        status, body, headers = answer
        pending.response_complete = True
        seconds = time.perf_counter() - pending.start_s
        try:
            protocol = DIALECTS[pending.route.action].protocol
        except KeyError:
            # A request that a guard has refused may have any route.
            protocol = "http"
        self._app.metrics.observe(protocol, status, seconds)
        request_id = pending.headers.get(REQUEST_ID)
        if self._app.access is not None:
            target = f"{pending.route.model}:{pending.route.action}"
            self._app.access(protocol, target, status, seconds, request_id_of(pending.headers), len(body))
        if pending.disconnected or self.transport.is_closing():
            self._forget_body()
            return
        if self.draining and self._ends():
            pending.keep_alive = False
        pending.keep_alive = pending.keep_alive and CLOSE not in headers
        parts = (
            reply_head(status, tuple(headers), pending.keep_alive),
            header_lines(tuple(self.server_state.default_headers)),
            # Separate from the cached lines: it differs in every reply.
            b"" if request_id is None else b"x-request-id: %b\r\n" % request_id[:MAX_REQUEST_ID_NBYTES],
            b"content-length: %d\r\n\r\n" % len(body),
            body,
        )
        self.transport.write(b"".join(parts))
        if not pending.keep_alive:
            self.transport.close()
        self.on_response_complete()


def _beginning(body: bytes | bytearray | BodyBuffer, nbytes: int) -> bytes:
    return body.beginning(nbytes) if isinstance(body, BodyBuffer) else bytes(body[:nbytes])
