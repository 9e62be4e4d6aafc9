"""kill -9 of a trainer that follows events and their items at random moments: the items served are the newest ones.

FRESHET_KILL_ROUNDS kills of each kind of items (3 if not set), at moments drawn by FRESHET_KILL_SEED.
"""

import json
import os
import random
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.publishing.entity_rows import entity_rows
from freshet_serving.models.publishing.publisher import Publisher
from tests.e2e.following import ITEMS, MODEL, FolderEvents, FollowingTrainer, learned, sent
from tests.e2e.test_kills import SEED
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis
from tests.support.waiting import until

pytestmark = [pytest.mark.kills, pytest.mark.tensorflow, pytest.mark.long]

pytest.importorskip("tensorflow", reason="training needs the train extra")

ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "3"))
LIFE_S = 4.0
wait = partial(until, within_s=300.0)


class FileOfItems:
    """A file that is replaced: an item that is left out is gone."""

    def __init__(self, folder):
        self.path, self.prices = str(folder / "items.parquet"), {}
        self._file = folder / "items.parquet"

    def change(self, prices, gone):
        self.prices = {item: price for item, price in (self.prices | prices).items() if item not in gone}
        self._write(self._file, self.prices)

    def _write(self, path, prices):
        columns = {"item": list(prices), "price": [float(price) for price in prices.values()]}
        hidden = path.with_name(f".{path.name}.tmp")
        pq.write_table(pa.table(columns), hidden)
        hidden.rename(path)

    def close(self): ...


class FolderOfItems(FileOfItems):
    """A folder of records, which remove none."""

    def __init__(self, folder):
        super().__init__(folder)
        self._folder, self._files, self.path = folder / "items", 0, str(folder / "items")
        self._folder.mkdir()

    def change(self, prices, gone):
        self.prices |= prices
        self._files += 1
        self._write(self._folder / f"{self._files:06}.parquet", prices)


class StreamOfItems(FileOfItems):
    """A Redis stream of records."""

    def __init__(self, folder):
        super().__init__(folder)
        self._server = RedisServer().start()
        self.path = self._server.url.removesuffix("/0") + "/items"

    def change(self, prices, gone):
        self.prices |= prices
        with self._server.client() as client:
            for item, price in prices.items():
                client.xadd("items", {"item": item, "price": price})

    def close(self):
        self._server.close()


def served(repository):
    """Keys and records of the newest generation, by key."""
    publisher = Publisher(repository, MODEL)
    keys, records = publisher.served().table("entities.item")
    order = np.argsort(keys)
    return keys[order].tolist(), records[order].tolist()


def expected(repository, prices):
    manifest, keys = Publisher(repository, MODEL).manifest, sorted(prices)
    columns = {"price": [float(prices[key]) for key in keys]}
    return keys, entity_rows(manifest, manifest.entities[0], columns, len(keys)).tolist()


@pytest.mark.parametrize(
    "kind",
    [FileOfItems, FolderOfItems, pytest.param(StreamOfItems, marks=needs_redis)],
    ids=["file", "folder", "redis"],
)
def test_newest_items_are_served_after_kills(kind, tmp_path):
    draw = random.Random(f"entities {kind.__name__} {SEED}")
    source, items = FolderEvents(tmp_path / "clicks"), kind(tmp_path)
    items.change(dict.fromkeys(range(ITEMS), 1), ())
    source.send(600)
    sections = ["[features.price]", 'kind = "float"', "[entities.item]", 'key = "item"', 'columns = ["price"]']
    trainer = FollowingTrainer(
        tmp_path,
        source.path,
        [*sections, f"path = {json.dumps(items.path)}"],
        delta_seconds=0.2,
        version_rows=5_000,
        snapshot_after=20,
    )
    trainer.start()

    def change():
        time.sleep(draw.random() / 2)
        prices = {draw.randrange(2 * ITEMS): draw.randrange(1000) for _ in range(draw.randint(1, 5))}
        items.change(prices, [draw.randrange(2 * ITEMS)] if len(items.prices) > 5 else ())
        if draw.random() < 0.5:
            source.send(draw.randint(1, 60))

    try:
        wait(lambda: trainer.metrics().get("freshet_train_version") == 1)
        for life in range(ROUNDS):
            wait(lambda: trainer.metrics().get("freshet_train_deltas_total", 0) > 0, change)
            end_s = time.monotonic() + draw.random() * LIFE_S
            while time.monotonic() < end_s:
                change()
            trainer.kill()
            change()
            trainer.start()
            print(f"life {life}: {source.count:,} events, {len(items.prices)} items")
        wait(lambda: trainer.metrics().get("freshet_train_position") == source.count)
        wait(lambda: served(trainer.repository) == expected(trainer.repository, items.prices))
        assert trainer.metrics()["freshet_train_stale_tables"] == 0
        assert trainer.end() == 0, trainer.log.read_text()[-3000:]
        assert served(trainer.repository) == expected(trainer.repository, items.prices)
        assert learned(trainer.checkpoints) == sent(source.count)
    finally:
        trainer.close()
        items.close()
