"""Check API keys on a connection of the HTTP port: the guard sees every request once its head is read.

Invariants
- The guard checks a request once, before a byte of its body is kept and before the application sees it, whether its
  head is cached or not: the cache does not store who may send it.
- A permit is released when its reply is written, when its task ends, or when its client disconnects before the request
  was complete. If the client disconnects while its request is computed, the permit is held until then.
- A refused request keeps its connection if its body is short enough to be read and dropped: a client over its rate
  limit should retry later, without connecting anew.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from freshet_serving.processor.errors import FreshetError
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.access.scopes import ADMIN_WRITE, HTTP_SCOPES, PREDICT
from freshet_serving.serving.codecs.wire import Body
from freshet_serving.serving.http.app import Answer
from freshet_serving.serving.http.asgi import error_reply
from freshet_serving.serving.http.http_head import Head, RequestHead, split_target
from freshet_serving.serving.http.paths import Route, parse
from freshet_serving.serving.http.protocol import InFlightRequest, PredictProtocol

AUTHORIZATION = b"authorization"
# At most this much of a refused request's body is read and dropped.
MAX_DROPPED_NBYTES = 1 << 20
NO_ROUTE = Route("unknown")


class RejectedRequest(InFlightRequest):
    """A request that the guard has refused, while its body arrives."""

    __slots__ = ("error",)

    error: FreshetError


class GuardedProtocol(PredictProtocol):
    def __init__(self, *args: Any, guard: AccessGuard, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard = guard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = self._client[0] if self._client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None and isinstance(self.cycle, InFlightRequest):
            self.cycle.permit.end()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.cycle.permit.end()
        super().on_response_complete()

    def _begin(self, head: RequestHead) -> None:
        route = _route_of(head.target)
        try:
            permit = self._guard.acquire(_scope_of(route), head.headers.get(AUTHORIZATION), self._address)
        except FreshetError as error:
            self._turn_away(head, route, error)
            return
        before = self.cycle
        try:
            super()._begin(head)
        finally:
            if self.cycle is before:
                permit.end()
            else:
                self.cycle.permit = permit

    def _refuse_at_head(self, head: Head) -> bool:
        # The guard checks the key first: a client without one must not learn what the server is busy with.
        return False

    def _add(self, piece: bytes | bytearray) -> None:
        if type(self.cycle) is RejectedRequest:
            # The body is not kept in memory, so it must not count against other bodies.
            self._forget_body()
        else:
            super()._add(piece)

    def _complete(self) -> None:
        if type(self.cycle) is RejectedRequest:
            self._answer(self.cycle, error_reply(self.cycle.error))
        else:
            super()._complete()

    def _start(self, pending: InFlightRequest, body: Body) -> None:
        if not hasattr(pending, "permit"):
            # Its head was cached, so the guard has not checked it yet.
            try:
                pending.permit = self._guard.acquire(PREDICT, pending.headers.get(AUTHORIZATION), self._address)
            except FreshetError as error:
                pending.permit = self._guard.no_permit
                self._answer(pending, error_reply(error))
                return
        super()._start(pending, body)

    def _answer(self, pending: InFlightRequest, answer: Answer) -> None:
        pending.permit.end()
        super()._answer(pending, answer)

    def _task_done(self, cycle: RequestResponseCycle, task: asyncio.Task[None]) -> None:
        cycle.permit.end()  # type: ignore[attr-defined]
        super()._task_done(cycle, task)

    def _turn_away(self, head: RequestHead, route: Route, error: FreshetError) -> None:
        """Answer once the body has arrived, or at once if it is too long to be dropped."""
        if head.expects or head.nbytes is None or head.nbytes > MAX_DROPPED_NBYTES:
            raise error
        self.cycle = refused = RejectedRequest(route, head.headers, head.keep_alive)
        refused.body, refused.prefix_nbytes, refused.error, refused.permit = b"", 0, error, self._guard.no_permit


def _route_of(target: bytes) -> Route:
    try:
        return parse(split_target(target)[0])
    except FreshetError:
        return NO_ROUTE


def _scope_of(route: Route) -> str:
    """Return the scope of a route; an unknown path needs the most common scope, whose holders then get 404."""
    return PREDICT if route is NO_ROUTE else HTTP_SCOPES.get(route.action, ADMIN_WRITE)
