"""Read the online features of a request: the door between the request path and the stores.

    features = OnlineFeatures(groups, stores, defaults, clock)
    keys = features.keys_of(entities)
    read = features.peek(keys) or features.read(keys, end_s)
    read.columns["age"].values, read.columns["age"].status

peek() answers from memory and never waits, so an event loop may call it; read() may wait for a store, at most until its
deadline, and belongs on a thread. Both take the keys that keys_of() has made once.

Invariants
- Whatever a store holds, sends or fails to send, read() raises nothing for it: a value that is missing, null, expired,
  late or damaged (of another type, infinite) becomes the caller's default, and its status says which of these it is.
  BadInput is raised for the caller's own mistakes alone.
- A read takes at most the largest timeout_ms of its groups, and ends by the caller's deadline, plus the time to decode
  what came (at most MAX_REPLY_NBYTES for an entity).
- A request makes at most one round trip to each store, for all its groups, views and rows together; rows with the same
  key are read once, and so are keys that several requests ask for at the same time (entity_cache).
- A time to live is checked when a value is used, not when it was cached.
- Keys of entities are personal data: they are never in a log line, a counter or an error.

A cache belongs to the groups that it was made for, so a version with other views or types never meets its entries.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column, Strings
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import BadInput, TooLarge, nearest
from freshet_serving.processor.extensions.online_features.damaged_values import DamagedValues
from freshet_serving.processor.extensions.online_features.entity_cache import EntityCache
from freshet_serving.processor.extensions.online_features.entity_keys import EntityKeys
from freshet_serving.processor.extensions.online_features.feast_keys import feature_field, timestamp_field
from freshet_serving.processor.extensions.online_features.feast_values import decode_timestamp, decode_value
from freshet_serving.processor.extensions.online_features.feature_counters import FeatureCounters
from freshet_serving.processor.extensions.online_features.online_columns import (
    Entity,
    OnlineColumn,
    OnlineColumns,
    Status,
)
from freshet_serving.processor.extensions.online_features.online_store import (
    PERSISTENT,
    HashRead,
    HashReply,
    Loss,
    OnlineStore,
    OpenStore,
)
from freshet_serving.processor.extensions.online_features.plain_values import decode_text
from freshet_serving.processor.extensions.online_features.protobuf_fields import MalformedMessage
from freshet_serving.processor.extensions.online_features.section import FEAST, FeatureGroup, KeyColumn, OnlineFeature
from freshet_serving.processor.extensions.online_features.value_types import (
    VALUE_TYPES,
    DecodedValue,
    ValueType,
    build_column,
    encode_default,
    is_finite,
)
from freshet_serving.processor.versions.erasure import ErasedUser

MAX_ROWS = 10_000
"""Rows of one request whose features are looked up."""


class _Lookup:
    def __init__(
        self,
        group: FeatureGroup,
        keys: tuple[KeyColumn, ...],
        features: Sequence[OnlineFeature],
        number: int,
        unsigned: Container[str],
        damaged: DamagedValues,
    ) -> None:
        self.keys, self.features, self._damaged = keys, features, damaged
        self._unsigned = [feature.input in unsigned for feature in features]
        self.kinds = [VALUE_TYPES[feature.type] for feature in features]
        self._is_feast = group.format == FEAST
        self._prefix = number.to_bytes(4, "little")
        self._entity_keys = EntityKeys(group, keys, unsigned)
        views = list(dict.fromkeys(feature.view for feature in features))
        if self._is_feast:
            fields = [feature_field(feature.view, feature.feature) for feature in features]
            fields += [timestamp_field(view) for view in views]
        else:
            fields = [feature.feature.encode() for feature in features]
        self.fields = tuple(fields)
        self._views = [len(features) + views.index(feature.view) for feature in features]
        # Numbers of one type become columns together.
        self.numbers: dict[np.dtype[Any], list[int]] = {}
        for i, kind in enumerate(self.kinds):
            if kind.dtype is not None and not kind.is_list:
                self.numbers.setdefault(kind.dtype, []).append(i)
        self.others = [i for i, kind in enumerate(self.kinds) if kind.dtype is None or kind.is_list]

    def cache_keys(self, entities: Mapping[str, Column]) -> list[bytes | None]:
        """Return a key for each row; None where a value has no place in the key's type."""
        return [None if key is None else self._prefix + key for key in self._entity_keys.of(entities)]

    def erased_keys(self, user: ErasedUser) -> tuple[list[bytes], list[bytes]]:
        """Return prefixes of the cache's keys, and whole ones, that a user's features may be under.

        Where a key has other parts too, features of everybody are meant.
        """
        names = {key.input for key in self.keys}
        if names.isdisjoint(user.inputs):
            return [], []
        if len(self.keys) > 1:
            return [self._prefix], []
        (part,) = self.keys
        column: Any
        if VALUE_TYPES[part.type].dtype is None:
            column = Strings.of([user.text])
        elif user.number is None:
            return [], []
        else:
            column = np.array([user.number], np.uint64 if user.number >= 1 << 63 else np.int64)
        return [], [key for key in self.cache_keys({part.input: column}) if key is not None]

    def read(self, cache_key: bytes) -> HashRead:
        return HashRead(cache_key[len(self._prefix) :], self.fields)

    def decode(self, reply: HashReply) -> Entity | None:
        """Decode a reply; None if it is lost in a way that the next read may not be."""
        count = len(self.features)
        if isinstance(reply, Loss):
            if reply not in PERSISTENT:
                return None
            for feature in self.features:
                self._damaged.say(feature.input, f"the store {reply.value}")
            return Entity((Status.DAMAGED,) * count, (b"",) * count, (math.inf,) * count)
        decoded = [self._decode(i, reply) for i in range(count)]
        status, values, expires = zip(*decoded)
        whole = status.count(Status.PRESENT) == count
        return Entity(status, values, expires, min(expires) if whole else -math.inf)

    def build(self, values: Sequence[Sequence[DecodedValue]]) -> list[Column]:
        """Return a column for each feature, of which `values` has those of its rows."""
        columns: list[Any] = [None] * len(values)
        for dtype, places in self.numbers.items():
            joined = b"".join([b"".join(values[i]) for i in places])  # type: ignore[arg-type]
            for i, row in zip(places, np.frombuffer(joined, dtype).reshape(len(places), -1)):
                columns[i] = row
        for i in self.others:
            columns[i] = build_column(self.kinds[i], values[i])
        return columns

    def _decode(self, i: int, reply: list[bytes | None]) -> tuple[Status, DecodedValue, float]:
        data = reply[i]
        try:
            if not self._is_feast:
                if data is None:
                    return Status.NOT_FOUND, b"", math.inf
                text = decode_text(data, self.kinds[i], self._unsigned[i])
                return Status.PRESENT, _finite(self.kinds[i], text), math.inf
            stamp = reply[self._views[i]]
            if data is None:
                # The view was written for this entity, but not this feature: added to the view later, for example.
                return (Status.NOT_FOUND if stamp is None else Status.NULL), b"", math.inf
            value = decode_value(data, self.kinds[i])
            if value is None:
                return Status.NULL, b"", math.inf
            value = _finite(self.kinds[i], value)
            ttl_s = self.features[i].ttl_s
            if not ttl_s:
                return Status.PRESENT, value, math.inf
            # Feast reads a missing timestamp as 1970.
            return Status.PRESENT, value, (decode_timestamp(stamp) if stamp else 0.0) + ttl_s
        except MalformedMessage as error:
            self._damaged.say(self.features[i].input, str(error), data or b"")
            return Status.DAMAGED, b"", math.inf


