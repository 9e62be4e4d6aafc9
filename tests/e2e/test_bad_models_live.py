"""One bad model keeps nobody down: a repository of good and bad ones, served by worker processes from the start on."""

import json
import shutil

import pytest

from tests.e2e.servers import LiveServer
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PATIENCE_S = 60


def index(server):
    """(model, version) -> (state, reason) of everything that the server knows."""
    _, _, body = server.request("POST", "/v2/repository/index", b"{}")
    return {(each["name"], each["version"]): (each["state"], each["reason"]) for each in json.loads(body)}


def test_good_models_serve_while_bad_ones_are_reported_and_repaired(tmp_path):
    repository = tmp_path / "repository"
    for model in ("good", "torn", "two"):
        write_package(repository, model=model)
    write_package(repository, 2, model="two")
    (repository / "two" / "2" / "model.json").write_text("[]")
    (repository / "torn" / "1" / "tables" / "user.safetensors").unlink()
    (repository / "junk" / "1").mkdir(parents=True)
    (repository / "junk" / "1" / "notes.txt").write_text("not a model")
    with LiveServer(repository, "--workers", "2", log=tmp_path / "log") as server:
        known = index(server)
        assert known["good", "1"] == known["two", "1"] == ("READY", "")
        assert known["two", "2"] == ("UNAVAILABLE", "manifest: expected an object, got a list")
        gone = "tables/user.safetensors: cannot be read: No such file or directory"
        assert known["torn", "1"] == ("UNAVAILABLE", gone)
        assert known["junk", "1"][1].endswith("file, got notes.txt")
        assert server.get("/v2/models/good/ready")[0] == 200
        status, _, body = server.get("/v2/models/torn/ready")
        assert (status, json.loads(body)["error"].partition(": ")[0]) == (503, "no version of model 'torn' is loaded")
        metrics = server.get("/metrics")[2].decode()
        assert 'freshet_version_load_failed{model="torn",version="1"} 1.0' in metrics
        assert 'freshet_model_ready{model="two"} 1.0' in metrics

        whole = repository / "good" / "1" / "tables" / "user.safetensors"
        shutil.copy(whole, repository / "torn" / "1" / "tables" / "user.safetensors")
        until(lambda: server.get("/v2/models/torn/ready")[0] == 200)
    log = (tmp_path / "log").read_text()
    assert f"torn version 1 refused: {gone}" in log
    assert "Traceback" not in log
