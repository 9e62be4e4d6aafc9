"""A real server that plans the cores of its groups while it answers, and deltas come."""

import json
import threading

import numpy as np
import pytest

from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS, delta_bytes, expected
from tests.support.extensions import needs
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, needs("core_planner")]

STEPS = 3
CONFIG = '[groups.small]\np99_ms = 50\n[groups.rest]\nmodels = ["*"]\n'


@pytest.mark.unguarded("a delta brings other weights altogether")
def test_planned_groups_answer_with_the_scores_of_their_generations(tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    (tmp_path / "serve.toml").write_text(CONFIG)
    scores_by_generation = {f"1.{step}": expected(step) for step in range(STEPS + 1)}
    problems, stop = [], threading.Event()
    options = ("--config", str(tmp_path / "serve.toml"))
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "log") as server:

        def ask():
            while not stop.is_set():
                scores, generation = server.predict("small", INPUTS)
                if not np.allclose(np.ravel(scores), scores_by_generation[generation], atol=1e-5):
                    problems.append((generation, scores))

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            for step in range(1, STEPS + 1):
                assert server.upload("small", delta_bytes(tmp_path, step))[0] == 200
            until(lambda: "requests/s" in groups(server)["small"]["planned"]["why"], within_s=60)
            planned = groups(server)["small"]["planned"]
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert planned["cores"] >= 1
        assert groups(server)["rest"]["planned"]["weight"] == 1.0
        status, reply = server.post_json("/admin/groups/small", {"sessions": 2}, "PUT")
        assert (status, "cores are planned" in reply["error"]) == (400, True)
    assert problems == []


def groups(server):
    return json.loads(server.get("/admin/models", admin=True)[2])["groups"]
