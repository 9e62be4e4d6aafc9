"""Query a processor for the clients of both ports, with the error messages of each protocol.

TensorFlow Serving says Servable where KServe says model. Its clients get 400 for a label that is not set. A label that
is a number stands for that version, because some load generators send a version as a label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from freshet_serving.processor.errors import BadInput, NotFound, UnknownModel, UnknownVersion
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.versions.routes import AVAILABLE, VersionStatus
from freshet_serving.serving.codecs.wire import show
from freshet_serving.serving.front import catalog
from freshet_serving.serving.front.model_control import ModelControlAuthorizer
from freshet_serving.serving.front.shared_memory import Regions

if TYPE_CHECKING:
    from freshet_serving.processor.sessions.predictor import Predictor

T = TypeVar("T")


class ModelSpec(Protocol):
    """The model, and its version or label, that a request names."""

    @property
    def model(self) -> str: ...

    @property
    def version(self) -> int | None: ...

    @property
    def label(self) -> str | None: ...


def found_by_number(error: NotFound, who: ModelSpec, find: Callable[..., T], *more: Any) -> T:
    """Call find(), which raised `error`, again with a label that is a number as the version.

    Raises NotFound, or BadInput for a label that is not set, in TensorFlow Serving's words.
    """
    label = who.label
    if label is None:
        raise _no_servable(who, who.version, error) from None
    if not (label.isascii() and label.isdigit() and len(label) <= 18):
        raise BadInput(f"Unrecognized servable version label: {label[:64]}{_instead(who, error)}") from None
    try:
        return find(who.model, int(label) or None, None, *more)
    except NotFound as error:
        raise _no_servable(who, int(label) or None, error) from None


def _no_servable(spec: ModelSpec, version: int | None, error: NotFound) -> NotFound:
    model = spec.model[:64]
    servable_name = f"Latest({model})" if version is None else f"Specific({model}, {version})"
    return NotFound(f"Servable not found for request: {servable_name}{_instead(spec, error)}")


def _instead(spec: ModelSpec, error: NotFound) -> str:
    """Return the end of an error message that lists the existing models or versions."""
    if isinstance(error, UnknownModel):
        return f"; the repository holds {error.known}"
    return f"; {spec.model[:64]} has {error.known}" if isinstance(error, UnknownVersion) and error.known else ""


def servable_manifest(processor: Predictor, who: ModelSpec) -> tuple[Manifest, Generation]:
    """Call Predictor.manifest for TensorFlow Serving's clients; raises as found_by_number()."""
    try:
        return processor.manifest(who.model, who.version, who.label)
    except NotFound as error:
        return found_by_number(error, who, processor.manifest)


def servable_status(processor: Predictor, who: ModelSpec) -> list[VersionStatus]:
    """Return the status of the requested versions; raise NotFound, or BadInput for a label that is not set."""
    try:
        statuses = processor.status(who.model)
    except NotFound as error:
        raise NotFound(f"Could not find any versions of model {who.model[:64]}{_instead(who, error)}") from None
    number = who.version if who.label is None else servable_manifest(processor, who)[0].version
    versions = [s for s in statuses if number in (None, s.version)]
    if not versions:
        raise NotFound(f"Could not find version {number} of model {who.model[:64]}")
    return versions


def model_metadata(processor: Predictor, model: str, version: int | None) -> tuple[dict[str, Any], Generation]:
    """Return KServe's metadata of a model, and the generation that would answer; raise NotFound or NotReady."""
    manifest, generation = processor.manifest(model, version)
    versions = [s.version for s in processor.status(model) if s.state == AVAILABLE]
    return catalog.model_metadata(manifest, model, versions), generation


def extensions(authorizer: ModelControlAuthorizer, regions: Regions | None) -> list[str]:
    """Return KServe's extensions that this server serves with its current options."""
    named = [*catalog.EXTENSIONS]
    if authorizer.open:
        named.append(catalog.MODEL_CONTROL)
    if regions is not None:
        named.append(catalog.SHARED_MEMORY)
    return named


def check_load(parameters: Any) -> None:
    for name in parameters or {}:
        if name != "unload_dependents":
            raise BadInput(f"parameters: {show(str(name))} is not supported")
