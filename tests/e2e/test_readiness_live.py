"""A server of two workers without a model: every port says that it is not ready, and why, until a model answers."""

import contextlib
import json

import grpc
import pytest

from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import LiveServer
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

# More connections than workers: each of them is asked.
CONNECTIONS = 4
SERVING, NOT_SERVING = 1, 2
EMPTY = "server: the repository has no model"
UNLOADED = "server: no model is loaded: each was unloaded"


class EmptyServer(LiveServer):
    """A server that is waited for until it listens: it is not ready."""

    def wait_ready(self):
        def listens():
            with contextlib.suppress(OSError):
                return self.get("/v2/health/live")[0] == 200

        until(listens, within_s=90.0)


def called(server, method, reply, body=b""):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        data = channel.unary_unary(method)(body, wait_for_ready=True, timeout=30)
    return message(reply).FromString(data)


def said(server):
    """Every port's words on readiness, over a few connections: they are one when all workers agree."""
    words = set()
    for _ in range(CONNECTIONS):
        status, _, body = server.get("/v2/health/ready")
        ready = called(server, "/inference.GRPCInferenceService/ServerReady", "inference.ServerReadyResponse").ready
        serving = called(server, "/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckResponse").status
        words.add((status, json.loads(body).get("error", ""), ready, serving))
    metric = "\nfreshet_ready 1.0\n" in server.get("/metrics")[2].decode()
    return {(*word, metric) for word in words}


def test_every_port_of_every_worker_says_why_no_model_answers(tmp_path):
    (tmp_path / "repository").mkdir()
    with EmptyServer(tmp_path / "repository", "--workers", "2", log=tmp_path / "log") as server:
        until(lambda: said(server) == {(503, EMPTY, False, NOT_SERVING, False)})
        write_package(tmp_path / "repository", users=range(20))
        LiveServer.wait_ready(server)
        until(lambda: said(server) == {(200, "", True, SERVING, True)})
        assert server.request("POST", "/admin/models/small/versions/1/unload", admin=True)[0] == 200
        until(lambda: said(server) == {(503, UNLOADED, False, NOT_SERVING, False)})
    log = (tmp_path / "log").read_text()
    assert f"not ready: {EMPTY.removeprefix('server: ')}" in log