_Keyed = list[tuple[_Lookup, list[bytes | None]]]
"""Lookups whose key a request has, with their key for each row."""


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """Keys of a request: for each source with the lookups that they are of, and each once."""

    rows: int
    keyed: list[_Keyed]
    distinct: list[list[bytes]]


class _Source(NamedTuple):
    store: OnlineStore
    lookups: Sequence[_Lookup]
    timeout_s: float
    cache: EntityCache[Entity]


class OnlineFeatures:
    """The online features of one version. Thread-safe."""

    def __init__(
        self,
        groups: Sequence[FeatureGroup],
        stores: Mapping[str, OpenStore],
        defaults: Mapping[str, Any],
        clock: Clock,
        unsigned: Container[str] = (),
        where: str = "online features",
    ) -> None:
        """Prepare the lookups of a version.

        Args:
            stores: The process' stores by name; they stay the caller's to close.
            defaults: For inputs, the value of a row that the store has none for; 0, "" or an empty list for others.
            unsigned: Inputs that declare uint64.
            where: The model and version, for the log.

        Raises:
            BadInput: A group's store is not among the stores, two groups fill one input, or a default does not fit.
        """
        self._clock = clock
        self._defaults: dict[str, DecodedValue] = {}
        self._kinds: dict[str, ValueType] = {}
        by_store: dict[str, list[tuple[FeatureGroup, _Lookup]]] = {}
        number = 0
        self.damaged = DamagedValues(where, clock)
        for group in groups:
            where = f"online_features.{group.name}"
            if group.store not in stores:
                raise BadInput(
                    f"{where}.store: {group.store!r} is not a store of this server{nearest(group.store, stores)}; "
                    f"start it with --online-store {group.store}=redis://HOST:PORT"
                )
            by_keys: dict[tuple[KeyColumn, ...], list[OnlineFeature]] = {}
            for feature in group.features:
                if feature.input in self._kinds:
                    raise BadInput(f"{where}: the input {feature.input!r} is filled by another group already")
                kind = self._kinds[feature.input] = VALUE_TYPES[feature.type]
                self._defaults[feature.input] = (
                    encode_default(kind, defaults[feature.input], f"{where}: input {feature.input!r}")
                    if feature.input in defaults
                    else kind.empty
                )
                by_keys.setdefault(feature.keys, []).append(feature)
            for keys, features in by_keys.items():
                lookup = _Lookup(group, keys, features, number, unsigned, self.damaged)
                by_store.setdefault(group.store, []).append((group, lookup))
                number += 1
        self._sources = []
        for name, lookups in by_store.items():
            opened = stores[name]
            timeout_s = max(group.timeout_ms for group, _ in lookups) / 1000
            cache: EntityCache[Entity] = EntityCache(opened.cache_ttl_s, opened.cache_nbytes, clock)
            self._sources.append(_Source(opened.store, [lookup for _, lookup in lookups], timeout_s, cache))
        self._counters = FeatureCounters(self._kinds)

    def keys_of(self, entities: Mapping[str, Column]) -> RequestKeys:
        """Return the keys of a request's rows, for peek() and read().

        Args:
            entities: The inputs that make the keys, one value for each row: int64 arrays or Strings. Features whose
                key is not among them are left out.
        """
        rows = _row_count(entities)
        keyed = [_keyed(source.lookups, entities) for source in self._sources]
        return RequestKeys(rows, keyed, [_distinct(row_keys) for row_keys in keyed])

    def peek(self, keys: RequestKeys) -> OnlineColumns | None:
        """Answer from memory; None if a store would have to be asked. Never waits for one."""
        parts = []
        for source, keyed, distinct in zip(self._sources, keys.keyed, keys.distinct):
            entities = source.cache.peek(distinct)
            if entities is None:
                return None
            parts.append((keyed, entities))
        self._counters.read()
        keys_found = sum(len(entities) for _, entities in parts)
        self._counters.keys(keys_found, cached=keys_found)
        return self._build(parts, keys.rows, "")

    def read(self, keys: RequestKeys, end_s: float = math.inf) -> OnlineColumns:
        """Read the features of a request's rows until its deadline on the clock's now_s()."""
        started_s = self._clock.now_s()
        parts, problem = [], ""
        store_reads = 0
        for source, keyed, distinct in zip(self._sources, keys.keyed, keys.distinct):
            entities, trouble, asked = self._find(source, keyed, distinct, min(end_s, started_s + source.timeout_s))
            parts.append((keyed, entities))
            problem, store_reads = problem or trouble, store_reads + asked
        took_s = self._clock.now_s() - started_s if store_reads else 0.0
        self._counters.read(store_reads > 0, took_s)
        return self._build(parts, keys.rows, problem)

    def erase(self, user: ErasedUser) -> int:
        """Forget what was read for a user; return how many entities there were."""
        erased = 0
        for source in self._sources:
            for lookup in source.lookups:
                prefixes, keys = lookup.erased_keys(user)
                if prefixes or keys:
                    erased += source.cache.erase(prefixes, keys)
        return erased

    def counted(self) -> Snapshot:
        """Return the counters (feature_counters.COUNTERS, and damaged values by feature)."""
        return self._counters.snapshot(sum(source.cache.nbytes for source in self._sources))

    def count_misfits(self, feature: str, rows: int) -> None:
        """Count values that are present, but are lists of another length than those of their sequence."""
        outcomes = np.zeros(len(Status), np.int64)
        outcomes[Status.PRESENT], outcomes[Status.DAMAGED] = -rows, rows
        self._counters.values(outcomes)
        self._counters.damaged(feature, rows)
        self.damaged.say(feature, "expected a list as long as the others of its sequence")

    def _find(
        self, source: _Source, keyed: _Keyed, keys: Sequence[bytes], end_s: float
    ) -> tuple[dict[bytes, Entity], str, bool]:
        """Return what is known of each key by the deadline, why something is not, and whether the store was asked."""
        claim = source.cache.claim(keys)
        losses: list[Loss] = []
        if claim.owned:
            owned = self._fetch(source, keyed, claim.owned, end_s, losses)
            claim.found.update(owned)
        for key, flight in claim.joined.items():
            entity = flight.wait(end_s - self._clock.now_s())
            if entity is not None:
                claim.found[key] = entity
            else:
                losses.append(Loss.LATE)
        cached = len(keys) - len(claim.owned) - len(claim.joined)
        self._counters.keys(len(keys), cached, len(claim.joined), losses)
        return claim.found, losses[0].value if losses else "", bool(claim.owned or claim.joined)

    def _fetch(
        self, source: _Source, keyed: _Keyed, owned: Sequence[bytes], end_s: float, losses: list[Loss]
    ) -> dict[bytes, Entity]:
        left, fetched = set(owned), {}
        try:
            lookups = {key: lookup for lookup, row_keys in keyed for key in row_keys if key is not None}
            replies = source.store.fetch([lookups[key].read(key) for key in owned], end_s)
            for key, reply in zip(owned, replies):
                entity = lookups[key].decode(reply)
                if isinstance(reply, Loss):
                    losses.append(reply)
                nbytes = 0 if isinstance(reply, Loss) else sum(len(value) for value in reply if value is not None)
                left.discard(key)
                source.cache.settle(key, entity, nbytes + 48 * len(lookups[key].features))
                if entity is not None:
                    fetched[key] = entity
        finally:
            for key in left:
                source.cache.settle(key, None)
        return fetched

    def _build(self, parts: Sequence[tuple[_Keyed, Mapping[bytes, Entity]]], rows: int, problem: str) -> OnlineColumns:
        now_s = self._clock.unix_s()
        columns: dict[str, OnlineColumn] = {}
        defaulted: dict[str, str] = {}
        counts = np.zeros(len(Status), np.int64)
        for keyed, by_key in parts:
            for lookup, row_keys in keyed:
                entities = [None if key is None else by_key.get(key) for key in row_keys]
                status: Sequence[NDArray[np.uint8]]
                if all(entity is not None and now_s <= entity.whole_until_unix_s for entity in entities):
                    values: Any = list(zip(*[entity.values for entity in entities if entity is not None]))
                    values = values or [()] * len(lookup.features)
                    status = [np.full(rows, Status.PRESENT, np.uint8)] * len(lookup.features)
                    counts[Status.PRESENT] += rows * len(lookup.features)
                else:
                    values, status = self._defaulted(lookup, row_keys, entities, now_s, defaulted)
                    counts += np.bincount(np.concatenate(status), minlength=len(Status))
                for feature, column, statuses in zip(lookup.features, lookup.build(values), status):
                    columns[feature.input] = OnlineColumn(column, statuses)
        self._counters.values(counts)
        return OnlineColumns(columns, defaulted, problem)

    def _defaulted(
        self,
        lookup: _Lookup,
        row_keys: Sequence[bytes | None],
        entities: Sequence[Entity | None],
        now_s: float,
        defaulted: dict[str, str],
    ) -> tuple[list[list[DecodedValue]], list[NDArray[np.uint8]]]:
        """Return values and status of each feature, and note the first reason of each that has a default."""
        # A key that cannot be in the store is not late.
        absent = [Status.NOT_FOUND if key is None else Status.LATE for key in row_keys]
        columns, statuses = [], []
        for i, feature in enumerate(lookup.features):
            default = self._defaults[feature.input]
            status = np.empty(len(entities), np.uint8)
            values = []
            for row, entity in enumerate(entities):
                row_status = absent[row] if entity is None else entity.status[i]
                if entity is not None and row_status is Status.PRESENT and now_s > entity.expires_unix_s[i]:
                    row_status = Status.EXPIRED
                status[row] = row_status
                if row_status is Status.PRESENT and entity is not None:
                    values.append(entity.values[i])
                    continue
                values.append(default)
                if feature.input not in defaulted:
                    defaulted[feature.input] = row_status.name.lower()
            columns.append(values)
            statuses.append(status)
            if damaged := int(np.count_nonzero(status == Status.DAMAGED)):
                self._counters.damaged(feature.input, damaged)
        return columns, statuses


def _finite(kind: ValueType, value: DecodedValue) -> DecodedValue:
    if not is_finite(kind, value):
        raise MalformedMessage("expected a number that is finite as float32")
    return value


def _row_count(entities: Mapping[str, Column]) -> int:
    lengths = {len(column) for column in entities.values()}
    if len(lengths) > 1:
        raise BadInput(f"keys of online features: expected as many values in each, got {sorted(lengths)}")
    rows = lengths.pop() if lengths else 0
    if rows > MAX_ROWS:
        raise TooLarge(f"keys of online features: expected at most {MAX_ROWS} rows, got {rows}; ask for fewer at once")
    return rows


def _keyed(lookups: Sequence[_Lookup], entities: Mapping[str, Column]) -> _Keyed:
    return [
        (lookup, lookup.cache_keys(entities)) for lookup in lookups if all(key.input in entities for key in lookup.keys)
    ]


def _distinct(keyed: _Keyed) -> list[bytes]:
    return list(dict.fromkeys(key for _, row_keys in keyed for key in row_keys if key is not None))
