"""A served file that is cut short ends neither the server nor what is sound: real servers, truncated under requests."""

import contextlib
import http.client
import json
import os
import shutil
import threading

import pytest

from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_workers_live import samples, workers
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

USERS = range(30_000)
TABLE = "tables/user.safetensors"
INPUTS = {"user": list(USERS[::50]), "tags": [[]] * 600, "floats": [[0.0] * 4] * 600}


def generation_of(server, model):
    """The generation that answers, "" where nothing does."""
    with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
        return server.predict(model, INPUTS)[1]
    return ""


def versions(server, model):
    known = json.loads(server.get("/admin/models", admin=True)[2])["models"][model]["versions"]
    return {version["version"]: (version["state"], version["error"]) for version in known}


def test_damaged_version_is_unloaded_and_workers_recover(tmp_path):
    repository = tmp_path / "repository"
    for version in (1, 2):
        write_package(repository, version, users=USERS)
    write_package(repository, users=USERS, model="other")
    path = repository / "small" / "2" / TABLE
    shutil.copy(path, tmp_path / "whole")
    # Whoever could write to it before it was served still can.
    with open(path, "r+b") as writer, LiveServer(repository, "--workers", "2", log=tmp_path / "log") as server:
        assert generation_of(server, "small") == "2.0"
        writer.truncate(100)
        writer.close()
        until(lambda: generation_of(server, "small") == "1.0")
        until(lambda: all(w["up"] for w in workers(server)))
        assert {generation_of(server, model) for model in ("small", "other") for _ in range(4)} == {"1.0"}
        why = f"{TABLE}: expected {os.path.getsize(tmp_path / 'whole')} bytes, got 100"
        assert versions(server, "small") == {1: ("AVAILABLE", ""), 2: ("END", why)}
        assert samples(server, "freshet_files_damaged_total") == {
            f'freshet_files_damaged_total{{file="{TABLE}",model="small"}}': 1.0
        }
        assert all(w["restarts"] <= 2 and w["died_of"] in ("", "SIGBUS") for w in workers(server))
        os.replace(tmp_path / "whole", path)
        until(lambda: generation_of(server, "small") == "2.0")
    log = (tmp_path / "log").read_text()
    assert f"small version 2 is no longer served: {TABLE}: was truncated while being served" in log
    assert f"small version 2 refused: {why}" in log
    assert "Traceback" not in log


def test_single_process_detects_damage_or_logs_its_crash(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    path = repository / "small" / "1" / TABLE
    with open(path, "r+b") as writer, LiveServer(repository, *ALONE, log=tmp_path / "log") as server:
        writer.truncate(100)
        # Nobody asks for it, so the look of once a second is in time.
        until(lambda: versions(server, "small")[1][0] == "END")
        status, _, body = server.request("POST", "/v1/models/small:predict", json.dumps({"inputs": INPUTS}).encode())
        assert (status, TABLE in json.loads(body)["error"]) == (503, True)
    assert "was truncated while being served" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("layout", [ALONE, ("--workers", "2")], ids=["one process", "two workers"])
def test_overwriting_a_served_table_waits_until_it_is_unloaded(tmp_path, layout):
    repository = tmp_path / "repository"
    for version in (1, 2):
        write_package(repository, version, users=USERS, seed=version)
    path = repository / "small" / "2" / TABLE
    whole = path.read_bytes()
    with LiveServer(repository, *layout, log=tmp_path / "log") as server:
        scores, generation = server.predict("small", INPUTS)
        sound = {generation: scores}
        writer = threading.Thread(target=os.truncate, args=(path, 100), daemon=True)
        writer.start()
        while writer.is_alive():
            with contextlib.suppress(AssertionError):  # 503 while the version before is loaded
                scores, generation = server.predict("small", INPUTS)
            assert scores == sound.setdefault(generation, scores)
        until(lambda: generation_of(server, "small") == "1.0")
        if layout != ALONE:
            assert [w["restarts"] for w in workers(server)] == [0, 0]
        path.write_bytes(whole)
        until(lambda: generation_of(server, "small") == "2.0")
        assert server.predict("small", INPUTS)[0] == sound["2.0"]
    log = (tmp_path / "log").read_text()
    assert f"small version 2 is no longer served: {TABLE}: is about to be written while it is served" in log
    assert "Traceback" not in log
