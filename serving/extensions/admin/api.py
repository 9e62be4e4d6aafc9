"""Assemble the admin port, a FastAPI application behind Authorization, from its routes.

Processor calls that load or apply run in worker threads: the admin port's event loop stays free, and the data port's
loop is not involved. Long operations may have threads of their own, at low priority (serving.loading.priority).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from freshet_serving.processor.errors import FreshetError, shortage
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.ports import missing
from freshet_serving.processor.versions.version_rollback import RollbackTarget
from freshet_serving.processor.watching import LabelSums
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.codecs.validation import StrictModel, first_problem
from freshet_serving.serving.codecs.wire import dump_json, show
from freshet_serving.serving.extensions.admin.admin_bodies import (
    Name,
    Version,
    documented,
    json_reply,
    read_json,
    read_whole,
)
from freshet_serving.serving.extensions.admin.audit_trail import AuditTrail
from freshet_serving.serving.extensions.admin.authorization import Authorization
from freshet_serving.serving.extensions.admin.console_files import ConsoleFiles
from freshet_serving.serving.extensions.admin.erase_route import EraseRoute
from freshet_serving.serving.extensions.admin.example_requests import ExampleRequests
from freshet_serving.serving.extensions.admin.live_samples import LiveSamples
from freshet_serving.serving.extensions.admin.live_stream import LiveStreams
from freshet_serving.serving.extensions.admin.model_views import ModelViews
from freshet_serving.serving.extensions.admin.try_call import TryCalls
from freshet_serving.serving.extensions.admin.version_routes import VersionRoutes
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.http.asgi import error_body, error_reply
from freshet_serving.serving.http.pages import PAGE_HEADERS, reference
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.loading.priority import BULK_NBYTES
from freshet_serving.serving.ports import Routes
from freshet_serving.serving.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from freshet_serving.processor.versions.changes import RollbackResult
    from freshet_serving.processor.versions.host import ModelHost

MAX_DELTA_NBYTES = 4 << 30
EXTENSIONS = {"explain": "explaining"}
"""Routes of a model that are extensions', by the last part of their path."""

UPLOAD = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
REFUSED = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": REFUSED}}}
    for status, text in {
        400: "The request or the file that it names is invalid; the message says what was expected.",
        404: "The model, version or label does not exist.",
        409: "The change conflicts with the current state: a delta out of order, or a version that a label points at.",
        413: "The body is too large.",
        503: "The server is loading models or draining.",
    }.items()
}


class DeltaPath(StrictModel):
    path: str = Field(min_length=1, max_length=4096, description="Path of a delta file inside the repository.")


class RollbackRequest(StrictModel):
    generation: str = Field(
        "",
        max_length=40,
        description="An earlier generation, such as 3.16, or a version, such as 3; by default what was served before.",
    )
    reason: str = Field("", max_length=500, description="Reason; recorded in the chain.")
    only: Literal["", "model", "entities"] = Field(
        "", description="Take back one part alone, with a delta: rows and weights, or the features of entities."
    )


class HeldDeltasRequest(StrictModel):
    version: int | None = Field(None, gt=0, lt=2**63, description="The version; by default the newest.")
    reason: str = Field("", max_length=500, description="Reason; recorded in the chain.")


class JoinedLabels(StrictModel):
    generation: str = Field(max_length=40, description="Generation that scored the rows, such as 3.16.")
    scores: float = Field(ge=0, description="Sum of the rows' scores.")
    labels: float = Field(ge=0, description="Sum of the rows' labels.")
    rows: int = Field(gt=0, lt=2**63, description="Number of rows.")


class SessionCount(StrictModel):
    sessions: int = Field(gt=0, le=1024)


class LabelRequest(StrictModel):
    version: int = Field(gt=0, lt=2**63)


class Policy(StrictModel):
    """A model's policy; documented in docs/how-to/models.md."""

    versions: str | list[int] | None = None
    split: dict[str, int | float] | None = None
    sticky_input: str | None = Field(None, max_length=128)
    split_salt: int | None = None
    shadow: str | None = Field(None, max_length=128)
    shadow_share: float | None = None
    guard: dict[str, int | float] | None = None
    delta_guard: dict[str, int | float | str] | None = None
    unjudged: str | None = Field(None, max_length=16)
    bake_s: int | float | None = None
    user_state: str | dict[str, Any] | None = None
    max_rows: int | None = None
    max_ids: int | None = None
    max_cells: int | None = None


