"""What a feature store gives: serialized values, text, Feast's registry, and a package's groups."""

from __future__ import annotations

import base64
import json

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.feast_registry import FeastRegistry
from freshet_serving.processor.extensions.online_features.feast_values import decode_timestamp, decode_value
from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.plain_values import decode_text
from freshet_serving.processor.extensions.online_features.protobuf_fields import MalformedMessage
from freshet_serving.processor.extensions.online_features.section import dump, parse
from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES
from tests.fuzz.target import Target
from tests.processor.extensions.online_features.value_messages import VECTORS

SECTION = {
    "key": "user_id", "format": "hash", "features": ["age", "tags"], "types": {"age": "int64", "tags": "string_list"},
}  # fmt: skip
TEXTS = (b"-17", b"1.5e3", b"true", b"[1, 2]", b"[true, false]", b"[0.5, -1e3]")


NUMBERS = [kind for kind in VALUE_TYPES.values() if kind.dtype is not None]
"""Any text is a string, so it is decoded as the other types."""


def of_any_type(decode, kinds):
    """Decodes as each type; refused where it is a value of none. A reader counts what is malformed."""

    def run(data):
        malformed = 0
        for kind in kinds:
            try:
                decode(data, kind)
            except MalformedMessage:
                malformed += 1
        if malformed == len(kinds):
            raise BadInput("a value of no type")

    return run


def timestamp(data):
    try:
        decode_timestamp(data)
    except MalformedMessage as error:
        raise BadInput(str(error)) from None


def registry(data):
    found = FeastRegistry.parse(data, "shop")
    found.service("ranking", "fuzzed")
    found.features(["profile:age"], "fuzzed")


def group(data):
    try:
        value = json.loads(data)
    except ValueError:
        raise BadInput("not JSON") from None
    parse([value])


def online_targets() -> tuple[Target, ...]:
    """All of them."""
    values = tuple(bytes.fromhex(one) for found in VECTORS["values"].values() for one, _ in found)
    packaged = json.dumps(dump([parse_group("user", SECTION)])[0]).encode()
    return (
        Target("online features: value of Feast", of_any_type(decode_value, VALUE_TYPES.values()), values, 2),
        Target("online features: text", of_any_type(decode_text, NUMBERS), TEXTS),
        Target("online features: timestamp", timestamp, (b"\x08\x80\xe2\xcf\xaa\x06\x10\x01",)),
        Target("online features: registry", registry, (base64.b64decode(VECTORS["registry"]),)),
        Target("online features: group of a package", group, (packaged,)),
    )
