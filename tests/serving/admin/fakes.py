"""An admin port over a FakeProcessor, asked without a socket."""

import asyncio

import httpx

from serving.admin.api import create_admin
from serving.lifecycle import Lifecycle
from serving.telemetry.metrics import Metrics
from tests.serving.fakes import FakeProcessor


class Client:
    """Requests to an admin application over a fake processor, each on an event loop of its own."""

    def __init__(self, base="http://127.0.0.1:8502", **options):
        self.lifecycle = Lifecycle()
        self.processor = FakeProcessor()
        self.metrics = Metrics(self.lifecycle)
        self.lifecycle.open(self.processor)
        self.app = create_admin(self.lifecycle, self.metrics, **options)
        self.base = base

    def __call__(self, method, path, **request):
        async def ask():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self.base) as client:
                return await client.request(method, path, **request)

        return asyncio.run(ask())