def create_admin(
    lifecycle: Availability[ModelHost],
    metrics: Metrics,
    *,
    guard: AccessGuard | None = None,
    host: str = "127.0.0.1",
    bulk: Executor | None = None,
    live: LiveSamples | None = None,
    data_address: tuple[str, int] | None = None,
    tls: bool = False,
    recordings: str = "",
    routes: Mapping[str, Routes] | None = None,
) -> Authorization:
    """Create the admin port's ASGI application.

    Args:
        guard: Checks API keys; None for no keys.
        host: Address that the port is bound to.
        bulk: Runs large deltas, loads and explanations; None for the threads of all other operations.
        live: Samples for the console; their owner starts and stops them.
        data_address: Host and port of the data port, for requests that are tried; with `tls` it speaks TLS.
        recordings: The folder of recorded requests; "" for none.
        routes: Routes of extensions by the last part of their path.
    """
    # FastAPI's own documentation pages would load scripts from other hosts.
    app = FastAPI(
        title="Freshet admin", openapi_url="/admin/openapi.json", docs_url=None, redoc_url=None, responses=REFUSALS
    )
    _handle_errors(app, data_address)
    trail, of_extensions = AuditTrail(), routes or {}
    admin, model = Admin(lifecycle, metrics, bulk, trail), "/admin/models/{name}"
    app.get("/docs", include_in_schema=False)(admin.docs)
    app.get("/admin/health")(admin.health)
    app.get("/admin/models")(admin.models)
    app.post(f"{model}/deltas", openapi_extra=documented(DeltaPath, **UPLOAD))(admin.apply_delta)
    app.post(f"{model}/rollback", openapi_extra=documented(RollbackRequest))(admin.rollback)
    app.post(f"{model}/release", openapi_extra=documented(HeldDeltasRequest))(admin.release)
    app.post(f"{model}/reject", openapi_extra=documented(HeldDeltasRequest))(admin.reject)
    app.post(f"{model}/calibration", openapi_extra=documented(JoinedLabels))(admin.calibrate)
    for part in of_extensions.values():
        part.add_to(app)
    for name, extension in EXTENSIONS.items():
        if name not in of_extensions:
            app.post(f"{model}/{name}", include_in_schema=False)(_refused(name, extension))
    app.post(f"{model}/versions/{{version}}/load")(admin.load)
    app.post(f"{model}/versions/{{version}}/unload")(admin.unload)
    app.put(f"{model}/labels/{{label}}", openapi_extra=documented(LabelRequest))(admin.set_label)
    app.delete(f"{model}/labels/{{label}}")(admin.remove_label)
    app.put(f"{model}/policy", openapi_extra=documented(Policy))(admin.set_policy)
    app.post(f"{model}/versions/{{version}}/readmit")(admin.readmit)
    app.put("/admin/sessions", openapi_extra=documented(SessionCount))(admin.resize)
    app.put("/admin/groups/{group}", openapi_extra=documented(SessionCount))(admin.resize_one)
    parts: tuple[Routes, ...] = (
        ConsoleFiles(),
        LiveStreams(live or LiveSamples(lifecycle, metrics)),
        ModelViews(lifecycle, ExampleRequests(recordings), data_address),
        VersionRoutes(lifecycle, trail, bulk),
        EraseRoute(lifecycle, trail, bulk, bool(recordings)),
        TryCalls(data_address, tls, lifecycle),
        trail,
    )
    for part in parts:
        part.add_to(app)
    return Authorization(app, guard, host)


