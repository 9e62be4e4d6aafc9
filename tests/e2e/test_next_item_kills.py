"""kill -9 of the trainer of a next-item network that follows events: each is counted and learned once, and served.

FRESHET_KILL_ROUNDS kills (2 if not set), at moments drawn by FRESHET_KILL_SEED.
"""

import json
import os
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.training.checkpoint import map_newest
from freshet_serving.processor.package.item_rows import ItemRows
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.following import ITEMS, MODEL, USERS, FolderEvents, FollowingTrainer
from tests.e2e.test_follow_kills import Feeder
from tests.e2e.test_kills import SEED
from tests.support.waiting import until

pytestmark = [pytest.mark.kills, pytest.mark.tensorflow, pytest.mark.long]

ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "2"))
LIFE_S, PATIENT_S = 4.0, 300.0
FILE = """
[model]
name = "{model}"
arch = "sasrec_next"
layers = 1
[data]
path = {path}
label = "clicked"
time = "ts"
[features.user]
kind = "id"
side = "user"
[features.item]
kind = "id"
side = "item"
dim = 8
[sequences.h]
columns = {{ item = "item" }}
tables = {{ item = "item" }}
from_events = "user"
ties = "file"
max_length = 6
[train]
epochs = 1
batch_rows = 64
[publish]
repository = {repository}
full_rows = 600
delta_seconds = 0.2
"""


class Steps(FolderEvents):
    """Each user steps through the items one by one; every hundredth event is of an item of its own."""

    def made(self, first, rows):
        columns = super().made(first, rows)
        numbers = np.arange(first, first + rows)
        item = (numbers // USERS + columns["user"]) % ITEMS
        return columns | {"item": np.where(numbers % 100 == 99, 1000 + numbers, item)}


def item_rows(checkpoints):
    """The items' rows by key, as the newest checkpoint has them."""
    rows = {}
    for layer in reversed(map_newest(checkpoints).tables["item"]):
        rows |= dict(zip(layer.keys.tolist(), layer.rows))
    return rows


def test_every_event_is_counted_once_and_served(tmp_path):
    draw = random.Random(f"next item {SEED}")
    source = Steps(tmp_path / "clicks")
    source.send(600)
    trainer = FollowingTrainer(tmp_path, source.path)
    paths = {"path": json.dumps(source.path), "repository": json.dumps(str(trainer.repository))}
    trainer.config.write_text(FILE.format(model=MODEL, **paths))
    trainer.start()
    # Few at a time: a step of this network costs more than those of the others.
    feeder = Feeder(source, SimpleNamespace(randint=lambda least, most: draw.randint(least, most // 8)))
    try:
        until(lambda: trainer.metrics().get("freshet_train_version") == 1, within_s=PATIENT_S)
        feeder.start()
        for life in range(ROUNDS):
            until(lambda: trainer.metrics().get("freshet_train_deltas_total", 0) > 0, within_s=PATIENT_S)
            time.sleep(draw.random() * LIFE_S)
            trainer.kill()
            trainer.start()
            print(f"life {life}: killed, {source.count:,} events sent")
        feeder.ended.set()
        feeder.join()
        until(lambda: trainer.metrics().get("freshet_train_position") == source.count, within_s=PATIENT_S)
        assert trainer.metrics()["freshet_train_held"] == 0
        assert trainer.end() == 0, trainer.log.read_text()[-3000:]
    finally:
        feeder.ended.set()
        trainer.close()
    rows = item_rows(trainer.checkpoints)
    assert set(rows) == {*range(ITEMS), *range(1099, 1000 + source.count, 100)}
    layout = ItemRows.around(8, {})
    followed = sum(row[layout.totals.start] for row in rows.values())
    # Each event but a user's first came after another one.
    assert followed == source.count - USERS
    with GenerationScorer(Repository(trainer.repository).version(MODEL), MODEL) as scorer:
        keys, served = scorer.rows("item")
    assert {key: row.tobytes() for key, row in zip(keys.tolist(), served)} == {
        key: row.tobytes() for key, row in rows.items()
    }
