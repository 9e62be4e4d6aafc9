"""The server of the campaign: what its gate holds, and what is served after a version is gone."""

import numpy as np
import pytest

from freshet_serving.models.data.source import Batch
from freshet_serving.processor.repository import Repository
from loadtest.bench.training.night_server import NightServer
from tests.processor.extensions.guard.test_version_gate_model import write_bad
from tests.support.guarded import as_inputs, write_guarded


@pytest.fixture
def server(tmp_path):
    """A server of a good version that has answered a day's requests."""
    write_guarded(tmp_path)
    server = NightServer(tmp_path, "small")
    assert server.served == 0
    assert server.offer(1) == (True, "")
    server.ask(Batch(as_inputs(256, 1), np.zeros(256, np.float32), None, 0))
    return server


def test_bad_version_is_held_until_it_is_released(server, tmp_path):
    write_bad(tmp_path)
    served, why = server.offer(2)
    assert not served
    assert why.startswith("the mean score of 'score' would change by a factor of")
    server.release(2)
    assert server.served == 2


def test_version_before_is_served_after_one_is_removed(server, tmp_path):
    write_guarded(tmp_path, 2)
    assert server.offer(2) == (True, "")
    Repository(tmp_path).storage("small", 2).end()
    server.go_back()
    assert server.served == 1
