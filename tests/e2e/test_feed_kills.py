"""kill -9 of `freshet delta follow` and of a trainer that publish to one version, at random moments: in the end each
key has the features of its newest row, and rows and weights are the trainer's last.

FRESHET_KILL_ROUNDS kills of each kind of stream (2 if not set), drawn by FRESHET_KILL_SEED.
"""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.e2e.killed_feed import LAST, USERS
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis
from tests.support import entities
from tests.support.packages import make_weights, reference, tag_id

pytestmark = [pytest.mark.kills, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "2"))
SEED = os.environ.get("FRESHET_KILL_SEED", "freshet")
ENTITY = replace(entities.ENTITY, inputs=["tags"], text_nbytes=64)
HANGS_AFTER_S = 120.0
TAGS = {tag_id(tag): 0 for tag in "abc"}


class RedisRows:
    def __init__(self, folder):
        self._server = RedisServer().start()
        self.url = self._server.url.removesuffix("/0") + "/items"

    def send(self, rows):
        with self._server.client() as client:
            for user, tags in rows:
                client.xadd("items", {"json": json.dumps({"user": user, "tags": tags})})

    def close(self):
        self._server.close()


class FolderRows:
    def __init__(self, folder):
        self._folder, self._files, self.url = folder / "rows", 0, str(folder / "rows")
        self._folder.mkdir()

    def send(self, rows):
        users, tags = zip(*rows)
        columns = {"user": pa.array(users, pa.int64()), "tags": pa.array(tags, pa.list_(pa.string()))}
        self._files += 1
        aside = self._folder / f".{self._files:04}"
        pq.write_table(pa.table(columns), aside)
        aside.rename(self._folder / f"{self._files:04}.parquet")

    def close(self):
        pass


class Child:
    """A process whose lines go to a file."""

    def __init__(self, log, *command):
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)], cwd=ROOT, stdout=out, stderr=out
            )

    def lines(self):
        return len(self.log.read_text().splitlines())

    def kill_after(self, lines, work):
        """Kill it once it has said so many lines; `work` is done meanwhile."""
        give_up_s = time.monotonic() + HANGS_AFTER_S
        while self.lines() < lines:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up_s, f"hung after {self.log.read_text()[-300:]}"
            work()
            time.sleep(0.002)
        self.end()

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("kind", [pytest.param(RedisRows, marks=needs_redis), FolderRows], ids=["redis", "folder"])
def test_newest_features_and_weights_are_served_after_kills(tmp_path, kind):
    draw = random.Random(f"feed {kind.__name__} {SEED}")
    repository, stream, newest = tmp_path / "repository", kind(tmp_path), {}
    entities.write_package(repository, entity=ENTITY)
    follow = ["freshet_serving", "delta", "follow", "small", "--entity", "profile", "--from", stream.url]
    follow += ["--state", tmp_path / "state", "--repository", repository]
    made = {
        "feed": lambda: Child(
            tmp_path / "feed.log", *follow, "--every", "0.01", "--rows", str(draw.choice([1, 3, 50]))
        ),
        "trainer": lambda: Child(tmp_path / "trainer.log", "tests.e2e.killed_feed", "train", repository),
    }

    def arrive():
        rows = [(draw.randrange(8), draw.choices(entities.WORDS[:3], k=draw.randrange(4))) for _ in range(3)]
        stream.send(rows)
        newest.update(rows)

    children = {name: start() for name, start in made.items()}
    try:
        for _ in range(ROUNDS):
            name = draw.choice(["feed", "feed", "trainer"])
            children[name].kill_after(draw.randint(1, 12), arrive)
            children[name] = made[name]()
        arrive()
    finally:
        for child in children.values():
            child.end()
    last = [[*follow, "--once"], ["tests.e2e.killed_feed", "finish", repository]]
    draw.shuffle(last)
    for command in last:
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_AFTER_S
        )
        assert done.returncode == 0, done.stderr
    stream.close()
    users = sorted(newest)
    floats = np.zeros((len(users), 4), np.float32)
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1, delta_guard="off")) as processor:
        reply = processor.process(PredictRequest("small", {"user": np.array(users), "floats": floats}))
    tags = [newest[user][:3] for user in users]
    wanted = reference(dict.fromkeys(USERS, LAST), TAGS, make_weights(LAST), users, tags, floats)
    np.testing.assert_allclose(np.ravel(reply.outputs["score"]), wanted, atol=1e-5)
