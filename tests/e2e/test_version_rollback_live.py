"""Rollback across versions on live servers under load: no request fails, one digest, also over restarts."""

import json
import os
import signal

import pytest

from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.askers import askers
from tests.e2e.servers import ALONE, LiveServer
from tests.serving.commands.running import run
from tests.support.object_stage import ReplicaSet, served, upload_package
from tests.support.packages import make_delta, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

USERS = list(range(20))
INPUTS = {"user": [1, 2], "tags": [["a"], []], "floats": [[0.0] * 4] * 2}


def test_bad_night_is_gone_back_from_under_load_with_a_restart_in_between(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    log = ChangeLog.of(Repository(repository).version("small", 1))
    log.publish(make_delta(1, USERS))
    first = LiveServer(repository, *ALONE, log=tmp_path / "first.log")
    second = LiveServer(repository, "--workers", "2", log=tmp_path / "second.log")
    with first, second:
        with askers(first, INPUTS, count=1) as (one,), askers(second, INPUTS, count=1) as (other,):
            # The bad night: live by itself.
            write_package(repository, 2, users=USERS, seed=9)
            until(lambda: {first.generation("small"), second.generation("small")} == {"2.0"}, within_s=30)
            admin = ("--admin", f"http://127.0.0.1:{first.admin_port}")
            reached, note = run("rollback", "small", "1", "--reason", "labels were all 0", *admin).splitlines()
            assert reached == "small 1.1"
            assert "Version 2 is withdrawn" in note
            # Two workers follow, and which of them answers is chance.
            heads = {log.history.head.digest}
            until(lambda: {served(server)["digest"] for server in (first, second)} == heads, within_s=30)
            # Deltas go on where they were.
            log.publish(make_delta(2, USERS))
            until(lambda: {first.generation("small"), second.generation("small")} == {"1.2"}, within_s=30)
        assert one.failed == other.failed == []
        assert one.generations == ["1.1", "2.0", "1.1", "1.2"]
        assert other.generations == ["1.1", "2.0", "1.1", "1.2"]

        second.process.send_signal(signal.SIGKILL)
        second.process.wait(30)
        with (
            LiveServer(repository, "--workers", "2", log=tmp_path / "again.log") as again,
            askers(first, INPUTS, count=1) as (one,),
        ):
            assert again.generation("small") == "1.2"
            assert served(again)["digest"] == served(first)["digest"]
            lines = run("version", "list", "small", *admin).splitlines()
            assert lines[0].startswith("small 2: withdrawn; by rollback; ")
            assert lines[0].endswith("labels were all 0")
            assert lines[1].startswith("small 1: served as 1.2 by default; by rollback; ")
            # A good night passes, and the bad one comes back only when a person releases it.
            write_package(repository, 3, users=USERS, seed=3)
            until(lambda: {first.generation("small"), again.generation("small")} == {"3.0"}, within_s=30)
            run("version", "reject", "small", "3", *admin)
            until(lambda: {first.generation("small"), again.generation("small")} == {"1.2"}, within_s=30)
            run("version", "release", "small", "2", "--repository", str(repository))
            until(lambda: {first.generation("small"), again.generation("small")} == {"2.0"}, within_s=30)
        assert one.failed == []
        history = json.loads(first.get("/admin/models/small/versions", admin=True)[2])["versions"]
        assert [(entry["version"], entry["state"]) for entry in history] == [
            (3, "withdrawn"), (2, "available"), (1, "available"),
        ]  # fmt: skip


def test_mirrors_of_an_object_store_go_back_together_and_an_empty_one_follows(store, tmp_path):
    address, env = store.address("prod"), {**os.environ, "FRESHET_MIRROR": str(tmp_path / "writer")}
    for version in (1, 2):
        upload_package(store, address, tmp_path / f"package-{version}", version=version, seed=version)
    with ReplicaSet(address, env, tmp_path, 3) as fleet:
        until(lambda: fleet.generations() == ["2.0"] * 3, within_s=30)
        with askers(fleet.servers[0], INPUTS, count=1) as (one,), askers(fleet.servers[1], INPUTS, count=1) as (other,):
            # A killed server has the withdrawn version in its mirror, and must not serve it when it is back.
            fleet.servers[2].process.kill()
            fleet.servers[2].__exit__()
            admin = ("--admin", f"http://127.0.0.1:{fleet.servers[0].admin_port}")
            assert run("rollback", "small", *admin).splitlines()[0] == "small 1.0"
            until(lambda: fleet.servers[1].generation("small") == "1.0", within_s=60)
            fleet.start(2).wait_ready()
            until(lambda: fleet.generations() == ["1.0"] * 3, within_s=60)
        assert one.failed == other.failed == []
        assert one.generations == other.generations == ["2.0", "1.0"]
        digests = fleet.digests()
        assert len(set(digests)) == 1
        fleet.servers[1].__exit__()
        fleet.mirrors[1] = tmp_path / "an empty mirror"
        fleet.start(1).wait_ready()
        assert fleet.digests() == digests
