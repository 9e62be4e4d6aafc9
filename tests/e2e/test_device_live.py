"""A real server whose sessions hand what they have filled to device stages, alone and in worker processes."""

import json
import threading

import numpy as np
import pytest

from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS, delta_bytes, expected
from tests.support.packages import write_package

pytestmark = [pytest.mark.e2e, pytest.mark.long]

STEPS = 3


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "two workers"])
@pytest.mark.unguarded("a delta brings other weights altogether")
def test_device_stages_return_correct_scores_for_every_generation(options, tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    wanted = {f"1.{step}": expected(step) for step in range(STEPS + 1)}
    problems, seen, stop = [], set(), threading.Event()

    with LiveServer(tmp_path / "repository", "--device-stages", "1", *options, log=tmp_path / "log") as server:

        def ask():
            while not stop.is_set():
                scores, generation = server.predict("small", INPUTS)
                seen.add(generation)
                if not np.allclose(np.ravel(scores), wanted[generation], atol=1e-5):
                    problems.append((generation, scores))

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            for step in range(1, STEPS + 1):
                assert server.upload("small", delta_bytes(tmp_path, step))[0] == 200
                np.testing.assert_allclose(np.ravel(server.predict("small", INPUTS)[0]), expected(step), atol=1e-5)
        finally:
            stop.set()
            for client in clients:
                client.join()
        if not options:
            groups = json.loads(server.get("/admin/models", admin=True)[2])["groups"]
            assert groups["default"]["device_stages"] == 1
    assert problems == []
    assert f"1.{STEPS}" in seen
