"""Real servers whose tables are in a real Redis: one process and workers, deltas on top, Redis gone and back."""

import numpy as np
import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.extensions.remote_rows.push import push
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.row_store import open_store
from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS, delta_bytes, expected
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, needs_redis]


@pytest.fixture
def store():
    server = RedisServer(password="pass-w0rd").start()
    yield server
    server.close()


def scores_are(server, step):
    scores, generation = server.predict("small", INPUTS)
    return generation == f"1.{step}" and np.allclose(np.ravel(scores), expected(step), atol=1e-5)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_server_answers_from_redis_with_deltas_on_top(tmp_path, store, workers):
    folder = write_package(tmp_path / "repository", users=USERS)
    push(VersionReader(folder), [], open_store(store.url, 10.0, SystemClock()))
    (folder / "tables" / "user.safetensors").unlink()
    options = ["--workers", workers, "--remote-url", store.url, "--remote-tables", "small/*"]
    options += ["--remote-cache-rows", "0", "--remote-timeout-s", "2"]
    log = tmp_path / "serve.log"
    with LiveServer(tmp_path / "repository", *options, log=log) as server:
        assert all(scores_are(server, 0) for _ in range(4))
        reply = server.request("POST", "/admin/models/small/deltas", delta_bytes(tmp_path, 1), admin=True)
        assert reply[0] == 200, reply
        assert all(scores_are(server, 1) for _ in range(4))
        store.kill()
        assert not any(scores_are(server, 1) for _ in range(4))
        store.start()
        until(lambda: all(scores_are(server, 1) for _ in range(4)))
        until(lambda: b"freshet_model_remote_unavailable_ids_total" in server.get("/metrics")[2])
    assert "pass-w0rd" not in log.read_text()
