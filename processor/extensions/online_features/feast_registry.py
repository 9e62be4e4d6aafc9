"""Read feature views and feature services from Feast's registry.db, a protobuf file, without Feast.

Field numbers are those of feast 0.67 (protos/feast/core): Registry, FeatureView, StreamFeatureView,
OnDemandFeatureView, FeatureService and what they contain. Protobuf keeps the number of a field for ever, so a newer
registry reads as well; what is new in it is skipped.

Refused by name: on-demand feature views (Python that runs at read time), views that are disabled or not online, views
without an entity, types that are no model's input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from freshet_serving.processor.errors import BadInput, Corrupt, nearest, nearest_file, unreadable
from freshet_serving.processor.extensions.online_features.protobuf_fields import MalformedMessage, read_fields
from freshet_serving.processor.extensions.online_features.value_types import (
    BY_NUMBER,
    KEY_TYPES,
    LENGTH,
    VARINT,
    value_type_numbered,
)

MAX_REGISTRY_NBYTES = 64 << 20
REFERENCE = re.compile(r"([^:@]+)(?:@v(\d{1,9}))?:([^:@]+)")
DUMMY_KEY = "__dummy_id"

Message = dict[int, list[int | bytes]]


@dataclass(frozen=True, slots=True)
class JoinKey:
    """One part of a view's key, of KEY_TYPES; a service's projection may give it another name in requests (`input`)."""

    name: str
    input: str
    type: str


@dataclass(frozen=True, slots=True)
class RegisteredFeature:
    """A feature as the registry has it.

    `reference` is "view:feature", with the view's alias if a service gives it one; `stored_view` has the view's
    version. A value is valid for `ttl_s`, 0 for ever.
    """

    reference: str
    view: str
    stored_view: str
    feature: str
    type: str
    ttl_s: float
    keys: tuple[JoinKey, ...]


@dataclass(slots=True)
class _View:
    """A feature view. `refusal` says why it cannot be read, "" if it can."""

    name: str
    types: dict[str, int]
    keys: list[tuple[str, int]]
    ttl_s: float
    refusal: str = ""


@dataclass(slots=True)
class _Projection:
    """What a service takes of a view."""

    view: str
    alias: str
    features: list[str]
    join_key_map: dict[str, str] = field(default_factory=dict)
    version: int = 0


def parse_reference(reference: str, where: str) -> tuple[str, int, str]:
    """Split "view:feature" or "view@v2:feature" into view, version (0 if there is none) and feature.

    `where` names the section in messages, here and below.
    """
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise BadInput(f"{where}.features: expected 'view:feature' or 'view@v2:feature', got {reference[:64]!r}")
    return match[1], int(match[2] or 0), match[3]


class FeastRegistry:
    """One project of a registry."""

    def __init__(self, views: dict[str, _View], services: dict[str, list[_Projection]], project: str) -> None:
        self._views, self._services, self._project = views, services, project

    @classmethod
    def read(cls, path: Path, project: str) -> FeastRegistry:
        """Read a registry's file; raise BadInput if it, or the project in it, does not exist, Corrupt if it is none."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_REGISTRY_NBYTES + 1)
        except FileNotFoundError:
            raise BadInput(
                f"registry: {path.name} does not exist{nearest_file(path)}; feast apply writes the file that "
                "feature_store.yaml names; without such a file, give types"
            ) from None
        except OSError as error:
            raise unreadable(f"registry {path.name}", error) from None
        if len(data) > MAX_REGISTRY_NBYTES:
            raise BadInput(f"registry: {path.name}: expected at most {MAX_REGISTRY_NBYTES >> 20} MiB")
        return cls.parse(data, project)

    @classmethod
    def parse(cls, data: bytes, project: str) -> FeastRegistry:
        """Parse a serialized Registry; raises BadInput and Corrupt as read() does."""
        try:
            return cls._parse(data, project)
        except MalformedMessage:
            raise Corrupt("registry: expected the registry.db that feast apply writes, got something else") from None

    @classmethod
    def _parse(cls, data: bytes, project: str) -> FeastRegistry:
        registry = _message(data)
        views: dict[str, _View] = {}
        projects = set()
        kinds = ((6, _VIEW), (14, _STREAM_VIEW))
        for number, fields in kinds:
            for spec in _specs(registry, number):
                projects.add(_text(spec, 2))
                if _text(spec, 2) == project:
                    view = _view(spec, fields)
                    views[view.name] = view
        for spec in _specs(registry, 8):
            projects.add(_text(spec, 2))
            if _text(spec, 2) == project:
                name = _text(spec, 1)
                refusal = "is an on-demand feature view, which is Python code that runs at read time; compute it "
                refusal += "in training and in the client, or materialize it as a view of its own"
                types = {_text(f, 1): _number(f, 2) for f in _messages(spec, 3)}
                views[name] = _View(name, types, [], 0.0, refusal)
        services: dict[str, list[_Projection]] = {}
        for spec in _specs(registry, 7):
            if _text(spec, 2) == project:
                services[_text(spec, 1)] = [_projection(message) for message in _messages(spec, 3)]
        if project not in projects:
            raise BadInput(
                f"project: {project[:64]!r} has no feature views in the registry{nearest(project, projects)}"
            )
        return cls(views, services, project)

    def service(self, name: str, where: str) -> list[RegisteredFeature]:
        """Return the features of a feature service, in its order; raise BadInput if one cannot be read."""
        projections = self._services.get(name)
        if projections is None:
            raise BadInput(f"{where}.service: {name[:64]!r} is not in the registry{nearest(name, self._services)}")
        return [self._feature(p, feature, where) for p in projections for feature in p.features]

    def features(self, references: Sequence[str], where: str) -> list[RegisteredFeature]:
        """Return features by references "view:feature"; raise BadInput if one does not exist or cannot be read."""
        features = []
        for reference in references:
            view, version, feature = parse_reference(reference, where)
            features.append(self._feature(_Projection(view, "", [feature], version=version), feature, where))
        return features

    def _feature(self, projection: _Projection, feature: str, where: str) -> RegisteredFeature:
        view = self._views.get(projection.view)
        if view is None:
            raise BadInput(
                f"{where}: feature view {projection.view[:64]!r} is not in the project {self._project[:64]!r}"
                f"{nearest(projection.view, self._views)}"
            )
        if view.refusal:
            raise BadInput(f"{where}: feature view {view.name!r} {view.refusal}")
        if feature not in view.types:
            raise BadInput(
                f"{where}: feature view {view.name!r} has no feature {feature[:64]!r}{nearest(feature, view.types)}"
            )
        kind = value_type_numbered(view.types[feature], f"{where}: feature {view.name}:{feature}")
        keys = []
        for name, number in view.keys:
            key_type = BY_NUMBER[number].name if number in BY_NUMBER else str(number)
            if key_type not in KEY_TYPES:
                raise BadInput(
                    f"{where}: feature view {view.name!r}: join key {name!r}: expected one of {', '.join(KEY_TYPES)}, "
                    f"got {key_type}"
                )
            keys.append(JoinKey(name, projection.join_key_map.get(name, name), key_type))
        stored = f"{view.name}_v{projection.version}" if projection.version else view.name
        reference = f"{projection.alias or view.name}:{feature}"
        return RegisteredFeature(reference, view.name, stored, feature, kind.name, view.ttl_s, tuple(keys))


