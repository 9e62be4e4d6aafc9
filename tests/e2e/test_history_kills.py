"""kill -9 of a trainer and of the store it writes histories to: served histories are the learned ones, never older.

FRESHET_KILL_ROUNDS kills (2 if not set), at moments drawn by FRESHET_KILL_SEED, every other of the store, which comes
up without what it had.
"""

import json
import os
import random
import time

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.checkpoint import Checkpoints
from tests.e2e.following import MODEL, USERS, FolderEvents, FollowingTrainer
from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_follow_kills import Feeder
from tests.e2e.test_kills import SEED
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis
from tests.support.waiting import until

pytestmark = [pytest.mark.kills, pytest.mark.tensorflow, pytest.mark.long, needs_redis]

ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "2"))
LIFE_S, MOST, PATIENT_S = 4.0, 6, 300.0
HISTORY = f"""
[sequences.h]
columns = {{ item = "item" }}
tables = {{ item = "item" }}
floats = {{ number = "number" }}
from_events = "user"
max_length = {MOST}
store = "main"
"""


@pytest.fixture
def store():
    store = RedisServer(options=["--appendonly", "no"]).start()
    yield store
    store.close()


def served(store):
    """Each user's items, and the events' numbers; none for who has no history."""
    found = {user: ([], []) for user in range(USERS)}
    with store.client() as client:
        for user in found:
            fields = client.hgetall(f"{MODEL}:h:{user}")
            if fields:
                found[user] = json.loads(fields[b"item"]), json.loads(fields[b"number"])
    return found


class NumberedEvents(FolderEvents):
    """Sends events as Parquet files, with their numbers; keeps all that were sent."""

    def __init__(self, folder):
        super().__init__(folder)
        self.rows = []

    def made(self, first, rows):
        columns = super().made(first, rows) | {"number": np.arange(first, first + rows, dtype=np.float32)}
        self.rows += zip(columns["user"].tolist(), columns["item"].tolist(), range(first, first + rows))
        return columns

    def histories(self, count):
        """What each user did last in the first so many events."""
        found = {user: ([], []) for user in range(USERS)}
        for user, item, number in self.rows[:count]:
            found[user][0].append(item)
            found[user][1].append(number)
        return {user: (items[-MOST:], numbers[-MOST:]) for user, (items, numbers) in found.items()}


def position(trainer):
    """Rows that the newest checkpoint has learned: at least those of the newest delta."""
    return Checkpoints(trainer.checkpoints).newest().position


def scores(server, inputs):
    """The body of a reply; None if a feature was missing."""
    body = json.dumps({"inputs": inputs}).encode()
    status, headers, reply = server.request("POST", f"/v1/models/{MODEL}:predict", body)
    assert status == 200, reply
    return None if "x-features-missing" in {name.lower() for name in headers} else reply


def test_served_histories_are_the_learned_ones_whatever_is_killed(store, tmp_path):
    draw = random.Random(f"histories {SEED}")
    source = NumberedEvents(tmp_path / "clicks")
    source.send(600)
    where = f"main=redis://127.0.0.1:{store.port}"
    trainer = FollowingTrainer(tmp_path, source.path, [HISTORY], ("--online-store", where), delta_seconds=0.2)
    trainer.start()
    feeder = Feeder(source, draw)
    server = None
    try:
        until(lambda: trainer.metrics().get("freshet_train_version") == 1, within_s=PATIENT_S)
        feeder.start()
        for life in range(ROUNDS):
            until(lambda: trainer.metrics().get("freshet_train_deltas_total", 0) > 0, within_s=PATIENT_S)
            time.sleep(draw.random() * LIFE_S)
            if life % 2:
                store.kill()
                time.sleep(draw.random())
                store.start()
            else:
                trainer.kill()
                least = source.histories(position(trainer))
                for user, (_, numbers) in served(store).items():
                    # Newer than what is published, perhaps; older, never.
                    assert numbers >= least[user][1], (life, user)
                trainer.start()
            print(f"life {life}: killed the {'store' if life % 2 else 'trainer'}, {source.count:,} events sent")
        feeder.ended.set()
        feeder.join()
        until(lambda: trainer.metrics().get("freshet_train_position") == source.count, within_s=PATIENT_S)
        assert trainer.end() == 0, trainer.log.read_text()[-3000:]
        histories = source.histories(source.count)
        assert served(store) == histories
        server = LiveServer(trainer.repository, *ALONE, "--online-store", where, log=tmp_path / "serve.log")
        server.wait_ready()
        for user, (items, numbers) in histories.items():
            asked = {"user": [user], "item": [1, 2, 3]}
            # On a machine that is busy the store may answer late.
            alone = until(lambda asked=asked: scores(server, asked))
            assert alone == scores(server, asked | {"h.item": [items], "h.number": [numbers]})
    finally:
        feeder.ended.set()
        trainer.close()
        if server is not None:
            server.__exit__()
