"""Define groups of online features as a package holds them: what one key leads to in an online store.

Where the store is and how to log in to it is the server's part (processor.online_features.store_settings).
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.json_dataclasses import build
from freshet_serving.processor.package.value_types import KEY_TYPES, encode_default, value_type

FEAST, HASH = "feast", "hash"
FORMATS = (FEAST, HASH)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
MAX_FEATURES = 1000
DEFAULT_TIMEOUT_MS = 2.0


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One part of a key.

    Attributes:
        name: Join key as it is stored.
        input: The request's input with its value.
        type: One of KEY_TYPES.
    """

    name: str
    input: str
    type: str


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

    Attributes:
        name: The group's name.
        store: The store's name.
        format: "feast" or "hash".
        project: Feast's project; "" in the format "hash".
        key_template: The key of the format "hash", with the inputs' names in braces; "" in the format "feast".
        features: The features.
        timeout_ms: Milliseconds that a request waits for them.
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
        for what, value in (("name", self.name), ("store", self.store)):
            if not NAME.fullmatch(value):
                raise BadInput(f"{where}.{what}: expected letters, digits, _, - or ., got {value[:64]!r}")
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

    def to_json(self) -> dict[str, Any]:
        """Return the group as a package holds it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> FeatureGroup:
        """Read a group from a package; raises BadInput that names the field unless it is one."""
        group: FeatureGroup = build(cls, value, "online_features")
        return group
