"""Explain scores over the admin port: what the score of a request, sent or recorded, was made of.

How to use it: docs/extensions/explaining.md.

The admin port's event loop reads the body and waits; a thread, at low priority if there are several workers, does the
rest (processor.extensions.explaining.explanation). One explanation is made at a time and WAITING more may wait; further
ones are refused. So explanations take at most one of the threads that apply large deltas.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import Field

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, Conflict, NotFound, Overloaded
from freshet_serving.processor.extensions.explaining.explanation import Explainer, GenerationRef, listed_item
from freshet_serving.processor.extensions.explaining.scoring_process import ScoringProcess
from freshet_serving.processor.features.input_lookup import InputLookup, InputLookups, open_lookups
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import UNREAD, Manifest
from freshet_serving.processor.ports import missing
from freshet_serving.processor.repository import DELTA, ROLLBACK
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import find
from freshet_serving.processor.versions.timeline import MOST, UNDONE
from freshet_serving.serving.access.access_guard import Forbidden
from freshet_serving.serving.access.scopes import FEATURES
from freshet_serving.serving.codecs import tfs_rest
from freshet_serving.serving.codecs.user_calls import UserInputs
from freshet_serving.serving.codecs.validation import StrictModel, validated
from freshet_serving.serving.codecs.wire import load_json
from freshet_serving.serving.extensions.admin.admin_bodies import Name, documented, json_reply, read_whole
from freshet_serving.serving.extensions.admin.authorization import SHOWS_FEATURES
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.ports import SERVER
from freshet_serving.serving.serve_config import ServeConfig

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost
    from freshet_serving.processor.versions.model import ServedModel
    from freshet_serving.processor.versions.served_version import ServedVersion

MAX_EXPLAIN_NBYTES = 4 << 20
WAITING = 4
REQUEST_KEYS = ("inputs", "instances", "signature_name")


class ExplainSettings(NamedTuple):
    """Settings of the server that explanations depend on; `recordings` is a folder, "" for none."""

    recordings: str = ""
    limits: RequestLimits = DEFAULTS
    workers: int = 1
    online_stores: Sequence[Any] = ()

    @classmethod
    def of(cls, config: ServeConfig, workers: int) -> ExplainSettings:
        return cls(config.record, RequestLimits.of(config), workers, config.stores())


class ExplainRequest(StrictModel):
    """Options of an explanation, beside the request itself: `inputs` or `instances` as :predict takes them."""

    inputs: dict[str, Any] | list[Any] | None = Field(None, description="The request in columns, as for :predict.")
    instances: list[Any] | None = Field(None, description="Or the request in rows.")
    request_id: str | None = Field(None, min_length=1, max_length=256, description="Or the id of a recorded request.")
    item: Annotated[int, Field(strict=True)] | Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Id of an item: explain its place among the best items; the request leaves candidates out."
    )
    row: int = Field(0, ge=0, lt=2**31, description="Row of the request to explain.")
    version: int | None = Field(None, gt=0, lt=2**63)
    label: str | None = Field(None, min_length=1, max_length=128)
    generation: str | None = Field(None, max_length=40, description="Generation to explain the score of, such as 3.16.")
    against: str | None = Field(None, max_length=40, description="Second generation, to compare with.")
    vectors: bool = Field(False, description="Also return the embedding rows.")


class ExplainRoute:
    """The route of explanations; `bulk` runs them, or the loop's default threads if it is None."""

    def __init__(
        self, lifecycle: Availability[ModelHost], settings: ExplainSettings | None = None, bulk: Executor | None = None
    ) -> None:
        self._lifecycle, self._bulk = lifecycle, bulk
        self._settings = settings = settings or ExplainSettings()
        if settings.workers > 1:
            beside = f"supervisor, beside {settings.workers} workers"
            self._explainer = Explainer(beside, ScoringProcess().score)
        else:
            self._explainer = Explainer("server, beside its sessions")
        self._asked = 0
        self._turn = asyncio.Lock()
        # A supervisor has no lookups of its own until something is explained: workers fill requests.
        self._opened: InputLookups | None = None
        self._lookups: weakref.WeakKeyDictionary[ServedVersion, InputLookup | None] = weakref.WeakKeyDictionary()

    def add_to(self, app: FastAPI) -> None:
        app.post("/admin/models/{name}/explain", openapi_extra=documented(ExplainRequest))(self.explain)

    async def explain(self, name: Name, request: Request) -> Response:
        """Explain the score of one row: its features, embedding rows and executable.

        With `against` the reply also explains the score under a second generation and compares the two.
        """
        processor = self._lifecycle.processor()
        body = await read_whole(request, MAX_EXPLAIN_NBYTES)
        shows = request.scope.get(SHOWS_FEATURES, True)
        if self._asked > WAITING:
            raise Overloaded(f"explain: expected at most {WAITING} waiting requests; try again")
        self._asked += 1
        try:
            async with self._turn:
                act = partial(self._explain, processor, name, memoryview(body), shows)
                return json_reply(await in_thread(self._bulk, act))
        finally:
            self._asked -= 1

    def _explain(self, processor: ModelHost, name: str, body: memoryview, shows_features: bool) -> dict[str, Any]:
        model = find(processor.catalogue, name)
        limits = self._settings.limits.over(model.policy.limits)
        document = load_json(body, limits)
        asked = validated({k: v for k, v in document.items() if k not in REQUEST_KEYS}, ExplainRequest)
        if sum(key in document for key in ("inputs", "instances")) + (asked.request_id is not None) != 1:
            raise BadInput("explain: expected one of inputs, instances and request_id")
        if asked.item is not None and asked.request_id is not None:
            raise BadInput("item: requests for the best items are not recorded; send inputs or instances")
        if asked.request_id is not None:
            return self._recorded(model, asked, asked.request_id, limits, shows_features)
        version, step = _picked(model, asked, None)
        listed = None if asked.item is None else listed_item(version.manifest, asked.item)
        sent, _ = tfs_rest.decode(body, {}, version.manifest if listed is None else listed.read_as, limits)
        if isinstance(sent, UserInputs):
            raise BadInput("sequence_id: expected a request with all inputs: what is kept of a user is not explained")
        against = None if asked.against is None else _question(model, asked.against, "against")
        hidden = _filled_by_server(version.manifest, sent)
        if not shows_features and listed is not None:
            # What keeps an item off the list is told with the values of its record.
            hidden += [name for kind, name in listed.tables.items() if kind == "record"]
        if not shows_features and hidden:
            raise Forbidden(
                f"authorization: expected a key with the scope {FEATURES}, because {hidden[0]!r} would be "
                "looked up and shown; or send it"
            )
        lookup = self._lookup(version) if version.manifest.filled else None
        filled = None if lookup is None else lookup.fill(sent)
        inputs = sent if filled is None else filled.inputs
        answer = self._asked_for(model, inputs, asked, GenerationRef(version, step), against, limits)
        return answer if filled is None else {**answer, "features_missing": dict(filled.defaulted)}

    def _lookup(self, version: ServedVersion) -> InputLookup | None:
        """Return what fills the inputs that requests of a version leave out, as a request is filled."""
        replicas = version.replicas
        if isinstance(replicas, Replica) and replicas.lookup is not None:
            return replicas.lookup
        if self._opened is None:
            self._opened = open_lookups(self._settings.online_stores, SystemClock())
        if version not in self._lookups:
            self._lookups[version] = self._opened.of(version.manifest)
        return self._lookups[version]

    def _recorded(
        self, model: ServedModel, asked: ExplainRequest, request_id: str, limits: RequestLimits, shows_features: bool
    ) -> dict[str, Any]:
        request = self._find(model.name, request_id)
        version, step = _picked(model, asked, request.generation.version)
        if not shows_features and any(f.kind != UNREAD for f in version.manifest.fillers.values()):
            raise Forbidden(
                f"authorization: expected the scope {FEATURES}: recordings hold features that were looked up"
            )
        if request.inputs_of != version.manifest.inputs:
            raise BadInput(
                f"request_id: was recorded for other inputs than those of version {version.manifest.version}"
            )
        against = None if asked.against is None else _question(model, asked.against, "against")
        question = GenerationRef(version, step)
        generation = request.generation
        if against is None and generation.version in model.routes.served:
            answered = GenerationRef(model.routes.served[generation.version], generation.step)
            same = answered == question or (step is None and version.generation == generation)
            if not same and self._explainer.reaches(answered):
                against = answered
        answer = self._asked_for(model, request.inputs, asked, question, against, limits)
        row = {name: scores[asked.row] for name, scores in request.outputs.items()}
        recorded = {"request_id": request_id, "generation": str(generation), "time": request.time, "outputs": row}
        return {**answer, "recorded": recorded}

    def _asked_for(
        self,
        model: ServedModel,
        inputs: Mapping[str, Column],
        asked: ExplainRequest,
        question: GenerationRef,
        against: GenerationRef | None,
        limits: RequestLimits,
    ) -> dict[str, Any]:
        try:
            return self._explainer.explain(
                inputs, asked.row, question, against, limits=limits, vectors=asked.vectors, item=asked.item
            )
        except Conflict:
            for explained in (question, against):
                if explained is not None and explained.step is not None and (why := _undone(model, explained)):
                    raise Conflict(why) from None
            raise

    def _find(self, model: str, request_id: str) -> Any:
        """Find a recorded request; raise NotFound if it was not recorded, or not yet."""
        if not self._settings.recordings:
            raise NotFound(
                "request_id: this server records no requests; start it with --record FOLDER --record-share 1"
            )
        find_recorded = SERVER.get("recordings", "find")
        if find_recorded is None:
            raise missing("request_id", "recorder")
        request = find_recorded(self._settings.recordings, model, request_id)
        if request is None:
            raise NotFound(
                f"request_id: {request_id[:64]!r} of model {model!r} was not recorded; --record-share sets the "
                "share of recorded requests, and a recorded one can be found within a minute"
            )
        return request


