"""A real server whose sessions hand what they have filled to device stages, alone and in worker processes."""

import numpy as np
import pytest

from tests.e2e.askers import askers, problems
from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import INPUTS, USERS, delta_bytes, expected, expected_of
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

STEPS = 3


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "two workers"])
@pytest.mark.unguarded("a delta brings other weights altogether")
def test_device_stages_return_correct_scores_for_every_generation(options, tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    server = LiveServer(tmp_path / "repository", "--device-stages", "1", *options, log=tmp_path / "log")
    with server, askers(server, INPUTS, expected_of) as running:
        for step in range(1, STEPS + 1):
            assert server.upload("small", delta_bytes(tmp_path, step))[0] == 200
            np.testing.assert_allclose(np.ravel(server.predict("small", INPUTS)[0]), expected(step), atol=1e-5)
        until(lambda: all(f"1.{STEPS}" in asker.generations for asker in running))
        if not options:
            assert server.about()["groups"]["default"]["device_stages"] == 1
    assert problems(running) == []
