"""A bad delta is rolled back on a live server: the trainer goes on from what is served, and the server is fresh."""

import numpy as np
import pytest

from freshet_serving.processor.package.delta import write_delta
from tests.e2e.askers import askers, problems
from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_deltas_live import FLOATS, INPUTS, PROBE, TAG_MODEL, TAGS, USERS
from tests.serving.commands.running import run
from tests.support.packages import make_delta, make_weights, reference, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

STEPS = 20


def wait_until_served(server, model, generation):
    until(lambda: server.generation(model) == generation)


@pytest.mark.tensorflow
def test_trainer_recovers_freshness_after_an_admin_rollback(tmp_path):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from freshet_serving.models.config.train_config import StartOptions
    from freshet_serving.models.data.source import Batch
    from freshet_serving.models.training.loop import TrainingRun
    from freshet_serving.serving.commands.demo import as_json
    from tests.e2e import killing

    made = killing.make_run(tmp_path / "repository")
    training = TrainingRun(made.config, made.source)
    training.full()
    probe = next(training.source.batches(20, 0))
    assert isinstance(probe, Batch)
    inputs = {name: as_json(column) for name, column in probe.columns.items()}

    def assert_fresh(server, generation):
        wait_until_served(server, killing.MODEL, generation)
        scores, answered = server.predict(killing.MODEL, inputs)
        assert answered == generation
        np.testing.assert_allclose(np.ravel(scores), training.trainer.score(probe.columns), atol=1e-5)
        return np.ravel(scores)

    def roll_back(server, generation):
        status, reply = server.post_json(f"/admin/models/{killing.MODEL}/rollback", {"generation": generation})
        assert status == 200, reply

    with LiveServer(training.config.publish.repository, *ALONE, log=tmp_path / "serve.log") as server:
        stream = training.stream()
        for step in (1, 2, 3, 4):
            next(stream)
            assert_fresh(server, f"1.{step}")
        position = training.state.position

        roll_back(server, "1.2")

        seen = {server.generation(killing.MODEL)}
        assert str(next(stream)) == "1.5"
        assert training.state.position == position + killing.DELTA_ROWS
        seen.add(server.generation(killing.MODEL))
        assert_fresh(server, "1.5")
        assert seen <= {"1.2", "1.5"}
        next(stream)
        assert_fresh(server, "1.6")
    # A start reads the same line, without what was undone.
    with LiveServer(training.config.publish.repository, *ALONE, log=tmp_path / "serve.log") as server:
        learned, position = assert_fresh(server, "1.6"), training.state.position
        roll_back(server, "1.5")
        # A run that replays learns the undone rows again: what is served in the end is what was.
        training = TrainingRun(made.config, made.source, start_options=StartOptions(replay=True))
        assert training.state.position == position - killing.DELTA_ROWS
        assert str(next(training.stream())) == "1.7"
        assert training.state.position == position
        np.testing.assert_allclose(assert_fresh(server, "1.7"), learned, atol=1e-6)


@pytest.mark.unguarded("each delta changes every row and, every fifth time, all dense weights")
def test_snapshot_under_load_fails_no_request_and_changes_no_score(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    folder = repository / "small" / "1"
    expected = {
        f"1.{step}": reference(
            dict.fromkeys(USERS, step), TAG_MODEL, make_weights(step - step % 5), PROBE, TAGS, FLOATS
        )
        for step in range(STEPS + 1)
    }

    def publish(step):
        dense = step if step % 5 == 0 else None
        write_delta(folder / "deltas" / f"{step}.safetensors", make_delta(step, USERS, dense_seed=dense))

    with LiveServer(repository, *ALONE, log=tmp_path / "serve.log") as server:
        with askers(server, INPUTS, expected.get, count=2) as running:
            for step in range(1, STEPS + 1):
                publish(step)
                wait_until_served(server, "small", f"1.{step}")
                if step in (5, 10, 15):
                    said = run("delta", "compact", "small", "--repository", str(repository))
                    assert f"1.{step}: written as a snapshot" in said
                if step == 18:
                    run("repository", "prune", "--repository", str(repository), "--keep", "3")
                    left = {int(path.stem) for path in (folder / "deltas").iterdir()}
                    assert left == {16, 17, 18}
        assert problems(running) == []
        assert sum(asker.answered for asker in running) > 100
        before, generation = server.predict("small", INPUTS)
        assert generation == f"1.{STEPS}"
        status, reply = server.post_json("/admin/models/small/rollback", {"generation": "1.8"})
        assert status == 404
        assert reply["error"] == "rollback: cannot return to 1.8: files that it needs were pruned"
        assert server.generation("small") == f"1.{STEPS}"
    with LiveServer(repository, *ALONE, log=tmp_path / "serve.log") as server:
        after, generation = server.predict("small", INPUTS)
        assert generation == f"1.{STEPS}"
        np.testing.assert_array_equal(after, before)
        status, reply = server.post_json("/admin/models/small/rollback", {"generation": "1.17"})
        assert status == 200, reply
        assert server.generation("small") == "1.17"
        np.testing.assert_allclose(np.ravel(server.predict("small", INPUTS)[0]), expected["1.17"], atol=1e-5)
