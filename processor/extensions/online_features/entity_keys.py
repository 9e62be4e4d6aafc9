"""Compute the Redis keys of entities of one group, the same for who reads and who writes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np

from freshet_serving.processor.columns import Column, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.feast_keys import key_serializer
from freshet_serving.processor.extensions.online_features.plain_values import key_formatter
from freshet_serving.processor.extensions.online_features.section import FEAST, FeatureGroup, KeyColumn
from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES


class EntityKeys:
    """The keys of the entities that some features of a group have in common."""

    def __init__(self, group: FeatureGroup, keys: tuple[KeyColumn, ...], unsigned: Container[str] = ()) -> None:
        """Prepare the keys of some parts; `unsigned` are inputs that declare uint64."""
        self._keys = keys
        names, types = [key.name for key in keys], [key.type for key in keys]
        self._format: Callable[[Sequence[bytes]], bytes]
        if group.format == FEAST:
            self._format = key_serializer(group.project, names, types)
        else:
            self._format = key_formatter(group.key_template, [key.input for key in keys], types, unsigned)

    def of(self, entities: Mapping[str, Column]) -> list[bytes | None]:
        """Return a key for each row; None where a value has no place in the key's type.

        The inputs that make the keys have one value for each row: integers or Strings.
        """
        parts = [_key_values(entities[key.input], key) for key in self._keys]
        return [None if None in row else self._format(row) for row in zip(*parts)]


def _key_values(column: Column, key: KeyColumn) -> list[bytes | None]:
    """Return the values of one part of a key in the bytes of its type; None for those beyond its range."""
    kind = VALUE_TYPES[key.type]
    if kind.dtype is None:
        if not isinstance(column, Strings):
            raise BadInput(f"{key.input}: expected strings, which are the key of online features, got numbers")
        values: list[bytes | None] = list(column.tolist())
        return values
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu" or column.size != len(column):
        raise BadInput(f"{key.input}: expected one integer in each row, which are the key of online features")
    flat = column.reshape(-1)
    limits = np.iinfo(kind.dtype)
    return [
        int(value).to_bytes(kind.dtype.itemsize, "little", signed=True) if limits.min <= value <= limits.max else None
        for value in flat.tolist()
    ]
