"""Write lists of entities to a store in the layout in which a version's lookups read them (reader).

Invariants
- All lists of an entity are one command, so no read meets some of them new and others old.
- An entity without values has no fields here. Fields of the same hash that the version does not read, or another group
  does, are left as they are.
- Where a hash has nothing but these lists, it expires with them; elsewhere the views' timestamps say how old they are.
- Whatever is written may be written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features import feast_values, plain_values
from freshet_serving.processor.extensions.online_features.entity_keys import EntityKeys
from freshet_serving.processor.extensions.online_features.feast_keys import feature_field, timestamp_field
from freshet_serving.processor.extensions.online_features.redis_writer import Command, RedisWriter
from freshet_serving.processor.extensions.online_features.section import FEAST, groups_of
from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES
from freshet_serving.processor.package import Manifest


class ListWriter:
    """Writes inputs of one version to one store; implements processor.features.input_writer.ListWriter."""

    def __init__(self, name: str, store: RedisWriter, manifest: Manifest, inputs: Collection[str]) -> None:
        """Find out where lists go; raise BadInput if they are not read from the store of this name, or by several keys.

        Inputs that no group reads from it are not written.
        """
        of_store = [group for group in groups_of(manifest) if group.store == name]
        groups = [group for group in of_store if any(f.input in inputs for f in group.features)]
        where = f"online_features: inputs {', '.join(sorted(inputs))[:128]}"
        if len(groups) != 1:
            raise BadInput(f"{where}: expected one group of store {name!r} that reads them, got {len(groups)}")
        (group,) = groups
        self._features = [feature for feature in group.features if feature.input in inputs]
        keys = {feature.keys for feature in self._features}
        if len(keys) != 1 or len(self._features[0].keys) != 1:
            raise BadInput(f"{where}: expected one key of one column, got another one")
        unsigned = frozenset(i.name for i in manifest.inputs if i.declared == "uint64")
        (key,) = self._features[0].keys
        self._key, self._keys = key.input, EntityKeys(group, (key,), unsigned)
        self._unsigned = [feature.input in unsigned for feature in self._features]
        self._is_feast, self._own = group.format == FEAST, len(self._features) == len(group.features)
        views = dict.fromkeys(feature.view for feature in self._features)
        shared = {feature.view for feature in group.features if feature.input not in inputs}
        self._stamps: list[bytes] = []
        if self._is_feast:
            self._fields = [feature_field(feature.view, feature.feature) for feature in self._features]
            self._stamps = [timestamp_field(view) for view in views]
            self._removed = [*self._fields, *(timestamp_field(view) for view in views if view not in shared)]
        else:
            self._fields = self._removed = [feature.feature.encode() for feature in self._features]
        self._layout = repr((group.format, group.project, group.key_template, self._features))
        self._store = store

    @property
    def inputs(self) -> list[str]:
        return [feature.input for feature in self._features]

    def begin(self) -> str:
        """Connect, and return a digest of the store's processes and of the layout; see the protocol."""
        return hashlib.sha256(f"{self._store.begin()} {self._layout}".encode()).hexdigest()[:32]

    def write(
        self, keys: Column, lists: Mapping[str, Ragged], newest_s: NDArray[np.int64], left_s: NDArray[np.float64] | None
    ) -> None:
        """Write the lists of entities; see the protocol."""
        values = [self._encoded(n, lists[feature.input]) for n, feature in enumerate(self._features)]
        has_list = np.diff(lists[self._features[0].input].row_splits) > 0
        commands: list[Command] = []
        for row, key in enumerate(self._keys.of({self._key: keys})):
            if key is None:
                # No request could ask for it either.
                continue
            if not has_list[row]:
                commands.append((b"HDEL", key, *self._removed))
                continue
            stamp = feast_values.encode_timestamp(int(newest_s[row])) if self._stamps else b""
            pairs = [*zip(self._fields, (column[row] for column in values)), *((s, stamp) for s in self._stamps)]
            commands.append((b"HSET", key, *chain.from_iterable(pairs)))
            if self._is_feast or not self._own:
                continue
            if left_s is None:
                commands.append((b"PERSIST", key))
            else:
                commands.append((b"PEXPIRE", key, b"%d" % max(1, int(left_s[row] * 1000))))
        self._store.send(commands)

    def erase(self, keys: Column) -> int:
        """Remove the lists of entities; see the protocol."""
        list_keys = [key for key in self._keys.of({self._key: keys}) if key is not None]
        self._store.begin()
        removed: Sequence[int] = self._store.send([(b"HDEL", key, *self._removed) for key in list_keys])
        return sum(count > 0 for count in removed)

    def _encoded(self, n: int, lists: Ragged) -> list[bytes]:
        kind = VALUE_TYPES[self._features[n].type]
        if self._is_feast:
            return feast_values.encode_lists(kind, lists)
        return plain_values.encode_lists(kind, lists, self._unsigned[n])