class Admin:
    """The admin port's operations, each a route. Their docstrings are the descriptions in OpenAPI."""

    def __init__(
        self, lifecycle: Availability[ModelHost], metrics: Metrics, bulk: Executor | None, trail: AuditTrail
    ) -> None:
        self._lifecycle, self._metrics, self._bulk, self._trail = lifecycle, metrics, bulk, trail

    async def docs(self) -> HTMLResponse:
        return HTMLResponse(reference("/admin/openapi.json"), headers=PAGE_HEADERS)

    async def health(self) -> Response:
        """Tell whether the server is up, and whether it is ready for predictions."""
        return json_reply({"live": True, "ready": self._lifecycle.ready, **self._lifecycle.reasons})

    async def models(self) -> Response:
        """Return versions, labels, generation, freshness, sessions, memory and measured choices of every model."""
        processor = self._lifecycle.processor()
        info = await in_thread(None, processor.info)
        requests = await in_thread(None, self._metrics.requests)
        answered = {name: {**model, "requests": requests.get(name, 0)} for name, model in info["models"].items()}
        return json_reply({**info, "ready": self._lifecycle.ready, "models": answered})

    async def apply_delta(self, name: Name, request: Request) -> Response:
        """Apply one delta, uploaded or named by its path; reply when every session serves it."""
        processor, executor = self._lifecycle.processor(), None
        delta: dict[str, Any]
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "application/json":
            delta = {"path": (await read_json(request, DeltaPath)).path}
            origin = f"path {show(delta['path'])}"
        else:
            # Any other content type that curl and client libraries send: the body is the file, and its checksums verify
            # it.
            data = await read_whole(request, MAX_DELTA_NBYTES)
            delta, origin = {"data": data}, f"upload of {len(data)} bytes"
            executor = self._bulk if len(data) > BULK_NBYTES else None
        change = f"apply delta to {name!r}: {origin}"
        applied = await self._trail.run(request, change, lambda: processor.apply_delta(name, **delta), executor)
        return json_reply(
            {
                "model": applied.model,
                "generation": str(applied.generation),
                "rows": applied.rows,
                "removed": applied.removed,
                "apply_ms": applied.apply_ms,
            }
        )

    async def rollback(self, name: Name, request: Request) -> Response:
        """Roll back to an earlier generation or version, on every server of the repository."""
        processor = self._lifecycle.processor()
        body = await read_json(request, RollbackRequest)
        target, reason, only = body.generation, body.reason, body.only
        goal = str(RollbackTarget.parse(target)) if target else "what was served before"
        change = f"roll {only and f'the {only} of '}{name!r} back to {goal}{_because(reason)}"
        result = await self._trail.run(request, change, lambda: processor.rollback(name, target, reason, only))
        return json_reply(_rollback_reply(name, result, only))

    async def release(self, name: Name, request: Request) -> Response:
        """Release the held deltas of a version, on every server of the repository."""
        processor, body = self._lifecycle.processor(), await read_json(request, HeldDeltasRequest)
        change = f"release held deltas of {name!r}{_because(body.reason)}"
        act = partial(processor.release_deltas, name, body.version, body.reason)
        return json_reply({"model": name, "generation": str(await self._trail.run(request, change, act))})

    async def reject(self, name: Name, request: Request) -> Response:
        """Reject the held deltas of a version: undo them on every server of the repository."""
        processor, body = self._lifecycle.processor(), await read_json(request, HeldDeltasRequest)
        change = f"reject held deltas of {name!r}{_because(body.reason)}"
        act = partial(processor.reject_deltas, name, body.version, body.reason)
        return json_reply(_rollback_reply(name, await self._trail.run(request, change, act)))

    async def calibrate(self, name: Name, request: Request) -> Response:
        """Report sums of joined scores and labels; the server rolls back generations that they show to be off."""
        processor, body = self._lifecycle.processor(), await read_json(request, JoinedLabels)
        evidence = LabelSums(body.scores, body.labels, body.rows)
        processor.calibrated(name, Generation.parse(body.generation), evidence)
        return json_reply({"model": name, "generation": body.generation})

    async def load(self, name: Name, version: Version, request: Request) -> Response:
        """Load a version from the repository; reply when it is served."""
        processor = self._lifecycle.processor()
        change = f"load {name!r} version {version}"
        await self._trail.run(request, change, lambda: processor.load(name, version), self._bulk)
        return json_reply({"model": name, "version": version, "state": "AVAILABLE"})

    async def unload(self, name: Name, version: Version, request: Request) -> Response:
        """Unload a version."""
        processor = self._lifecycle.processor()
        await self._trail.run(request, f"unload {name!r} version {version}", lambda: processor.unload(name, version))
        return json_reply({"model": name, "version": version, "state": "END"})

    async def set_label(self, name: Name, label: Name, request: Request) -> Response:
        """Point a label at a loaded version."""
        processor = self._lifecycle.processor()
        version = (await read_json(request, LabelRequest)).version
        change = f"label {name!r} version {version} as {label!r}"
        await self._trail.run(request, change, lambda: processor.set_label(name, label, version))
        return json_reply({"model": name, "label": label, "version": version})

    async def remove_label(self, name: Name, label: Name, request: Request) -> Response:
        """Remove a label; its version is unloaded unless something else keeps it."""
        processor = self._lifecycle.processor()
        change = f"remove label {label!r} of {name!r}"
        await self._trail.run(request, change, lambda: processor.remove_label(name, label))
        return json_reply({"model": name, "label": label})

    async def set_policy(self, name: Name, request: Request) -> Response:
        """Set keys of a model's policy (versions, split, shadow, guard); null removes what was set here."""
        processor = self._lifecycle.processor()
        body = await read_json(request, Policy)
        changes = {key: getattr(body, key) for key in body.model_fields_set}
        change = f"set the policy of {name!r}: {show(dump_json(changes).decode())}"
        policy = await self._trail.run(request, change, lambda: processor.set_policy(name, changes))
        return json_reply({"model": name, "policy": policy.to_json()})

    async def readmit(self, name: Name, version: Version, request: Request) -> Response:
        """Give a version that was taken out its share of traffic again."""
        processor = self._lifecycle.processor()
        await self._trail.run(request, f"readmit {name!r} version {version}", lambda: processor.readmit(name, version))
        return json_reply({"model": name, "version": version})

    async def resize(self, request: Request) -> Response:
        """Change the number of sessions of every group, without interrupting requests."""
        return await self._resize(None, request)

    async def resize_one(self, group: Name, request: Request) -> Response:
        """Change the number of sessions of one group, without interrupting requests."""
        return await self._resize(group, request)

    async def _resize(self, group: str | None, request: Request) -> Response:
        processor = self._lifecycle.processor()
        sessions = (await read_json(request, SessionCount)).sessions
        change = f"resize {'every group' if group is None else repr(group)} to {sessions} sessions"
        await self._trail.run(request, change, lambda: processor.resize(sessions, group))
        return json_reply({"groups": {name: s.sessions for name, s in processor.group_stats().items()}})


