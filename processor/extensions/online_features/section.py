"""Define online features as a manifest holds them, in groups: what one key leads to in an online store.

Where the store is and how to log in to it is the server's part (processor.extensions.online_features.store_settings).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.value_types import (
    KEY_TYPES,
    VALUE_TYPES,
    encode_default,
    value_type,
)
from freshet_serving.processor.package import ColumnShape, InputFiller, Manifest
from freshet_serving.processor.package.json_dataclasses import build
from freshet_serving.processor.ports import Section

ONLINE_FEATURES, ONLINE = "online_features", "online features"
FEAST, HASH = "feast", "hash"
FORMATS = (FEAST, HASH)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
MAX_FEATURES = 1000
DEFAULT_TIMEOUT_MS = 2.0


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One part of a key: its name as it is stored, the request's input with its value, and one of KEY_TYPES."""

    name: str
    input: str
    type: str

    @property
    def dtype(self) -> str:
        """Type of the input: int64 or string."""
        return "int64" if VALUE_TYPES[self.type].dtype is not None else "string"


@dataclass(frozen=True, slots=True)
class OnlineFeature:
    """One feature.

    Attributes:
        input: The model's input that it fills.
        view: The view that holds it, as it is stored; "" in the format "hash".
        feature: Its name in the store.
        type: A name of VALUE_TYPES.
        ttl_s: Seconds for which a value is valid; 0 for ever.
        keys: The parts of its key.
        default: The input's value where the store has none; None for what training reads where a value is missing: NaN
            for a float, 0 for an id, an empty string or list.
    """

    input: str
    view: str
    feature: str
    type: str
    ttl_s: float
    keys: tuple[KeyColumn, ...]
    default: Any = None


@dataclass(frozen=True, slots=True)
class FeatureGroup:
    """Features of one store that are read together, as a package holds them.

    The format is "feast", with a project, or "hash", with a key_template that has the inputs' names in braces.
    """

    name: str
    store: str
    format: str
    project: str
    key_template: str
    features: tuple[OnlineFeature, ...]
    timeout_ms: float = DEFAULT_TIMEOUT_MS

    def __post_init__(self) -> None:
        where = f"online_features.{self.name[:64]}"
        for field, value in (("name", self.name), ("store", self.store)):
            if not NAME.fullmatch(value):
                raise BadInput(f"{where}.{field}: expected letters, digits, _, - or ., got {value[:64]!r}")
        if self.format not in FORMATS:
            raise BadInput(f"{where}.format: expected one of {', '.join(FORMATS)}, got {self.format[:64]!r}")
        if not 0.1 <= self.timeout_ms <= 10_000:
            raise BadInput(f"{where}.timeout_ms: expected 0.1 to 10000, got {self.timeout_ms:g}")
        if not 0 < len(self.features) <= MAX_FEATURES:
            raise BadInput(f"{where}.features: expected 1 to {MAX_FEATURES} features, got {len(self.features)}")
        inputs = set()
        for feature in self.features:
            kind = value_type(feature.type, f"{where}: feature {feature.feature[:64]!r}")
            if feature.default is not None:
                encode_default(kind, feature.default, f"{where}: input {feature.input[:64]!r}")
            for key in feature.keys:
                if key.type not in KEY_TYPES:
                    raise BadInput(
                        f"{where}: key {key.name[:64]!r}: expected one of {', '.join(KEY_TYPES)}, got {key.type[:64]!r}"
                    )
            if feature.input in inputs:
                raise BadInput(
                    f"{where}: two features fill the input {feature.input[:64]!r}; give one of them another name in "
                    f"names, such as {{'{feature.view}:{feature.feature}' = '{feature.view}_{feature.feature}'}}"
                )
            inputs.add(feature.input)
            if not feature.keys or not 0 <= feature.ttl_s < 1e12:
                raise BadInput(f"{where}: feature {feature.feature[:64]!r}: expected a key, and a ttl_s of 0 or more")

    @property
    def line(self) -> str:
        keys = ", ".join(dict.fromkeys(key.input for feature in self.features for key in feature.keys))
        filled = ", ".join(f"{feature.input} ({feature.type})" for feature in self.features)
        return f"{self.name}: {filled} by {keys}, {self.format} in store {self.store}, {self.timeout_ms:g} ms"


def groups_of(manifest: Manifest) -> Sequence[FeatureGroup]:
    groups: Sequence[FeatureGroup] = manifest.sections.get(ONLINE_FEATURES, ())
    return groups


def parse(raw: Any) -> list[FeatureGroup]:
    """Return the groups of a manifest's JSON; raise BadInput that names the field."""
    groups: list[FeatureGroup] = build(list[FeatureGroup], raw, f"manifest.{ONLINE_FEATURES}")
    return groups


def dump(groups: Sequence[FeatureGroup]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(group) for group in groups]


def fillers(groups: Sequence[FeatureGroup]) -> dict[str, InputFiller]:
    return {
        feature.input: InputFiller(ONLINE, group.name, tuple(key.input for key in feature.keys))
        for group in groups
        for feature in group.features
    }


def lines(groups: Sequence[FeatureGroup]) -> list[str]:
    return [group.line for group in groups]


def check(groups: Sequence[FeatureGroup], manifest: Manifest) -> None:
    """Raise BadInput, which names the group and the input, unless groups and a model's inputs fit each other."""
    inputs = {i.name: ColumnShape(i.dtype, i.columns, i.ragged) for i in manifest.inputs}
    names = [feature.input for group in groups for feature in group.features]
    for group in groups:
        where = f"manifest.{ONLINE_FEATURES}[{group.name}]"
        _want([g.name for g in groups].count(group.name) == 1, f"{where}: expected every name once")
        for feature in group.features:
            name = feature.input
            _want(name in inputs, f"{where}: the input {name[:64]!r} is not among manifest.inputs")
            _want(names.count(name) == 1, f"{where}: the input {name[:64]!r} is filled by two features")
            kind, spec = VALUE_TYPES[feature.type], inputs[name]
            fits = kind.fills(spec.dtype, spec.ragged) and not spec.columns
            _want(fits, f"{where}: type {kind.name} does not fill the input {name[:64]!r}, {_described(spec)}")
            for key in feature.keys:
                _want(key.input in inputs, f"{where}: the key {key.input[:64]!r} is not among manifest.inputs")
                _want(key.input not in names, f"{where}: the key {key.input[:64]!r} is filled by a feature itself")
                spec, expected = inputs[key.input], key.dtype
                single = not spec.ragged and not spec.columns and spec.dtype == expected
                _want(single, f"{where}: the key {key.input[:64]!r}: expected one {expected} a row, {_described(spec)}")


def _described(spec: ColumnShape) -> str:
    rows = "lists" if spec.ragged else f"{spec.columns} columns" if spec.columns else "one value"
    return f"which has {rows} of {spec.dtype}"


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)


SECTION = Section(parse, dump, check, fillers, lines)
