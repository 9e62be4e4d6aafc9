"""`freshet serve --sample`, as a newcomer starts it: it answers, its generation grows, and nothing of it stays."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from freshet_serving import Client, Ragged
from freshet_serving.serving.sample.replay import MODEL, REQUEST
from loadtest.load.launch import free_ports
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


def test_sample_is_served_with_growing_generations_and_goes_away(tmp_path):
    http, grpc, admin = free_ports(3)
    ports = ("--http-port", str(http), "--grpc-port", str(grpc), "--admin-port", str(admin))
    body = json.loads(REQUEST.read_text())["body"]
    (tmp_path / "scratch").mkdir()
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "freshet_serving", "serve", "--sample", *ports],
            env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
            stdout=log,
            stderr=log,
        )

    def generation():
        url = f"http://127.0.0.1:{http}/v1/models/{MODEL}:predict"
        try:
            with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as reply:
                return reply.headers["x-model-generation"]
        except OSError:
            return ""

    try:
        first = until(generation)
        assert first.startswith("1.")
        until(lambda: int(generation()[2:]) > int(first[2:]))
        inputs = body["inputs"]
        user = {name: inputs[name][0] for name in ("user_id", "hour")}
        items = {"item_id": inputs["item_id"], "category": inputs["category"], "price": inputs["price"]}
        with Client(f"grpc://127.0.0.1:{grpc}") as client:
            scores = client.rank(MODEL, user=user, candidates={**items, "tags": Ragged.of(inputs["tags"])})
        assert len(scores) == len(inputs["item_id"])
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert list((tmp_path / "scratch").glob("freshet*")) == []
    assert "try: curl -i " in (tmp_path / "log").read_text()
