"""A bad delta is rolled back on a live server: the trainer goes on from what is served, and the server is fresh."""

import http.client
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.package.delta import write_delta
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_delta, make_inputs, make_weights, reference, tag_id, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[2]
USERS = list(range(20))
PROBE = [0, 3, 7, 19, 55]
TAGS = [["a", "zz", "b", "c"][: u % 5] for u in range(len(PROBE))]
FLOATS = make_inputs(PROBE)["floats"]
INPUTS = {"user": PROBE, "tags": TAGS, "floats": FLOATS.tolist()}
TAG_MODEL = dict.fromkeys([tag_id(t) for t in "abc"], 0)


def freshet(*arguments):
    command = [sys.executable, "-m", "freshet_serving", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until_served(server, model, generation):
    until(lambda: server.generation(model) == generation)


@pytest.mark.tensorflow
@pytest.mark.parametrize("replay", [False, True])
def test_trainer_recovers_freshness_after_an_admin_rollback(tmp_path, replay):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from freshet_serving.models.config.train_config import StartOptions
    from freshet_serving.models.data.source import Batch
    from freshet_serving.models.training.loop import TrainingRun
    from freshet_serving.serving.commands.demo import as_json
    from tests.e2e import killing

    made = killing.make_run(tmp_path / "repository")
    run = TrainingRun(made.config, made.source, start_options=StartOptions(replay=replay))
    run.full()
    probe = next(run.source.batches(20, 0))
    assert isinstance(probe, Batch)
    inputs = {name: as_json(column) for name, column in probe.columns.items()}

    def assert_fresh(server, generation):
        wait_until_served(server, killing.MODEL, generation)
        scores, answered = server.predict(killing.MODEL, inputs)
        assert answered == generation
        np.testing.assert_allclose(np.ravel(scores), run.trainer.score(probe.columns), atol=1e-5)

    with LiveServer(run.config.publish.repository, *ALONE, log=tmp_path / "serve.log") as server:
        stream = run.stream()
        for step in (1, 2, 3, 4):
            next(stream)
            assert_fresh(server, f"1.{step}")
        position = run.state.position

        status, reply = server.post_json(f"/admin/models/{killing.MODEL}/rollback", {"generation": "1.2"})

        assert status == 200, reply
        seen = {server.generation(killing.MODEL)}
        assert str(next(stream)) == "1.5"
        assert run.state.position == position + (-1 if replay else 1) * killing.DELTA_ROWS
        seen.add(server.generation(killing.MODEL))
        assert_fresh(server, "1.5")
        assert seen <= {"1.2", "1.5"}
        next(stream)
        assert_fresh(server, "1.6")
    # A start reads the same line, without what was undone.
    with LiveServer(run.config.publish.repository, *ALONE, log=tmp_path / "serve.log") as server:
        assert_fresh(server, "1.6")


@pytest.mark.unguarded("each delta changes every row and, every fifth time, all dense weights")
def test_snapshot_under_load_fails_no_request_and_changes_no_score(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    folder = repository / "small" / "1"
    wanted = {
        f"1.{step}": reference(
            dict.fromkeys(USERS, step), TAG_MODEL, make_weights(step - step % 5), PROBE, TAGS, FLOATS
        )
        for step in range(51)
    }
    stop, problems, counts = threading.Event(), [], []

    def client(server):
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        asked = 0
        while not stop.is_set():
            try:
                scores, generation = server.predict("small", INPUTS, connection)
                if not np.allclose(np.ravel(scores), wanted[generation], atol=1e-5):
                    problems.append((generation, scores))
            except Exception as error:
                problems.append(error)
                break
            asked += 1
        counts.append(asked)
        connection.close()

    def publish(step):
        dense = step if step % 5 == 0 else None
        write_delta(folder / "deltas" / f"{step}.safetensors", make_delta(step, USERS, dense_seed=dense))

    with LiveServer(repository, *ALONE, log=tmp_path / "serve.log") as server:
        clients = [threading.Thread(target=client, args=(server,)) for _ in range(2)]
        for thread in clients:
            thread.start()
        try:
            for step in range(1, 51):
                publish(step)
                wait_until_served(server, "small", f"1.{step}")
                if step in (15, 30, 45):
                    assert f"1.{step}: written as a snapshot" in freshet(
                        "delta", "compact", "small", "--repository", repository
                    )
                if step == 48:
                    freshet("repository", "prune", "--repository", repository, "--keep", 3)
                    left = {int(path.stem) for path in (folder / "deltas").iterdir()}
                    assert left == {46, 47, 48}
        finally:
            stop.set()
            for thread in clients:
                thread.join()
        assert problems == []
        assert sum(counts) > 100
        print(f"{sum(counts)} requests, 0 failed")
        before, generation = server.predict("small", INPUTS)
        assert generation == "1.50"
        status, reply = server.post_json("/admin/models/small/rollback", {"generation": "1.25"})
        assert status == 404
        assert reply["error"] == "rollback: cannot return to 1.25: files that it needs were pruned"
        assert server.generation("small") == "1.50"
    with LiveServer(repository, *ALONE, log=tmp_path / "serve.log") as server:
        after, generation = server.predict("small", INPUTS)
        assert generation == "1.50"
        np.testing.assert_array_equal(after, before)
        status, reply = server.post_json("/admin/models/small/rollback", {"generation": "1.47"})
        assert status == 200, reply
        assert server.generation("small") == "1.47"
        np.testing.assert_allclose(np.ravel(server.predict("small", INPUTS)[0]), wanted["1.47"], atol=1e-5)
