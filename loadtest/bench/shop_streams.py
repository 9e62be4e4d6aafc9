"""Made-up shops whose good streams look odd to a guard: swinging labels, a day's tide, a launch, a price change.

Rows are drawn block by block from (seed, block), so that any position can be read again. A label follows from user,
item, price and the rate of the moment; only the rate of a swing is in no column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Batch, Field, Schema, check_position

BLOCK_ROWS = 1000
"""A swing's rate changes from one thousand rows to the next."""
START_TIME = 1_700_006_400.0
"""A midnight."""
USERS, ITEMS, CATEGORIES = 2000, 1000, 20
LAUNCHED = 10_000

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShopKind:
    """What happens in a shop.

    Attributes:
        low, high: mean label at the lowest and the highest moment.
        tide: whether the rate and what is looked at follow the hour; otherwise the rate is drawn anew for each block.
        launch_row: from here on 30 % of the rows are of LAUNCHED new items, 0 for never.
        price_row: from here on every third item costs 0.7 of its price and is bought more, 0 for never.
        row_s: seconds from row to row.
    """

    name: str
    low: float = 0.08
    high: float = 0.08
    tide: bool = False
    launch_row: int = 0
    price_row: int = 0
    row_s: float = 0.1


class ShopSource:
    """The endless stream of one shop."""

    schema = Schema(
        (
            Field("user", "id"),
            Field("item", "id"),
            Field("category", "id"),
            Field("hour", "id"),
            Field("price", "float"),
        ),
        "bought",
        "time",
    )

    def __init__(self, kind: ShopKind, seed: int = 0) -> None:
        random = np.random.default_rng([37, seed])
        self.kind, self._seed = kind, seed
        items = ITEMS + LAUNCHED
        self._user_says = random.normal(0, 0.7, USERS)
        self._item_says = np.concatenate([random.normal(0, 0.7, ITEMS), random.normal(0.4, 0.7, LAUNCHED)])
        self._prices = np.exp(random.uniform(1.5, 6.0, items))
        self._shares = np.cumsum(1 / np.arange(1, ITEMS + 1) ** 0.8)

    def count_rows(self) -> int | None:
        return None

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """See Source.batches."""
        check_position(rows, start)
        block: Batch | None = None
        while True:
            parts, at, last = [], start, start + rows
            while at < last:
                if block is None or not block.start <= at < block.end:
                    block = self._block(at // BLOCK_ROWS)
                until = min(last, block.end)
                parts.append(block.slice(at - block.start, until - block.start))
                at = until
            yield _joined(parts)
            start = last

    def _block(self, number: int) -> Batch:
        random, kind, first = np.random.default_rng([41, self._seed, number]), self.kind, number * BLOCK_ROWS
        row = first + np.arange(BLOCK_ROWS)
        time: Float64s = START_TIME + row * np.float64(kind.row_s)
        hour = (time // 3600 % 24).astype(np.int64)
        user = (random.random(BLOCK_ROWS) ** 2 * USERS).astype(np.int64)
        item = np.searchsorted(self._shares, random.random(BLOCK_ROWS) * self._shares[-1]).astype(np.int64)
        if kind.tide:
            # At night other items are looked at.
            item = np.where((hour < 8) & (random.random(BLOCK_ROWS) < 0.5), ITEMS - 1 - item, item)
            share = (1 - np.cos(2 * np.pi * (time / 86_400 - 0.15))) / 2
        else:
            share = np.full(BLOCK_ROWS, random.random())
        if kind.launch_row:
            new = (row >= kind.launch_row) & (random.random(BLOCK_ROWS) < 0.3)
            item = np.where(new, ITEMS + random.integers(0, LAUNCHED, BLOCK_ROWS), item)
        cut = (row >= kind.price_row) & (item % 3 == 0) if kind.price_row else np.zeros(BLOCK_ROWS, bool)
        rate = kind.low + (kind.high - kind.low) * share
        # The deviation of the logit raises the mean of rare labels by about a half.
        logit = np.log(rate / (1 - rate)) - 0.45 + self._user_says[user] + self._item_says[item] + 0.4 * cut
        columns: dict[str, Any] = {
            "user": user,
            "item": item,
            "category": item % CATEGORIES,
            "hour": hour,
            "price": (self._prices[item] * np.where(cut, 0.7, 1.0)).astype(np.float32),
        }
        label = (random.random(BLOCK_ROWS) < 1 / (1 + np.exp(-logit))).astype(np.float32)
        return Batch(columns, label, time, first)


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {
        name: np.concatenate([np.asarray(part.columns[name]) for part in parts]) for name in parts[0].columns
    }
    times: Any = [part.time for part in parts]
    return Batch(columns, np.concatenate([part.label for part in parts]), np.concatenate(times), parts[0].start)
