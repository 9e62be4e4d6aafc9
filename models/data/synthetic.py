"""Generate a synthetic click stream with known click probabilities: tastes drift, items appear and disappear.

Nothing is stored. Every property of a user, an item or a row is a hash of (seed, kind, number), so any position costs
one block to generate, and `truth` needs only the batch.

The world:
    items     ids in a moving window: one is born, and the oldest disappears, every `item_rows` rows; popularity
              follows Zipf's law
    taste     users, categories, tags and items have vectors in `_PLANES` planes; all but the users' turn a full
              circle every `drift_rows` rows, with the direction alternating by plane
    quality   of an item: rises and falls once per `drift_rows`, each item at its own phase
    logit     bias + taste . (category + tags + item) + quality + hour of day - price above the usual one
So a model that stops learning is worth nothing after a quarter of a turn, and less after a half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Batch, Field, Schema, check_position
from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns

FIELDS = (
    Field("user_id", "id"),
    Field("item_id", "id"),
    Field("category", "string"),
    Field("tags", "strings"),
    Field("hour", "id"),
    Field("price", "float"),
)
START_TIME = 1_700_000_000.0

_BLOCK_ROWS = 4096
_PLANES = 2
_CATEGORIES, _TAGS = 16, 40
_MAX_TAGS = 4
_BIAS = -1.1
_TASTE, _QUALITY, _HOUR, _PRICE = 1.3, 0.8, 0.3, 0.4

# Namespaces of the random draws.
_USER, _ITEM, _CATEGORY, _TAG, _ROW = range(1, 6)


class SyntheticSource:
    """The endless stream, or its first `rows` rows, with `rows_per_s` rows a second from START_TIME on."""

    schema = Schema(FIELDS, "label", "time")

    def __init__(
        self,
        seed: int = 0,
        rows: int | None = None,
        users: int = 2000,
        items: int = 1000,
        item_rows: int = 250,
        drift_rows: int = 800_000,
        rows_per_s: float = 2.0,
    ) -> None:
        """Define a stream.

        Args:
            rows: Number of rows; None for an endless stream.
            items: Number of items alive at a time; an item lives for items * item_rows rows.
            item_rows: Rows between two births of items.
            drift_rows: Rows of a full turn of the tastes.
        """
        self._seed = _mix(np.array([seed % 2**64], np.uint64))[0]
        self._rows, self._items, self._item_rows = rows, items, item_rows
        self._turns_per_row, self._rows_per_s = 1 / drift_rows, rows_per_s
        self._user_shares = np.cumsum(1 / np.arange(1, users + 1) ** 0.6)
        self._category_names = [b"category-%03d" % i for i in range(_CATEGORIES)]
        self._tag_names = [b"tag-%03d" % i for i in range(_TAGS)]

    def count_rows(self) -> int | None:
        return self._rows

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        check_position(rows, start)
        block: Batch | None = None
        while self._rows is None or start < self._rows:
            last = start + rows if self._rows is None else min(start + rows, self._rows)
            parts = []
            at = start
            while at < last:
                if block is None or not block.start <= at < block.end:
                    block = self._block(at // _BLOCK_ROWS)
                until = min(last, block.end)
                parts.append(block.slice(at - block.start, until - block.start))
                at = until
            yield _join(parts)
            start = last

    def truth(self, batch: Batch) -> NDArray[np.float64]:
        """Return the true probability of a click, float64 [n], for rows of this stream in any selection or order."""
        time = batch.time
        assert time is not None
        user, item = _uint(batch.columns["user_id"]), _uint(batch.columns["item_id"])
        turn = (time - START_TIME) * self._rows_per_s * self._turns_per_row
        tags, splits = self._tags_of(item)
        tag_rows = np.repeat(np.arange(len(item)), np.diff(splits))
        tag_vectors = np.zeros((len(item), 2 * _PLANES))
        np.add.at(tag_vectors, tag_rows, self._turned(_TAG, tags, turn[tag_rows]))
        tag_vectors /= np.sqrt(np.diff(splits))[:, None]
        vectors = 1.0 * self._turned(_CATEGORY, self._category_of(item), turn)
        vectors += 0.5 * tag_vectors
        vectors += 0.4 * self._turned(_ITEM, item, turn)
        taste = (self._turned(_USER, user, np.zeros(len(user))) * vectors).sum(axis=1)
        quality = np.sqrt(2) * np.cos(2 * np.pi * (turn + self._uniform(_ITEM, item, 20)))
        hour = np.cos(2 * np.pi * (_uint(batch.columns["hour"]) / 24 - 0.8))
        price: Any = batch.columns["price"]
        above = np.log(np.maximum(price, 1e-6) / self._price_of(item))
        logit = _BIAS + _TASTE * taste + _QUALITY * quality + _HOUR * hour - _PRICE * above
        shares: NDArray[np.float64] = 1 / (1 + np.exp(-logit))
        return shares

    def _block(self, number: int) -> Batch:
        first = number * _BLOCK_ROWS
        row = np.arange(first, first + _BLOCK_ROWS, dtype=np.uint64)
        time = START_TIME + (row + self._uniform(_ROW, row, 0)) / self._rows_per_s
        share = self._uniform(_ROW, row, 1) * self._user_shares[-1]
        user = np.searchsorted(self._user_shares, share).astype(np.int64)
        item = self._alive(first, self._uniform(_ROW, row, 2))
        category = self._category_of(_uint(item)).astype(np.int64)
        tags, splits = self._tags_of(_uint(item))
        radius = np.sqrt(-2 * np.log(self._uniform(_ROW, row, 3)))
        noise = radius * np.cos(2 * np.pi * self._uniform(_ROW, row, 4))
        columns: dict[str, Column] = {
            "user_id": user,
            "item_id": item,
            "category": _name(self._category_names, category),
            "tags": Ragged(_name(self._tag_names, tags.astype(np.int64)), splits),
            "hour": (time // 3600 % 24).astype(np.int64),
            "price": (self._price_of(_uint(item)) * np.exp(0.5 * noise)).astype(np.float32),
        }
        unlabelled = Batch(columns, np.zeros(_BLOCK_ROWS, np.float32), time, first)
        label = (self._uniform(_ROW, row, 5) < self.truth(unlabelled)).astype(np.float32)
        return Batch(columns, label, time, first)

    def _alive(self, row: int, u: NDArray[np.float64]) -> NDArray[np.int64]:
        oldest = row // self._item_rows
        item = np.arange(oldest, oldest + self._items, dtype=np.int64)
        share = np.cumsum(np.maximum(self._uniform(_ITEM, _uint(item), 21), 1 / self._items) ** -0.9)
        drawn: NDArray[np.int64] = item[np.searchsorted(share, u * share[-1])]
        return drawn

    def _category_of(self, item: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return (self._uniform(_ITEM, item, 22) * _CATEGORIES).astype(np.uint64)

    def _tags_of(self, item: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return one to _MAX_TAGS tags an item: values [total], row_splits [n + 1]."""
        count = 1 + (self._uniform(_ITEM, item, 23) * _MAX_TAGS).astype(np.int64)
        first = self._uniform(_ITEM, item, 24) * _TAGS
        # Equal strides from a random first tag: the tags of an item are distinct, as _TAGS is at least 28.
        every = (first[:, None].astype(np.uint64) + np.arange(_MAX_TAGS, dtype=np.uint64) * np.uint64(7)) % np.uint64(
            _TAGS
        )
        splits = np.zeros(len(item) + 1, np.int64)
        np.cumsum(count, out=splits[1:])
        return every[np.arange(_MAX_TAGS) < count[:, None]], splits

    def _price_of(self, item: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the usual price: 5 to 500, uniform in the logarithm."""
        return 5 * 100 ** self._uniform(_ITEM, item, 25)

    def _turned(self, kind: int, ids: NDArray[np.uint64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return vectors [n, 2 * _PLANES] of unit mean square, turned by `turn` circles."""
        vectors = np.empty((len(ids), 2 * _PLANES))
        for plane in range(_PLANES):
            phase = 2 * np.pi * (self._uniform(kind, ids, plane) + (-1) ** plane * turn)
            vectors[:, 2 * plane], vectors[:, 2 * plane + 1] = np.cos(phase), np.sin(phase)
        return vectors / math.sqrt(_PLANES)

    def _uniform(self, kind: int, ids: NDArray[np.uint64], draw: int) -> NDArray[np.float64]:
        """Return a number in (0, 1) for each id, uniform and always the same."""
        salt = np.uint64((kind << 8 | draw) * 0x9E3779B97F4A7C15 % 2**64)
        bits = _mix(_mix(ids ^ self._seed) + salt)
        return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply splitmix64's finaliser: a bijection whose every output bit depends on every input bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uint(column: Any) -> NDArray[np.uint64]:
    numbers: NDArray[np.uint64] = column.astype(np.uint64)
    return numbers


def _name(names: list[bytes], which: NDArray[np.int64]) -> Strings:
    """Return names[which] as n strings; all names have one length, which: int64 [n]."""
    width = len(names[0])
    table = np.frombuffer(b"".join(names), np.uint8).reshape(len(names), width)
    return Strings(table[which].reshape(-1), np.arange(len(which) + 1, dtype=np.int64) * width)


def _join(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    columns = {name: join_columns([p.columns[name] for p in parts]) for name in parts[0].columns}
    time = np.concatenate([p.time for p in parts])
    return Batch(columns, np.concatenate([p.label for p in parts]), time, parts[0].start)


def default_features() -> dict[str, dict[str, Any]]:
    """Return sections [features.*] for this stream: all of FIELDS."""
    return {
        "user_id": {"kind": "id", "side": "user", "dim": 16},
        "item_id": {"kind": "id", "side": "item", "dim": 16},
        "category": {"kind": "string", "side": "item", "dim": 16},
        "tags": {"kind": "strings", "side": "item", "dim": 16, "combiner": "mean"},
        "hour": {"kind": "id", "side": "context", "dim": 16},
        "price": {"kind": "float", "side": "item", "transform": "log1p"},
    }
