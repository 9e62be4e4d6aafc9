"""Authorize requests to the admin port, as an ASGI layer in front of all its routes.

In this order: without API keys, the Host header must be a name that only this machine could mean, which stops DNS
rebinding; a browser's request must come from the port's own page (serving.http.origin_checks); the bearer token must be
a key with the scope of the route (serving.access), such as the admin token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from freshet_serving.processor.errors import FreshetError
from freshet_serving.serving.access.access_guard import AccessGuard, Forbidden, Permit
from freshet_serving.serving.access.scopes import FEATURES, OPEN, admin_scope
from freshet_serving.serving.http import origin_checks
from freshet_serving.serving.http.asgi import Receive, Scope, Send, error_reply, reply

READS = ("GET", "HEAD")
KEY_NAME = "freshet.key"
"""Key of the ASGI scope for the name of the request's API key, which the audit trail uses."""
SHOWS_FEATURES = "freshet.shows_features"
"""Key of the ASGI scope for whether the request's API key may see features that the server looks up."""


class Authorization:
    """ASGI middleware in front of an application; without a guard no keys are checked. `host` is the port's address."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], guard: AccessGuard | None, host: str
    ) -> None:
        self.app = app
        self._guard = guard
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            permit = self._admit(scope)
        except FreshetError as error:
            status, body, headers = error_reply(error)
            await reply(send, status, body, headers)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            if permit is not None:
                permit.end()

    def _admit(self, scope: Scope) -> Permit | None:
        headers, method = dict(scope["headers"]), scope["method"]
        refusal = origin_checks.repeated_refusal(scope["headers"])
        if self._guard is None:
            refusal = refusal or origin_checks.rebinding_refusal(headers, self._host)
        refusal = refusal or origin_checks.cross_site_refusal(headers, changes=method not in READS)
        if refusal:
            raise Forbidden(refusal)
        if self._guard is None:
            return None
        address = scope["client"][0] if scope.get("client") else ""
        required, authorization = admin_scope(method, scope["path"]), headers.get(b"authorization")
        permit = self._guard.acquire(required, authorization, address)
        if required != OPEN:
            scope[KEY_NAME] = self._guard.name_of(authorization)
            scope[SHOWS_FEATURES] = self._guard.has(FEATURES, authorization)
        return permit
