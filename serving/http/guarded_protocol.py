"""A connection of the HTTP port where keys are asked for: every request meets the guard once its head is read.

Chosen for a port when it is made: where no keys are asked for, connections are PredictProtocol's and ask nothing.

Invariants
- A request meets the guard once, before a byte of its body is kept, and before the application sees it. One whose head
  is known by its bytes has met it no earlier: what is known is what the head says, not who may say it.
- What was entered for a request is left when its reply is written, when its task ends, or when its client has gone
  before it was whole; a client that leaves while its request is computed has it in flight until then.
- A refusal keeps the connection where the body is short enough to be read and dropped: a client that asks too often is
  to come back later, not to connect anew.
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
from freshet_serving.serving.http.http_head import RequestHead, split_target
from freshet_serving.serving.http.paths import Route, parse
from freshet_serving.serving.http.protocol import InFlightRequest, PredictProtocol

AUTHORIZATION = b"authorization"
# As much of a refused request's body is read and dropped.
MAX_DROPPED_NBYTES = 1 << 20
NO_ROUTE = Route("unknown")


class RejectedRequest(InFlightRequest):
    """A request that the guard has refused, while its body comes."""

    __slots__ = ("error",)

    error: FreshetError


class GuardedProtocol(PredictProtocol):
    """One connection of a guarded HTTP port."""

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

    def _add(self, piece: bytes | bytearray) -> None:
        if type(self.cycle) is RejectedRequest:
            # Nobody has it in memory, so it keeps nobody else's body out.
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
            # Its head was known, so the guard has not met it.
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
        """Answers once the body has come, or at once where that is not worth while."""
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
    """What is no route asks for the scope that nearly all do: who has it hears that there is none."""
    return PREDICT if route is NO_ROUTE else HTTP_SCOPES.get(route.action, ADMIN_WRITE)
