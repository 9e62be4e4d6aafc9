"""Serve read-only views of one model: its timeline, its tables, its trials, and an example request.

No view takes a model's lock or requests anything from workers beyond their regular reports, and each is bounded, so a
page may use them while the model is busy.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import Response

from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.versions.overview import describe_tables
from freshet_serving.processor.versions.routes import find
from freshet_serving.processor.versions.timeline import MOST
from freshet_serving.serving.extensions.admin.admin_bodies import Name, json_reply
from freshet_serving.serving.extensions.admin.example_requests import ExampleRequests
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.lifecycle import Availability

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost

Loaded = Annotated[
    int | None,
    Query(gt=0, lt=2**63, description="The version; by default the one that serves requests without a version."),
]
Most = Annotated[int, Query(gt=0, le=MOST, description="Maximum number of records.")]


class ModelViews:
    def __init__(
        self, lifecycle: Availability[ModelHost], examples: ExampleRequests, data_address: tuple[str, int] | None = None
    ) -> None:
        self._lifecycle, self._examples = lifecycle, examples
        self._data_port = data_address[1] if data_address else None

    def add_to(self, app: FastAPI) -> None:
        for view in (self.timeline, self.tables, self.canaries, self.signature, self.user_state):
            app.get(f"/admin/models/{{name}}/{view.__name__}")(view)

    async def timeline(self, name: Name, version: Loaded = None, most: Most = 200) -> Response:
        """Return the newest records of a version's chain, each delta with its state on this server."""
        model = find(self._lifecycle.processor().catalogue, name)
        return json_reply(await in_thread(None, partial(model.timeline, model.pick(version).manifest.version, most)))

    async def tables(self, name: Name, version: Loaded = None) -> Response:
        """Return the tables of a version: rows, memory, and the number of lookups that found no row."""
        return json_reply(await in_thread(None, partial(describe_tables, self._lifecycle.processor(), name, version)))

    async def canaries(self, name: Name) -> Response:
        """Return the canaries that are on trial: their measurements, the baseline's, and the bounds."""
        return await self._report(name, "canaries", "trials")

    async def user_state(self, name: Name) -> Response:
        """Return what became of looks for users' parts, by version: found, or not and why, age, memory, work saved."""
        return await self._report(name, "user_state", "user_state")

    async def _report(self, name: str, report: str, extension: str) -> Response:
        make = ENGINE.get("reports", report)
        if make is None:
            raise missing(report, extension)
        return json_reply(await in_thread(None, partial(make, self._lifecycle.processor(), name)))

    async def signature(self, name: Name, version: Loaded = None) -> Response:
        """Return inputs and outputs of a version, with a recorded, recent, warm-up or made-up request."""
        version_ = find(self._lifecycle.processor().catalogue, name).pick(version)
        signature: dict[str, Any] = await in_thread(None, partial(self._examples.signature, version_))
        return json_reply({**signature, "data_port": self._data_port})