def _picked(model: ServedModel, asked: ExplainRequest, answered_by: int | None) -> tuple[ServedVersion, int | None]:
    """Select the version to explain, and the step, None for the served one.

    `answered_by` is the version that answered the recorded request, if there is one.
    """
    if asked.version is not None and asked.label is not None:
        raise BadInput("explain: expected one of version and label")
    if asked.generation is not None:
        question = _question(model, asked.generation, "generation")
        named = asked.version is not None or asked.label is not None
        if named and model.pick(asked.version, asked.label) is not question.version:
            raise BadInput(f"generation: expected one of the requested version, got {asked.generation}")
        return question
    number = asked.version
    if number is None and asked.label is None and answered_by in model.routes.served:
        number = answered_by
    return model.pick(number, asked.label), None


def _filled_by_server(manifest: Manifest, sent: Collection[str]) -> list[str]:
    """Return the inputs, but those `sent`, that the server fills from a store or from records of entities."""
    return [
        name
        for name, filler in manifest.fillers.items()
        if filler.kind != UNREAD and name not in sent and all(key in sent for key in filler.keys)
    ]


def _undone(model: ServedModel, asked: GenerationRef) -> str:
    """Return the error for a generation that was rolled back, with the rollback's record; "" if it was not."""
    version = asked.version.manifest.version
    entries = model.timeline(version, MOST)["entries"]
    generation = f"{version}.{asked.step}"
    delta = next((e for e in entries if e["kind"] == DELTA and e["generation"] == generation), None)
    if delta is None or delta["state"] != UNDONE:
        return ""
    backs = [e for e in entries if e["kind"] == ROLLBACK and e["number"] > delta["number"]]
    by = next((e for e in reversed(backs) if Generation.parse(e["generation"]).step < (asked.step or 0)), None)
    undo = "" if by is None else f" by record {by['number']}, a rollback to {by['generation']}"
    scored = f"`freshet evaluate --generation {generation}` scores a table by it"
    return f"generation {generation} was undone{undo}; {scored}"


def _question(model: ServedModel, text: str, field: str) -> GenerationRef:
    """Return a generation of a loaded version, as the field `field` names it; raise BadInput or NotFound."""
    generation = Generation.parse(text)
    version = model.routes.served.get(generation.version)
    if version is None:
        load = f"POST /admin/models/{model.name}/versions/{generation.version}/load"
        raise NotFound(
            f"{field}: version {generation.version} of model {model.name!r} is not loaded; load it with {load}"
        )
    return GenerationRef(version, generation.step)
