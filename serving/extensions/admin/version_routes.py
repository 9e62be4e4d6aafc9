"""Routes of decisions about full versions: list them, release one, reject one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import Field

from freshet_serving.serving.codecs.validation import StrictModel
from freshet_serving.serving.codecs.wire import show
from freshet_serving.serving.extensions.admin.admin_bodies import Name, Version, documented, json_reply, read_json
from freshet_serving.serving.extensions.admin.audit_trail import AuditTrail
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.lifecycle import Availability

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost


class DecisionRequest(StrictModel):
    reason: str = Field("", max_length=500, description="Reason; recorded beside the versions.")


class VersionRoutes:
    """The routes; `bulk` runs decisions, which may load a version: None for the threads of all other operations."""

    def __init__(self, lifecycle: Availability[ModelHost], trail: AuditTrail, bulk: Executor | None) -> None:
        self._lifecycle, self._trail, self._bulk = lifecycle, trail, bulk

    def add_to(self, app: FastAPI) -> None:
        versions = "/admin/models/{name}/versions"
        app.get(versions)(self.versions)
        app.post(f"{versions}/{{version}}/release", openapi_extra=documented(DecisionRequest))(self.release)
        app.post(f"{versions}/{{version}}/reject", openapi_extra=documented(DecisionRequest))(self.reject)

    async def versions(self, name: Name) -> Response:
        """Return the versions of a model, newest first: served, available, held, withdrawn or candidate, and why."""
        processor = self._lifecycle.processor()
        return json_reply({"model": name, "versions": await in_thread(None, lambda: processor.versions(name))})

    async def release(self, name: Name, version: Version, request: Request) -> Response:
        """Let every server of the repository choose a version that was held, withdrawn or kept as a candidate."""
        return await self._decide("release", name, version, request, self._lifecycle.processor().release_version)

    async def reject(self, name: Name, version: Version, request: Request) -> Response:
        """Withdraw a version on every server of the repository, or remove a candidate."""
        return await self._decide("reject", name, version, request, self._lifecycle.processor().reject_version)

    async def _decide(
        self, verb: str, name: str, version: int, request: Request, act: Callable[[str, int, str], list[str]]
    ) -> Response:
        reason = (await read_json(request, DecisionRequest)).reason
        line = f"{verb} {name!r} version {version}" + (f": {show(reason)}" if reason else "")
        events: Any = await self._trail.run(request, line, lambda: act(name, version, reason), self._bulk)
        return json_reply({"model": name, "version": version, "events": events})
