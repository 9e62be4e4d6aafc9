"""Queries that both ports put to a processor on behalf of a client, in the words that clients of each protocol know.

TensorFlow Serving's say Servable where KServe's say model; a label that is not set is a wrong request to them, and one
that is a number stands for that version, for there are load generators that send a version as a label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from freshet_serving.processor.errors import BadInput, NotFound, UnknownModel, UnknownVersion
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.sessions.group import Post, Wake
from freshet_serving.processor.sessions.request import Done, PredictRequest
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import AVAILABLE, VersionStatus
from freshet_serving.serving.codecs.wire import show
from freshet_serving.serving.front import catalog
from freshet_serving.serving.front.model_control import ModelControlAuthorizer
from freshet_serving.serving.front.shared_memory import Regions

T = TypeVar("T")


class PredictionEngine(Protocol):
    """A predictor as the data ports ask it."""

    def models(self) -> list[str]: ...

    def status(self, model: str) -> list[VersionStatus]: ...

    def manifest(
        self, model: str, version: int | None = None, label: str | None = None
    ) -> tuple[Manifest, Generation]: ...

    def limits(self, model: str) -> RequestLimits: ...

    def select_replica(
        self,
        model: str,
        version: int | None,
        label: str | None,
        timeout_s: float | None,
        key: bytes | None = None,
        waited_s: float = 0.0,
    ) -> Replica: ...

    def submit(self, request: PredictRequest, done: Done, replica: Replica | None = None) -> None: ...

    def set_owner(self, wake: Wake, post: Post) -> bool: ...

    def run_once(self) -> None: ...


class ModelSpec(Protocol):
    """The model, and its version or label, that a request asks for."""

    @property
    def model(self) -> str: ...

    @property
    def version(self) -> int | None: ...

    @property
    def label(self) -> str | None: ...


def servable(who: ModelSpec, find: Callable[..., T], *more: Any) -> T:
    """The result of find(model, version, label, *more) for TensorFlow Serving's clients; raises NotFound or BadInput in
    their words."""
    try:
        return find(who.model, who.version, who.label, *more)
    except NotFound as error:
        if who.label is None:
            raise _no_servable(who, who.version, error) from None
        if not (who.label.isascii() and who.label.isdigit() and len(who.label) <= 18):
            raise BadInput(f"Unrecognized servable version label: {who.label[:64]}{_instead(who, error)}") from None
    try:
        return find(who.model, int(who.label) or None, None, *more)
    except NotFound as error:
        raise _no_servable(who, int(who.label) or None, error) from None


def _no_servable(who: ModelSpec, version: int | None, error: NotFound) -> NotFound:
    model = who.model[:64]
    which = f"Latest({model})" if version is None else f"Specific({model}, {version})"
    return NotFound(f"Servable not found for request: {which}{_instead(who, error)}")


def _instead(who: ModelSpec, error: NotFound) -> str:
    """What there is instead of a model, version or label that there is not."""
    if isinstance(error, UnknownModel):
        return f"; the repository holds {error.known}"
    return f"; {who.model[:64]} has {error.known}" if isinstance(error, UnknownVersion) and error.known else ""


def select_servable(
    processor: PredictionEngine,
    who: ModelSpec,
    timeout_s: float | None,
    key: bytes | None = None,
    waited_s: float = 0.0,
) -> Replica:
    """See Predictor.select_replica, for TensorFlow Serving's clients."""
    return servable(who, processor.select_replica, timeout_s, key, waited_s)


def servable_manifest(processor: PredictionEngine, who: ModelSpec) -> tuple[Manifest, Generation]:
    """See Predictor.manifest, for TensorFlow Serving's clients."""
    return servable(who, processor.manifest)


def servable_status(processor: PredictionEngine, who: ModelSpec) -> list[VersionStatus]:
    """The status of the versions asked for; raises NotFound, BadInput."""
    try:
        known = processor.status(who.model)
    except NotFound as error:
        raise NotFound(f"Could not find any versions of model {who.model[:64]}{_instead(who, error)}") from None
    wanted = who.version if who.label is None else servable_manifest(processor, who)[0].version
    versions = [s for s in known if wanted in (None, s.version)]
    if not versions:
        raise NotFound(f"Could not find version {wanted} of model {who.model[:64]}")
    return versions


def model_metadata(processor: PredictionEngine, model: str, version: int | None) -> tuple[dict[str, Any], Generation]:
    """KServe's metadata, and what would answer; raises NotFound, NotReady."""
    manifest, generation = processor.manifest(model, version)
    versions = [s.version for s in processor.status(model) if s.state == AVAILABLE]
    return catalog.model_metadata(manifest, model, versions), generation


def extensions(authorizer: ModelControlAuthorizer, regions: Regions | None) -> list[str]:
    """KServe's extensions that this server serves as it was started."""
    named = [*catalog.EXTENSIONS]
    if authorizer.open:
        named.append(catalog.MODEL_CONTROL)
    if regions is not None:
        named.append(catalog.SHARED_MEMORY)
    return named


def check_load(parameters: Any) -> None:
    """Raises BadInput unless the parameters of a load or unload are ones that mean something here: none."""
    for name in parameters or {}:
        if name != "unload_dependents":
            raise BadInput(f"parameters: {show(str(name))} is not served")
