"""A bad night under load: the retrained version is held before it scores a request, and the next good one is served."""

import json

import pytest

from freshet_serving.processor.extensions.guard.guard import guard_of
from tests.e2e.servers import LiveServer
from tests.e2e.test_guard_live import LAYOUTS, Load
from tests.processor.extensions.guard.test_version_gate import asked, write_bad
from tests.processor.versions.models import open_model
from tests.support.guarded import write_guarded
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def model_of(server):
    status, _, body = server.get("/admin/models", admin=True)
    assert status == 200
    return json.loads(body)["models"]["small"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bad_version_scores_no_request_and_the_next_good_one_takes_over(tmp_path, layout):
    repository, scratch = tmp_path / "repository", tmp_path / "scratch"
    scratch.mkdir()
    write_guarded(repository)
    options = (*LAYOUTS[layout], "--scratch", str(scratch))
    with LiveServer(repository, *options, log=tmp_path / "serve.log") as server, Load(server) as load:
        write_bad(repository, 2)
        until(lambda: "2" in model_of(server)["gate"]["held"])
        gate = model_of(server)["gate"]
        assert gate["held"]["2"].startswith("held by gate: the mean score of 'score' would change by a factor of ")
        assert gate["verdicts"]["2"]["rows"] >= 64
        status, _, metrics = server.get("/metrics")
        assert status == 200
        assert 'freshet_version_held{model="small",version="2"} 1.0' in metrics.decode()
        write_guarded(repository, 3)
        until(lambda: server.generation("small") == "3.0")
        asked = load.asked
        until(lambda: load.asked > asked + 100)
        assert not load.failed
        assert load.seen.keys() == {"1.0", "3.0"}
        # The old version stays for a while.
        assert model_of(server)["served"].keys() == {"1", "3"}
    assert "small version 2 is held by gate: " in (tmp_path / "serve.log").read_text()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bad_version_that_came_while_the_server_was_down_is_held_at_its_start(tmp_path, layout):
    repository, scratch = tmp_path / "repository", tmp_path / "scratch"
    scratch.mkdir()
    write_guarded(repository)
    before = asked(open_model(repository, scratch=str(scratch)))
    guard_of(before).gate.keep(before.pick())
    write_bad(repository, 2)
    options = (*LAYOUTS[layout], "--scratch", str(scratch))
    with LiveServer(repository, *options, log=tmp_path / "serve.log") as server:
        until(lambda: "2" in model_of(server)["gate"]["held"])
        assert server.generation("small") == "1.0"
