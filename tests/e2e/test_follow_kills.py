"""kill -9 of the trainer, the stream and the server at random moments: every event is learned exactly once.

FRESHET_KILL_ROUNDS kills (3 if not set), at moments drawn by FRESHET_KILL_SEED; every third of the trainer, of the
stream's server and of ours. A folder has no server: there the trainer is killed twice as often.
"""

import os
import random
import shutil
import threading
import time
from functools import partial

import pytest

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.following import MODEL, FolderEvents, FollowingTrainer, RedisEvents, learned, sent, weights
from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_kills import SEED
from tests.support.waiting import until

pytestmark = [pytest.mark.kills, pytest.mark.tensorflow, pytest.mark.long]

pytest.importorskip("tensorflow", reason="training needs the train extra")

ROUNDS = int(os.environ.get("FRESHET_KILL_ROUNDS", "3"))
LIFE_S = 4.0
wait = partial(until, within_s=300.0)


class Feeder(threading.Thread):
    """Sends events all the time; what a killed stream refused is sent again."""

    def __init__(self, source, draw):
        super().__init__(daemon=True)
        self.source, self.draw, self.ended = source, draw, threading.Event()

    def run(self):
        while not self.ended.wait(0.05):
            # A server that is being killed refuses, and is asked again.
            try:
                self.source.send(self.draw.randint(1, 60))
            except OSError:
                continue
            except Exception as error:
                if type(error).__module__.startswith("redis"):
                    continue
                raise


@pytest.fixture(params=["folder", "redis"])
def source(request, tmp_path):
    if request.param == "redis" and shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    source = FolderEvents(tmp_path / "clicks") if request.param == "folder" else RedisEvents()
    yield source
    source.close()


def newest(repository):
    version = Repository(repository).version(MODEL)
    change_log = ChangeLog.of(version, whole=True)
    for link in change_log.history.line()[1:]:
        change_log.read_delta(link)
    return Generation(version.manifest.version, change_log.history.target.step)


def test_every_event_is_learned_exactly_once(source, tmp_path):
    draw = random.Random(f"follow {SEED}")
    source.send(600)
    trainer = FollowingTrainer(tmp_path, source.path, delta_seconds=0.2, version_rows=20_000, snapshot_after=20)
    trainer.start()
    feeder = Feeder(source, draw)
    server, reached = None, Generation(0, 0)
    try:
        wait(lambda: trainer.metrics().get("freshet_train_version") == 1)
        server = LiveServer(trainer.repository, *ALONE, log=tmp_path / "serve.log")
        server.wait_ready()
        feeder.start()
        for life in range(ROUNDS):
            wait(lambda: trainer.metrics().get("freshet_train_deltas_total", 0) > 0)
            time.sleep(draw.random() * LIFE_S)
            victim = ("trainer", "stream", "server")[life % 3]
            if victim == "server":
                server.process.kill()
                server.process.wait()
                server = LiveServer(trainer.repository, *ALONE, log=tmp_path / "serve.log")
                server.wait_ready()
            elif victim == "stream" and isinstance(source, RedisEvents):
                source.kill()
            else:
                trainer.kill()
                generation = newest(trainer.repository)
                assert generation >= reached, life
                reached = generation
                trainer.start()
            print(f"life {life}: killed the {victim}, {source.count:,} events sent, generation {reached}")
        feeder.ended.set()
        feeder.join()
        wait(lambda: trainer.metrics().get("freshet_train_position") == source.count)
        assert trainer.end() == 0, trainer.log.read_text()[-3000:]
        assert learned(trainer.checkpoints) == sent(source.count)
        # What it has written down of its steps is what it has learned.
        assert weights(trainer.repeat(tmp_path / "again")) == weights(trainer.checkpoints)
        generation = newest(trainer.repository)
        wait(lambda: server.generation(MODEL) == str(generation))
    finally:
        feeder.ended.set()
        trainer.close()
        if server is not None:
            server.__exit__()
