"""Real servers for end-to-end tests: `freshet serve` in its own process, on free loopback ports."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib

READY_TIMEOUT_S = 90.0
# For tests that need a server, whatever its layout: one process starts in half the time of three.
ALONE = ("--workers", "1")
# Below those that the kernel gives out for connections; a range for each process that runs tests side by side.
# Another checkout whose tests run at the same time has ports of its own, as far as there are any.
FIRST_PORT, PORTS = 20_000 + 800 * (zlib.crc32(__file__.encode()) % 15), 400
_ports = itertools.cycle(range(PORTS))


def free_port() -> int:
    """A port that nobody has, and that no other process of this test run is given."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = FIRST_PORT + worker * PORTS + next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class LiveServer:
    """One running `freshet serve`; a context manager that ends it in an orderly way."""

    def __init__(self, repository, *options, log, env=None, descriptors=0, module="freshet_serving"):
        """descriptors: that it may have; 0 for as many as this process. module: that runs the command."""
        self.http_port, self.grpc_port, self.admin_port = free_port(), free_port(), free_port()
        command = [sys.executable, "-m", module, "serve", "--repository", str(repository)]
        command += ["--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port)]
        command += ["--admin-port", str(self.admin_port), *options]
        if descriptors:
            command = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command]
        self._log_path = log
        with open(log, "a") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=env)

    def __enter__(self):
        self.wait_ready()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_ready(self):
        """Wait until the server is ready, or has nothing yet to be ready with."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, self._log_path.read_text()
            with contextlib.suppress(OSError):
                status, _, body = self.get("/v2/health/ready")
                if status == 200 or b"the repository has no model" in body:
                    return
            time.sleep(0.02)
        raise AssertionError("not ready: " + self._log_path.read_text())

    def request(self, method, path, body=None, headers=None, admin=False):
        """(status, headers, body bytes) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port if admin else self.http_port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def get(self, path, admin=False):
        return self.request("GET", path, admin=admin)

    def predict(self, model, inputs, connection=None):
        """(scores, generation) by TensorFlow Serving's columnar form."""
        body = json.dumps({"inputs": inputs}).encode()
        if connection is None:
            status, headers, data = self.request("POST", f"/v1/models/{model}:predict", body)
        else:
            connection.request("POST", f"/v1/models/{model}:predict", body)
            reply = connection.getresponse()
            status, headers, data = reply.status, dict(reply.getheaders()), reply.read()
        assert status == 200, (status, data)
        return json.loads(data)["outputs"], {k.lower(): v for k, v in headers.items()}["x-model-generation"]

    def address(self, port="http"):
        """The URL of its port for http, grpc or admin."""
        return f"{'grpc' if port == 'grpc' else 'http'}://127.0.0.1:{getattr(self, f'{port}_port')}"

    def about(self):
        """Return the admin port's report of the server and its models."""
        status, _, body = self.get("/admin/models", admin=True)
        assert status == 200, body
        return json.loads(body)

    def upload(self, model, data):
        headers = {"content-type": "application/octet-stream"}
        status, _, reply = self.request("POST", f"/admin/models/{model}/deltas", data, headers, admin=True)
        return status, json.loads(reply)

    def post_json(self, path, value, method="POST"):
        headers = {"content-type": "application/json"}
        status, _, reply = self.request(method, path, json.dumps(value).encode(), headers, admin=True)
        return status, json.loads(reply)

    def next_step(self, model):
        """The step that the next delta of its newest version is to have."""
        served = self.about()["models"][model]["served"]
        return max((int(number), version) for number, version in served.items())[1]["chain"]["next_step"]

    def generation(self, model):
        return self.about()["models"][model]["generation"]