def _refused(name: str, extension: str) -> Callable[[], Any]:
    async def refuse() -> Response:
        raise missing(name, extension)

    return refuse


def _because(reason: str) -> str:
    return f": {show(reason)}" if reason else ""


def _rollback_reply(name: str, result: RollbackResult, only: str = "") -> dict[str, Any]:
    return {
        "model": name,
        "generation": str(result.generation),
        "undone": list(map(str, result.undone)),
        "recorded": result.recorded,
        "kept": list(map(str, result.kept)),
        "withdrawn": list(result.withdrawn),
        "next": f"{result.generation.version}.{result.next_step}",
        "note": _what_follows(name, result, only),
    }


def _what_follows_versions(name: str, result: RollbackResult) -> str:
    served, numbers = result.generation, ", ".join(map(str, result.withdrawn))
    if not result.recorded:
        return (
            f"The withdrawal of version {numbers} cannot be recorded: only this server serves {served}, until it ends."
        )
    return (
        f"Version {numbers} is withdrawn: every server of this repository serves {served} after its next poll, and "
        f"after a restart, until `freshet version release {name} {result.withdrawn[-1]}`. Versions published later are "
        "served. A label that names a withdrawn version keeps it for requests with that label: move or remove the "
        f"label. A trainer continues from {served} with its next full version."
    )


def _what_follows(name: str, result: RollbackResult, only: str) -> str:
    """Return in words what a rollback means for other servers and for the publisher."""
    served, following = result.generation, f"{result.generation.version}.{result.next_step}"
    if only:
        return f"This server serves {served}, the others follow; a trainer takes the {only} over before it publishes."
    if result.withdrawn:
        return _what_follows_versions(name, result)
    if not result.recorded:
        return (
            f"The repository cannot be written: only this server serves {served}, and it applies no further delta "
            "until the rollback is recorded (try again once the repository can be written) or the version is reloaded."
        )
    if not result.undone:
        return f"{served} is already the newest generation: nothing is undone."
    if result.kept:
        again = ", ".join(map(str, result.kept))
        return (
            f"Deltas that do not depend on the rejected one are published again as {again} and checked like any delta. "
            f"This server serves {served}, the others follow; a trainer applies them and publishes {following}."
        )
    return (
        f"Every server of this repository serves {served} after it next reads the chain. A trainer returns to the "
        f"weights of {served} with its next delta, skips the rows of the undone deltas (or learns them again with "
        f"--replay), and publishes {following}. The undone deltas are served again only if they are applied again."
    )


def _handle_errors(app: FastAPI, data_address: tuple[str, int] | None) -> None:
    """Register the error handlers; an error for a path that only the data port serves names that port."""

    @app.exception_handler(FreshetError)
    async def refused(request: Request, error: FreshetError) -> Response:
        status, body, headers = error_reply(error)
        return Response(body, status, {k.decode(): v.decode() for k, v in headers})

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return Response(error_body(first_problem(error.errors())), 400, media_type="application/json")

    @app.exception_handler(HTTPException)
    async def unroutable(request: Request, error: HTTPException) -> Response:
        path, hint = request.url.path, ""
        if data_address is not None and path.startswith(("/v1/", "/v2/")):
            hint = f"; this is the admin port; send predictions to port {data_address[1]}"
        body = error_body(f"{request.method} {path[:200]}: {error.detail}{hint}")
        return Response(body, error.status_code, error.headers, media_type="application/json")

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)

    @app.exception_handler(MemoryError)
    @app.exception_handler(OSError)
    async def scarce(request: Request, error: Exception) -> Response:
        if (short := shortage(error)) is None:
            raise error
        return await refused(request, short)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return Response(error_body("internal error"), 500, media_type="application/json")
