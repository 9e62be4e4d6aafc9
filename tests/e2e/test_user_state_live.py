"""Kept users over two workers: replies are those without a store, also while workers are killed and replaced."""

import json
import os
import signal

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Client
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.e2e.servers import LiveServer
from tests.e2e.test_workers_live import replaced, workers
from tests.models.zoo.sequence_models import make_batch, make_trainer, of_request, publish
from tests.processor.extensions.user_state.random_deltas import Log
from tests.processor.extensions.user_state.user_parts import Parts
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.kills, pytest.mark.unguarded("deltas of random rows")]

LENGTH, CANDIDATES, USERS = 512, 8, 5


def total(server, family):
    """The sum of a metric family over its samples."""
    lines = server.get("/metrics")[2].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(family))


def test_workers_share_states_and_answer_as_without_them(tmp_path):
    trainer = make_trainer("sasrec", LENGTH, units=32, layers=2)
    trainer.learn(make_batch(64, (LENGTH,)))
    repository, dice = tmp_path / "repository", np.random.default_rng(0)
    publish(trainer, repository, (1, CANDIDATES))
    columns = make_batch(CANDIDATES, (LENGTH,), seed=3, items=38).columns
    requests = [of_request(columns, CANDIDATES, user) for user in range(USERS)]
    options = ("--workers", "2", "--user-state-mb", "8", "--delta-guard", "off", "--undo-depth", "3")
    plain = Processor.initialize(ProcessorConfig(str(repository), sessions=1, delta_guard="off", undo_depth=3))
    with plain, LiveServer(repository, *options, log=tmp_path / "serve.log") as live:
        log = Log(repository, plain)

        def ask(user):
            # Each on a connection of its own, so by either worker.
            with Client(f"http://127.0.0.1:{live.http_port}") as client:
                return client.predict("m", requests[user])

        for turn in range(60):
            if turn % 4 == 1:
                log.publish({"item": log.some(4)}, dense=turn % 20 == 1)
            elif turn % 20 == 14:
                plain.rollback("m", f"1.{plain.host.catalogue['m'].pick(None).position.undoable[-1]}")
            elif turn % 20 == 18:
                victim = workers(live)[turn // 20 % 2]["pid"]
                os.kill(victim, signal.SIGKILL)
                until(lambda victim=victim, n=turn // 20 % 2: replaced(live, n, victim))
            plain.poll()
            served = str(plain.host.catalogue["m"].pick(None).generation)
            for user in dice.integers(0, USERS, 3).tolist():
                reply = until(lambda user=user, now=served: r if str((r := ask(user)).generation) == now else None)
                expected = plain.process(PredictRequest("m", requests[user])).outputs["score"]
                np.testing.assert_allclose(reply.outputs["score"], expected, rtol=1e-5, atol=1e-6)
        # Counters arrive with the workers' next reports.
        until(lambda: total(live, "freshet_model_user_state_hits_total") > 20)
        assert total(live, "freshet_model_user_state_bytes") > 0
        assert total(live, 'freshet_model_user_state_misses_total{cause="rows"') >= 0


@pytest.mark.parametrize("processes", [1, 2])
def test_rounded_replies_name_themselves_and_are_near_those_without_a_store(tmp_path, processes):
    trainer, apart = make_trainer("hstu", LENGTH, True, units=32, layers=2), 0.0
    trainer.learn(make_batch(64, (LENGTH,), timed=True))
    repository, dice = tmp_path / "repository", np.random.default_rng(0)
    publish(trainer, repository, (1, CANDIDATES))
    columns = make_batch(CANDIDATES, (LENGTH,), seed=3, items=38, timed=True).columns
    requests = [of_request(columns, CANDIDATES, user) for user in range(USERS)]
    (tmp_path / "serve.toml").write_text('[model.m.user_state]\ndtype = "float16"\n')
    options = ("--config", str(tmp_path / "serve.toml"), "--workers", str(processes), "--user-state-mb", "8")
    options += ("--delta-guard", "off", "--undo-depth", "3")
    plain = Processor.initialize(ProcessorConfig(str(repository), sessions=1, delta_guard="off", undo_depth=3))
    with plain, LiveServer(repository, *options, log=tmp_path / "serve.log") as live:
        log, named = Log(repository, plain), 0

        def ask(user):
            with Client(f"http://127.0.0.1:{live.http_port}") as client:
                return client.predict("m", requests[user])

        for turn in range(40):
            if turn % 8 == 1:
                log.publish({"item": log.some(4)}, dense=turn % 16 == 1)
            elif turn == 22:
                plain.rollback("m", f"1.{plain.host.catalogue['m'].pick(None).position.undoable[-1]}")
            plain.poll()
            served = str(plain.host.catalogue["m"].pick(None).generation)
            for user in dice.integers(0, USERS, 3).tolist():
                reply = until(lambda user=user, now=served: r if str((r := ask(user)).generation) == now else None)
                expected = plain.process(PredictRequest("m", requests[user])).outputs["score"]
                assert reply.state_generation in ("", served)
                if reply.state_generation:
                    named += 1
                    apart = max(apart, float(np.abs(reply.outputs["score"] - expected).max()))
                else:
                    np.testing.assert_allclose(reply.outputs["score"], expected, rtol=1e-5, atol=1e-6)
        until(lambda: total(live, "freshet_model_user_state_rounded_hits_total") >= named)
        assert total(live, "freshet_model_user_state_beyond_range_total") == 0
        _, _, report = live.get("/admin/models/m/user_state", admin=True)
        assert {version["dtype"] for version in json.loads(report)["versions"]} == {"float16"}
    assert named > 10
    assert 0 < apart < 2e-3


@pytest.mark.parametrize("processes", [1, 2])
def test_bounded_replies_are_of_the_two_generations_that_they_name(tmp_path, processes):
    trainer, most = make_trainer("sasrec", LENGTH, units=32, layers=2), 3
    trainer.learn(make_batch(64, (LENGTH,)))
    repository, dice = tmp_path / "repository", np.random.default_rng(0)
    publish(trainer, repository, (1, CANDIDATES))
    columns = make_batch(CANDIDATES, (LENGTH,), seed=3, items=38).columns
    requests = [of_request(columns, CANDIDATES, user) for user in range(USERS)]
    (tmp_path / "serve.toml").write_text(f"[model.m.user_state]\nsteps = {most}\n")
    options = ("--config", str(tmp_path / "serve.toml"), "--workers", str(processes), "--user-state-mb", "8")
    options += ("--delta-guard", "off", "--undo-depth", "3")
    plain = Processor.initialize(ProcessorConfig(str(repository), sessions=1, delta_guard="off", undo_depth=3))
    with plain, LiveServer(repository, *options, log=tmp_path / "serve.log") as live:
        plain.predictor.replica("m").graphs.pays = lambda parts, rows: True
        log, parts, line, older = Log(repository, plain), Parts(plain), [0], 0

        def ask(user, at):
            # Each on a connection of its own, so by any worker.
            with Client(at) as client:
                return client.predict("m", requests[user])

        for turn in range(60):
            if turn % 4 == 1:
                log.publish({"item": log.some(4)}, dense=turn % 8 == 1)
            elif turn % 20 == 14:
                to = plain.host.catalogue["m"].pick(None).position.undoable[-1]
                plain.rollback("m", f"1.{to}")
                del line[line.index(to) + 1 :]
            elif turn % 20 == 18 and processes > 1:
                victim = workers(live)[turn // 20 % 2]["pid"]
                os.kill(victim, signal.SIGKILL)
                until(lambda victim=victim, n=turn // 20 % 2: replaced(live, n, victim))
            plain.poll()
            step = plain.host.catalogue["m"].pick(None).generation.step
            if line[-1] != step:
                line.append(step)
            for user, request in enumerate(requests):
                parts.scores(user, request)
            at = f"grpc://127.0.0.1:{live.grpc_port}" if turn % 2 else f"http://127.0.0.1:{live.http_port}"
            for user in dice.integers(0, USERS, 3).tolist():
                reply = until(
                    lambda user=user, at=at, now=f"1.{step}": r if str((r := ask(user, at)).generation) == now else None
                )
                of = int(reply.state_generation.partition(".")[2]) if reply.state_generation else None
                if of is not None:
                    assert of in line[:-1]
                    assert step - of <= most
                    older += 1
                expected = parts.scores(user, requests[user], of)
                np.testing.assert_allclose(reply.outputs["score"], expected, rtol=1e-5, atol=1e-6)
        assert older > 10
        until(lambda: total(live, "freshet_model_user_state_older_hits_total") > 0)
