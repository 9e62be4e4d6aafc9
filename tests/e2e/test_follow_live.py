"""`freshet train --follow` as a user runs it: a process, a source that grows, a server beside it, its own metrics."""

import json
import shutil

import pytest

from tests.e2e.following import MODEL, FolderEvents, FollowingTrainer, RedisEvents, learned, sent
from tests.e2e.servers import ALONE, LiveServer
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

pytest.importorskip("tensorflow", reason="training needs the train extra")


@pytest.fixture(params=["folder", "redis"])
def source(request, tmp_path):
    if request.param == "redis" and shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    source = FolderEvents(tmp_path / "clicks") if request.param == "folder" else RedisEvents()
    yield source
    source.close()


def test_arriving_events_are_learned_served_and_counted_until_stopped(source, tmp_path):
    source.send(600)
    trainer = FollowingTrainer(tmp_path, source.path, delta_seconds=0.3, version_rows=700)
    trainer.start()
    try:
        until(lambda: trainer.metrics().get("freshet_train_version") == 1)
        with LiveServer(trainer.repository, *ALONE, log=tmp_path / "serve.log") as server:
            for _ in range(4):
                source.send(250)
                until(lambda: trainer.metrics().get("freshet_train_position") == source.count)
            metrics = trainer.metrics()
            newest = f"{metrics['freshet_train_version']:.0f}.{metrics['freshet_train_step']:.0f}"
            assert newest.startswith("2.")
            until(lambda: server.generation(MODEL) == newest)
            assert metrics["freshet_train_rows_total"] == source.count
            assert metrics["freshet_train_stream_up"] == 1
            assert metrics["freshet_train_held"] == 0
            assert trainer.end() == 0
        assert learned(trainer.checkpoints) == sent(source.count)
        log = trainer.log.read_text()
        assert "published followed 2.0" in log
        assert "Traceback" not in log
        # What was followed is learned on without --follow too, and ends with what is there.
        source.send(100)
        from freshet_serving.models.config.train_config import load_config
        from freshet_serving.models.training.loop import TrainingRun

        TrainingRun(load_config(trainer.config, ["publish.full_rows=600"])).run()
        assert learned(trainer.checkpoints) == sent(source.count)
        told = json.dumps([path.read_text() for path in trainer.repository.rglob(".runs/**/config.json")])
        assert "@" not in told
    finally:
        trainer.close()
