"""A repository in an object store, live: trained there, served from there by two servers, an outage under load."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from freshet_serving.processor.package.delta import write_delta
from tests.e2e.servers import ALONE, LiveServer
from tests.programs.outage import Load
from tests.support.object_stage import Arrivals, PublishingProcess, ReplicaSet, upload_package
from tests.support.packages import make_delta
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def env(store, tmp_path):
    return {**os.environ, "FRESHET_MIRROR": str(tmp_path / "writer")}


@pytest.fixture
def address(store, tmp_path):
    address = store.address("prod")
    upload_package(store, address, tmp_path / "package")
    return address


@pytest.fixture
def publisher(address, env, tmp_path):
    publisher = PublishingProcess(address, env, tmp_path / "publish.log")
    yield publisher
    publisher.close()


def test_two_servers_follow_deltas_a_rollback_and_an_upload_to_one(address, env, publisher, tmp_path):
    with ReplicaSet(address, env, tmp_path, 2) as fleet:
        for seed in range(3):
            publisher.publish(100, seed)
        until(lambda: fleet.generations() == ["1.3", "1.3"])
        assert len(set(fleet.digests())) == 1
        status, reply = fleet.servers[0].post_json("/admin/models/small/rollback", {"generation": "1.1"})
        assert status == 200, reply
        until(lambda: fleet.generations() == ["1.1", "1.1"])
        step, _ = publisher.publish(100, 9)
        assert step == 4
        until(lambda: fleet.generations() == ["1.4", "1.4"])
        assert len(set(fleet.digests())) == 1
        write_delta(tmp_path / "delta", make_delta(5, users=[1, 2, 3]))
        status, reply = fleet.servers[0].upload("small", (tmp_path / "delta").read_bytes())
        assert status == 200, reply
        until(lambda: fleet.generations() == ["1.5", "1.5"])
        digests = fleet.digests()
        assert len(set(digests)) == 1
        # A replica that has nothing comes to the same.
        fleet.servers[1].__exit__()
        fleet.mirrors[1] = tmp_path / "an empty mirror"
        fleet.start(1).wait_ready()
        assert fleet.digests() == digests


def test_outage_fails_no_request_and_ends_at_the_newest_delta(store, address, env, publisher, tmp_path):
    """The port refuses, and then it takes connections and never answers."""
    with (
        ReplicaSet(address, env, tmp_path, 2) as fleet,
        Arrivals(fleet.servers) as arrivals,
        Load([server.http_port for server in fleet.servers]) as load,
    ):
        for seed, (begin, end) in enumerate([(store.refuse, store.serve), (store.hang, store.wake)]):
            step, _ = publisher.publish(100, seed)
            until(lambda step=step: arrivals.everywhere_s(step))
            begin()
            before = load.answered
            until(lambda before=before: load.answered > before + 500)
            end()
        step, _ = publisher.publish(100, 9)
        until(lambda: arrivals.everywhere_s(step))
    assert load.failed == []


@pytest.mark.tensorflow
def test_training_and_serving_work_entirely_on_the_object_store(store, env, tmp_path):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet

    from freshet_serving.processor.extensions.object_stores.object_store import open_store

    rng = np.random.default_rng(0)
    for n in range(3):
        users, items = rng.integers(0, 50, 400), rng.integers(0, 30, 400)
        clicked = ((users + items) % 3 == 0).astype(np.float32)
        rows = pa.table({"user": users, "item": items, "clicked": clicked, "ts": np.arange(n * 400.0, (n + 1) * 400)})
        pyarrow.parquet.write_table(rows, tmp_path / "part.parquet")
        open_store("s3://models/clicks").put(f"part-{n}.parquet", tmp_path / "part.parquet")
    config = tmp_path / "train.toml"
    config.write_text(
        """
[model]
name = "ctr"
hidden = [8]
[data]
path = "s3://models/clicks/part-*.parquet"
label = "clicked"
time = "ts"
[features.user]
kind = "id"
dim = 4
[features.item]
kind = "id"
dim = 4
[train]
batch_rows = 50
[publish]
repository = "s3://models/trained"
full_rows = 400
delta_rows = 200
"""
    )
    command = [sys.executable, "-m", "freshet_serving", "train", "--config", str(config)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    trained = subprocess.run(
        command, cwd=tmp_path, env={**env, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert (tmp_path / "trainer" / "models" / "trained" / ".checkpoints" / "ctr").is_dir()
    keys = list(open_store("s3://models/trained").keys(""))
    assert not [key for key in keys if "checkpoint" in key or ".runs" in key]
    options = (*ALONE, "--mirror", str(tmp_path / "mirror"))
    with LiveServer("s3://models/trained", *options, log=tmp_path / "serve.log", env=env) as server:
        until(lambda: server.generation("ctr") == "1.4")
        assert json.loads(server.get("/v1/models/ctr")[2])


@pytest.mark.tensorflow
def test_endless_trainer_waits_for_its_store_without_repeating_events(store, env, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from tests.e2e.following import FolderEvents, FollowingTrainer, learned, sent

    monkeypatch.setenv("FRESHET_MIRROR", env["FRESHET_MIRROR"])
    events = FolderEvents(tmp_path / "clicks")
    events.send(600)
    own = {"repository": store.address("followed"), "trainer_folder": str(tmp_path / "repository")}
    trainer = FollowingTrainer(tmp_path, events.path, delta_seconds=0.2, **own)
    trainer.start()
    try:
        until(lambda: trainer.metrics().get("freshet_train_version") == 1)
        events.send(100)
        until(lambda: trainer.metrics().get("freshet_train_position") == events.count)
        store.refuse()
        events.send(300)
        until(lambda: trainer.alive() and "waiting for it" in trainer.log.read_text())
        store.serve()
        events.send(100)
        until(lambda: trainer.metrics().get("freshet_train_position") == events.count)
        assert trainer.end() == 0, trainer.log.read_text()[-3000:]
        assert learned(trainer.checkpoints) == sent(events.count)
    finally:
        trainer.close()
