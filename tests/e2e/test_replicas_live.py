"""Replicas of one repository as `freshet fleet` sees them, and one that is not ready because it is too old."""

import json
import shutil
import signal

import grpc
import pytest
from typer.testing import CliRunner

from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.commands.cli import app
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_delta, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

USERS = list(range(20))


def publish(repository, step, tag=0):
    ChangeLog.of(Repository(repository).version("small", 1)).publish(make_delta(step, USERS, tag=tag))


def fleet(servers, *options):
    """(exit code, the report) of `freshet fleet --json` on these servers."""
    ports = [f"http://127.0.0.1:{server.admin_port}" for server in servers]
    done = CliRunner().invoke(app, ["fleet", *ports, "--json", *options], catch_exceptions=False)
    return done.exit_code, json.loads(done.output)


def test_fleet_reports_behind_diverged_hanging_and_missing_replicas(tmp_path):
    repository, copy = tmp_path / "repository", tmp_path / "copy"
    write_package(repository, users=USERS)
    publish(repository, 1)
    shutil.copytree(repository, copy)
    servers = [
        LiveServer(folder, *ALONE, log=tmp_path / f"{n}.log") for n, folder in enumerate([repository] * 2 + [copy])
    ]
    with servers[0] as one, servers[1] as other, servers[2] as apart:
        code, report = fleet(servers, "--wait", "10")
        assert (code, report["problems"]) == (0, [])
        assert {v["generation"] for v in report["versions"]} == {"1.1"}

        publish(repository, 2)
        # Asked at once, both may not have looked yet: they are alike then, too.
        until(lambda: {v["generation"] for v in fleet(servers[:2])[1]["versions"]} == {"1.2"})
        assert fleet(servers[:2], "--wait", "10")[0] == 0
        code, report = fleet(servers)
        assert code == 1
        assert [v["wrong"] for v in report["versions"]] == ["", "", "BEHIND"]
        assert report["versions"][2]["records_behind"] == 1

        label = "/admin/models/small/labels/stable"
        assert one.post_json(label, {"version": 1}, "PUT")[0] == 200
        until(lambda: other.about()["models"]["small"]["labels"] == {"stable": 1})
        assert other.request("DELETE", label, admin=True)[0] == 200
        until(lambda: one.about()["models"]["small"]["labels"] == {})

        publish(copy, 2, tag=7)
        until(lambda: fleet([apart])[1]["versions"][0]["generation"] == "1.2")
        code, report = fleet(servers)
        assert code == 1
        assert [v["wrong"] for v in report["versions"]] == ["", "", "DIVERGED"]

        apart.process.send_signal(signal.SIGTERM)
        apart.process.wait(30)
        other.process.send_signal(signal.SIGSTOP)
        try:
            code, report = fleet(servers, "--timeout", "1")
        finally:
            other.process.send_signal(signal.SIGCONT)
        assert code == 1
        assert [each["problem"] for each in report["replicas"]] == [
            "", "unreachable: no answer within 1 s", "unreachable: Connection refused",
        ]  # fmt: skip
        assert [v["wrong"] for v in report["versions"]] == [""]
        assert fleet([one, other], "--wait", "10")[0] == 0


def health_of(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check")
        return message("grpc.health.v1.HealthCheckResponse").FromString(call(b"", timeout=10)).status


def test_stale_server_is_unready_with_a_reason_but_answers(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    with LiveServer(repository, "--workers", "2", "--max-staleness-s", "1", log=tmp_path / "log") as server:
        bad = repository / "small" / "1" / "deltas" / "1.safetensors"
        bad.parent.mkdir(exist_ok=True)
        bad.write_bytes(b"no delta at all")
        until(lambda: server.get("/v2/health/ready")[0] == 503)
        why = json.loads(server.get("/v2/health/ready")[2])["error"]
        assert why.startswith("model 'small' version 1 is ")
        assert why.endswith(" s stale (max_staleness_s = 1)")
        assert server.get("/v2/health/live")[0] == 200
        assert health_of(server) == 2
        assert server.predict("small", {"user": [1], "tags": [[]], "floats": [[0.0] * 4]})[1] == "1.0"
        code, report = fleet([server])
        assert code == 1
        assert report["versions"][0]["wrong"] == "WAITING"
        assert report["versions"][0]["served"]["staleness_s"] > 1
        scrape = server.get("/metrics")[2].decode()
        assert "freshet_ready 0.0" in scrape
        assert "freshet_repository_reachable 1.0" in scrape
        bad.unlink()
        until(lambda: server.get("/v2/health/ready")[0] == 200)
        assert health_of(server) == 1
        assert fleet([server], "--wait", "10")[0] == 0
