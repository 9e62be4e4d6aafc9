"""An admin port over a FakeProcessor, asked without a socket."""

import asyncio

import httpx

from freshet_serving.processor.clock import SystemClock
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.access.key_file import ApiKeys
from freshet_serving.serving.access.rate_limiter import RateLimiter, rate_limiter_memory
from freshet_serving.serving.extensions.admin.api import create_admin
from freshet_serving.serving.extensions.explaining.explain_route import ExplainRoute
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.fakes import FakeProcessor


def guard_of(keys):
    """A guard that lets in these keys, of a server with nobody else to count."""
    return AccessGuard(keys, RateLimiter(rate_limiter_memory(1), 0, SystemClock()))


class Client:
    """Requests to an admin application over a fake processor, each on an event loop of its own."""

    def __init__(self, base="http://127.0.0.1:8502", token="", **options):
        if token:
            options["guard"] = guard_of(ApiKeys().with_admin_token(token))
        self.lifecycle = Lifecycle()
        self.processor = FakeProcessor()
        self.metrics = Metrics(self.lifecycle)
        self.lifecycle.open(self.processor)
        options.setdefault("routes", {"explain": ExplainRoute(self.lifecycle)})
        self.app = create_admin(self.lifecycle, self.metrics, **options)
        self.base = base

    def __call__(self, method, path, **request):
        async def ask():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self.base) as client:
                return await client.request(method, path, **request)

        return asyncio.run(ask())
