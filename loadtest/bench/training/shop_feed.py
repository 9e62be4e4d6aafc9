"""The feed of follow_histories: a shop's impressions, clicks and changed items, as servers and other systems write.

    python -m loadtest.bench.training.shop_feed --folder FOLDER --events 2000000 --rate 2500

Every block of BLOCK_ROWS impressions is drawn from (seed, block) and written as one file of recordings, its clicks as
outcomes in up to three files: most of them soon, some later, some so late that the row has been learned as a negative
and is corrected. Every ITEM_BLOCKS blocks some items get another price and category, as records with a time. Files
appear whole, and which exist says where the feed is: after a kill the same command goes on. Only times are those of
the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

BLOCK_ROWS, ITEM_BLOCKS, CHANGED_ITEMS = 2500, 5, 40
USERS, ITEMS, CATEGORIES = 40_000, 4_000, 30
DELAYS = (1, 3, 14)
"""Blocks after which a click comes."""
SHARES = (0.6, 0.3, 0.1)
MODEL, TIMESTAMP = "shop", pa.timestamp("us", "UTC")

Int64s = NDArray[np.int64]


class Shop:
    """Who is shown what, and clicks; every block the same however often it is drawn."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng([52, seed])
        self._seed = seed
        self._user, self._item = random.normal(0, 0.8, (USERS, 4)), random.normal(0, 0.8, (ITEMS, 4))
        self._bias = random.normal(0, 0.5, ITEMS)
        self._user_shares = np.cumsum(random.permutation(np.arange(1, USERS + 1) ** -0.5))
        self._item_shares = np.cumsum(random.permutation(np.arange(1, ITEMS + 1) ** -0.7))

    def block(self, number: int, rows: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return user, item and delay of the click of each row, in blocks; 0 without a click."""
        random = np.random.default_rng([53, self._seed, number])
        user = np.searchsorted(self._user_shares, random.random(rows) * self._user_shares[-1])
        item = np.searchsorted(self._item_shares, random.random(rows) * self._item_shares[-1])
        logit = (self._user[user] * self._item[item]).sum(axis=1) + self._bias[item] - 1.2
        clicked = random.random(rows) < 1 / (1 + np.exp(-logit))
        delay = np.where(clicked, random.choice(DELAYS, rows, p=SHARES), 0)
        return user.astype(np.int64), item.astype(np.int64), delay.astype(np.int64)

    def items(self, number: int) -> dict[str, Any]:
        """Return the records of a change: of all items the first time, later of some."""
        random = np.random.default_rng([54, self._seed, number])
        items = np.arange(ITEMS) if not number else random.choice(ITEMS, CHANGED_ITEMS, replace=False)
        price = np.exp(random.uniform(1, 6, len(items))).astype(np.float32)
        return {"item": items, "price": price, "category": random.integers(0, CATEGORIES, len(items))}


class Feed:
    """Writes what a shop's systems write into three folders; goes on where the files end."""

    def __init__(self, folder: Path, events: int, seed: int) -> None:
        self._shop, self._events = Shop(seed), events
        self.recordings, self.outcomes, self.items = (folder / n for n in ("recordings", "outcomes", "items"))
        for made in (self.recordings, self.outcomes, self.items):
            made.mkdir(parents=True, exist_ok=True)
        self.blocks = -(-events // BLOCK_ROWS)
        """All of them; max(DELAYS) more have the last clicks."""

    def rows(self, block: int) -> int:
        return max(0, min(BLOCK_ROWS, self._events - block * BLOCK_ROWS))

    @property
    def next(self) -> int:
        """The block that comes next: its outcomes are written last."""
        return len(list(self.outcomes.glob("*.parquet")))

    @property
    def ended(self) -> bool:
        return self.next >= self.blocks + max(DELAYS)

    def send(self, since_s: float) -> None:
        """Write the files of the next block that are not there.

        Args:
            since_s: Time of the block before.
        """
        number, now_s = self.next, time.time()
        if number % ITEM_BLOCKS == 0 and number < self.blocks:
            records = self._shop.items(number // ITEM_BLOCKS)
            times = np.full(len(records["item"]), now_s)
            self._put(self.items / f"{number:06}.parquet", pa.table(records | {"time": times}))
        rows = self.rows(number)
        if rows and not any(self.recordings.glob(f"*-{number + 1}.parquet")):
            times = np.linspace(since_s, now_s, rows, endpoint=False) * 1e6
            user, item, _ = self._shop.block(number, rows)
            recorded = {
                "freshet.request": pa.array([f"{number}-{row}" for row in range(rows)]),
                "freshet.row": pa.array(np.zeros(rows, np.int32)),
                "freshet.time": pa.array(times.astype(np.int64)).cast(TIMESTAMP),
                "freshet.generation": pa.array([f"{MODEL}.0"] * rows),
                "user": user,
                "item": item,
                "freshet.output.score": pa.array(np.full(rows, 0.25, np.float32)),
            }
            about = {b"freshet": json.dumps({"model": MODEL}).encode()}
            name = f"{MODEL}-w0-{int(now_s * 1e3)}-{number + 1}.parquet"
            self._put(self.recordings / name, pa.table(recorded).replace_schema_metadata(about))
        clicks = []
        for delay in DELAYS:
            block = number - delay
            if 0 <= block < self.blocks:
                clicked = np.flatnonzero(self._shop.block(block, self.rows(block))[2] == delay)
                clicks += [f"{block}-{row}" for row in clicked.tolist()]
        none = np.zeros(len(clicks), np.int64)
        outcomes = {"request": pa.array(clicks, pa.string()), "row": none, "time": np.full(len(clicks), time.time())}
        self._put(self.outcomes / f"{number:06}.parquet", pa.table(outcomes))

    def _put(self, path: Path, table: pa.Table) -> None:
        if not path.exists():
            pq.write_table(table, path.with_name(f".{path.name}.tmp"))
            path.with_name(f".{path.name}.tmp").rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="events a second [as many as it can]")
    parser.add_argument("--blocks", type=int, default=0, help="stop after so many blocks [the end]")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    feed = Feed(arguments.folder, arguments.events, arguments.seed)
    before_s = time.time()
    while not feed.ended and not 0 < arguments.blocks <= feed.next:
        began_s = time.time()
        feed.send(before_s)
        before_s = time.time()
        if arguments.rate:
            time.sleep(max(0.0, BLOCK_ROWS / arguments.rate - (time.time() - began_s)))


if __name__ == "__main__":
    main()