# Numbers of the fields of the two kinds of views: features, entity columns, TTL, online, disabled.
_VIEW = (4, 12, 6, 8, 20)
_STREAM_VIEW = (4, 5, 9, 12, 23)


def _view(spec: Message, fields: tuple[int, int, int, int, int]) -> _View:
    features, entity_columns, ttl, online, disabled = fields
    types = {_text(f, 1): _number(f, 2) for f in _messages(spec, features)}
    keys = [(_text(f, 1), _number(f, 2)) for f in _messages(spec, entity_columns)]
    ttl_s = 0.0
    for duration in _messages(spec, ttl):
        ttl_s = _number(duration, 1) + _number(duration, 2) / 1e9
    refusal = ""
    if _number(spec, disabled):
        refusal = "is disabled; enable it with feast feature-views enable"
    elif not _number(spec, online):
        refusal = "is not online; apply it with online=True and materialize it"
    elif not keys or keys == [(DUMMY_KEY, 2)]:
        refusal = "has no entity, so no key leads to it"
    return _View(_text(spec, 1), types, keys, ttl_s, refusal)


def _projection(message: Message) -> _Projection:
    mapped = {_text(entry, 1): _text(entry, 2) for entry in _messages(message, 4)}
    features = [_text(f, 1) for f in _messages(message, 2)]
    return _Projection(_text(message, 1), _text(message, 3), features, mapped, _number(message, 10))


def _message(data: bytes) -> Message:
    message: Message = {}
    for number, wire, value in read_fields(data):
        if wire in (VARINT, LENGTH):
            message.setdefault(number, []).append(value)
    return message


def _messages(message: Message, number: int) -> Iterable[Message]:
    for value in message.get(number, ()):
        if not isinstance(value, bytes):
            raise MalformedMessage("wire type")
        yield _message(value)


def _specs(registry: Message, number: int) -> Iterable[Message]:
    """Yield the `spec`, field 1, of each object of a kind."""
    for item in _messages(registry, number):
        yield from _messages(item, 1)


def _text(message: Message, number: int) -> str:
    value = message.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise MalformedMessage("wire type")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("not UTF-8") from None


def _number(message: Message, number: int) -> int:
    value = message.get(number, [0])[-1]
    if not isinstance(value, int):
        raise MalformedMessage("wire type")
    return value
