"""Make groups of online features of the sections of a training configuration.

    [online_features.user]
    key = "user_id"                     # or a list: the inputs of a request that make the key
    store = "main"
    format = "feast"                    # or "hash"
    project = "shop"
    features = ["profile:age", "history:items"]     # or service = "ranking"
    registry = "feature_repo/data/registry.db"      # types, join keys, TTLs; or types, key_types, ttl_s
    defaults = { age = 30 }             # what is not there is otherwise missing, as in training
    timeout_ms = 2

Everything that cannot be read at all (a type that is no model's input, an on-demand view) is refused here, by name,
and not when the first request comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from freshet_serving.processor.errors import BadInput, nearest
from freshet_serving.processor.extensions.online_features.feast_registry import (
    FeastRegistry,
    RegisteredFeature,
    parse_reference,
)
from freshet_serving.processor.extensions.online_features.section import (
    DEFAULT_TIMEOUT_MS,
    FEAST,
    HASH,
    FeatureGroup,
    KeyColumn,
    OnlineFeature,
)
from freshet_serving.processor.extensions.online_features.value_types import value_type
from freshet_serving.processor.options import type_name

TEMPLATE_PART = re.compile(r"\{([^{}]*)\}")

SECTION_TYPES: dict[str, type | tuple[type, ...]] = {
    "key": (str, list),
    "store": str,
    "format": str,
    "project": str,
    "features": list,
    "service": str,
    "registry": str,
    "types": dict,
    "key_types": dict,
    "ttl_s": dict,
    "names": dict,
    "defaults": dict,
    "key_template": str,
    "timeout_ms": (int, float),
}


def parse_group(name: str, section: Mapping[str, Any], folder: Path = Path()) -> FeatureGroup:
    """Make a group of a section [online_features.NAME]; a relative path of a registry starts from `folder`.

    Raises BadInput if the section, or what it names in the registry, does not fit.
    """
    where = f"online_features.{name[:64]}"
    for field, value in section.items():
        types = SECTION_TYPES.get(field)
        if types is None:
            raise BadInput(f"{where}.{field[:64]}: there is no such option{nearest(field, SECTION_TYPES)}")
        if not isinstance(value, types) or isinstance(value, bool):
            expected = " or ".join(type_name(t()) for t in (types if isinstance(types, tuple) else (types,)))
            raise BadInput(f"{where}.{field}: expected {expected}, got {type_name(value)}")
    key = section.get("key")
    inputs = _strings(where, "key", [key] if isinstance(key, str) else key or [])
    if not inputs or len(set(inputs)) != len(inputs):
        raise BadInput(f"{where}.key: expected the input that holds the key, or a list of different ones")
    store = section.get("store", "main")
    timeout_ms = float(section.get("timeout_ms", DEFAULT_TIMEOUT_MS))
    if section.get("format", FEAST) == HASH:
        features = _plain_features(where, section, inputs)
        template = section.get("key_template", f"{name}:" + ":".join(f"{{{i}}}" for i in inputs))
        if sorted(TEMPLATE_PART.findall(template)) != sorted(inputs):
            raise BadInput(f"{where}.key_template: expected each input of key once in braces, got {template[:64]!r}")
        features = _with_defaults(where, section, features)
        return FeatureGroup(name, store, HASH, "", template, features, timeout_ms)
    if "key_template" in section:
        raise BadInput(
            f"{where}.key_template: expected only with format = 'hash'; Feast's keys have a form of their own"
        )
    project = section.get("project", "")
    if not project:
        raise BadInput(f"{where}.project: expected the project of feature_store.yaml, got nothing")
    if "registry" in section:
        registry = FeastRegistry.read(folder / section["registry"], project)
        features = _registered_features(where, section, inputs, registry)
    else:
        features = _declared_features(where, section, inputs)
    features = _with_defaults(where, section, features)
    return FeatureGroup(name, store, section.get("format", FEAST), project, "", features, timeout_ms)


def _with_defaults(
    where: str, section: Mapping[str, Any], features: Sequence[OnlineFeature]
) -> tuple[OnlineFeature, ...]:
    defaults = section.get("defaults", {})
    _check_used(where, "defaults", defaults, [feature.input for feature in features])
    return tuple(replace(feature, default=defaults.get(feature.input)) for feature in features)


def _registered_features(
    where: str, section: Mapping[str, Any], inputs: Sequence[str], registry: FeastRegistry
) -> tuple[OnlineFeature, ...]:
    if ("service" in section) == ("features" in section):
        raise BadInput(f"{where}: expected either features or service")
    for option in ("types", "key_types"):
        if option in section:
            raise BadInput(f"{where}.{option}: expected only without a registry, which has the types")
    if "service" in section:
        registered = registry.service(section["service"], where)
    else:
        registered = registry.features(_strings(where, "features", section["features"]), where)
    names, ttls = _names(where, section), _numbers(where, section, "ttl_s")
    result = []
    for feature in registered:
        missing = [column.input for column in feature.keys if column.input not in inputs]
        if missing:
            raise BadInput(f"{where}.key: view {feature.view!r} needs the join keys {', '.join(missing)} as well")
        result.append(_online_feature(feature, names, ttls))
    _check_used(where, "names", names, [feature.reference for feature in registered])
    _check_used(where, "ttl_s", ttls, [feature.view for feature in registered])
    return tuple(result)


def _online_feature(feature: RegisteredFeature, names: Mapping[str, str], ttls: Mapping[str, float]) -> OnlineFeature:
    keys = tuple(KeyColumn(column.name, column.input, column.type) for column in feature.keys)
    ttl_s = ttls.get(feature.view, feature.ttl_s)
    name = names.get(feature.reference, feature.feature)
    return OnlineFeature(name, feature.stored_view, feature.feature, feature.type, ttl_s, keys)


def _declared_features(where: str, section: Mapping[str, Any], inputs: Sequence[str]) -> tuple[OnlineFeature, ...]:
    if "service" in section:
        raise BadInput(f"{where}.service: expected a registry too, which says what the service has")
    keys = _declared_keys(where, section, inputs)
    names, ttls, types = _names(where, section), _numbers(where, section, "ttl_s"), section.get("types", {})
    references = _strings(where, "features", section.get("features", []))
    result = []
    views = set()
    for reference in references:
        view, version, feature = parse_reference(reference, where)
        if reference not in types:
            raise BadInput(f"{where}.types: expected a type for {reference!r}, or a registry")
        stored = f"{view}_v{version}" if version else view
        views.add(view)
        kind = value_type(str(types[reference]), f"{where}.types: {reference!r}").name
        result.append(OnlineFeature(names.get(reference, feature), stored, feature, kind, ttls.get(view, 0.0), keys))
    _check_used(where, "names", names, references)
    _check_used(where, "types", types, references)
    _check_used(where, "ttl_s", ttls, sorted(views))
    return tuple(result)


def _plain_features(where: str, section: Mapping[str, Any], inputs: Sequence[str]) -> tuple[OnlineFeature, ...]:
    for option in ("service", "registry", "project", "ttl_s"):
        if option in section:
            raise BadInput(f"{where}.{option}: expected only with format = 'feast'")
    keys = _declared_keys(where, section, inputs)
    names, types = _names(where, section), section.get("types", {})
    features = _strings(where, "features", section.get("features", []))
    result = []
    for feature in features:
        if feature not in types:
            raise BadInput(f"{where}.types: expected a type for {feature!r}")
        kind = value_type(str(types[feature]), f"{where}.types: {feature!r}").name
        result.append(OnlineFeature(names.get(feature, feature), "", feature, kind, 0.0, keys))
    _check_used(where, "names", names, features)
    _check_used(where, "types", types, features)
    return tuple(result)


def _declared_keys(where: str, section: Mapping[str, Any], inputs: Sequence[str]) -> tuple[KeyColumn, ...]:
    types = section.get("key_types", {})
    _check_used(where, "key_types", types, inputs)
    return tuple(KeyColumn(name, name, str(types.get(name, "int64"))) for name in inputs)


def _strings(where: str, option: str, values: Sequence[Any]) -> list[str]:
    if not all(isinstance(value, str) and value for value in values):
        raise BadInput(f"{where}.{option}: expected names, got {str(values)[:64]}")
    return list(values)


def _names(where: str, section: Mapping[str, Any]) -> dict[str, str]:
    names = dict(section.get("names", {}))
    _strings(where, "names", list(names.values()))
    return names


def _numbers(where: str, section: Mapping[str, Any], option: str) -> dict[str, float]:
    for name, value in section.get(option, {}).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadInput(f"{where}.{option}.{name[:64]}: expected seconds, got {type_name(value)}")
    return {name: float(value) for name, value in section.get(option, {}).items()}


def _check_used(where: str, option: str, named: Mapping[str, Any], used: Sequence[str]) -> None:
    for name in named:
        if name not in used:
            raise BadInput(f"{where}.{option}: {name[:64]!r} is not read by this group{nearest(name, used)}")
