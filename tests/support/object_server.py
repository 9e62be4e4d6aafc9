"""An S3 server for tests: moto, in a process of its own, on a free loopback port.

moto keeps everything in memory, so an outage must not end the process: its listening socket is closed and every
connection cut (refuse: the port answers RST, as a dead server's does), or the process is stopped where it stands
(hang: the kernel still accepts, nobody ever answers), and after either it goes on with what it had.

    python -m tests.support.object_server PORT     SIGUSR1 refuses, SIGUSR2 serves again
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

HOST, BUCKET, START_S = "127.0.0.1", "models", 60.0
ROOT = Path(__file__).parents[2]


class ObjectServer:
    """moto as a process; a context manager. Its bucket is there when it has started."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = probe.getsockname()[1]
        self.endpoint = f"http://{HOST}:{self.port}"
        self.env = {
            "AWS_ACCESS_KEY_ID": "freshet",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }
        self.process = None

    def start(self):
        # Short pages: a listing has several of few names.
        env = os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": "100"}
        command = [sys.executable, "-m", "tests.support.object_server", str(self.port)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait(listening=True)
        self.make_bucket(BUCKET)
        return self

    def make_bucket(self, name):
        import http.client

        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            connection.request("PUT", f"/{name}", headers={"content-length": "0"})
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
        finally:
            connection.close()

    def address(self, prefix=""):
        return f"s3://{BUCKET}/{prefix}".rstrip("/")

    def refuse(self):
        """No connection is taken any more and every one that there is is cut."""
        self.process.send_signal(signal.SIGUSR1)
        self._wait(listening=False)

    def serve(self):
        """As before refuse()."""
        self.process.send_signal(signal.SIGUSR2)
        self._wait(listening=True)

    def hang(self):
        """Connections are taken, nothing is ever answered."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self):
        """As before hang()."""
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def _wait(self, listening):
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s:
            assert self.process.poll() is None, "the S3 server has ended"
            try:
                socket.create_connection((HOST, self.port), timeout=5).close()
                listens = True
            except (ConnectionRefusedError, ConnectionResetError):
                listens = False
            if listens == listening:
                return
            time.sleep(0.01)
        raise AssertionError("the S3 server does not do what it was told")


def _run(port):
    """Serves until it is killed."""
    import logging

    from moto.server import create_backend_app
    from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    connections = set()
    # moto looks whether a key is there and then sets it, two threads might both find nothing: one writes at a time.
    writing = threading.Lock()
    # S3 alone: to tell AWS' services apart takes moto longer than to answer.
    app = create_backend_app("s3")

    def answer(environ, start_response):
        if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE"):
            with writing:
                return app(environ, start_response)
        return app(environ, start_response)

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self):
            connections.add(self.request)
            super().setup()

        def finish(self):
            connections.discard(self.request)
            with contextlib.suppress(OSError):
                super().finish()

        def log(self, *_):
            pass

    class Server(ThreadedWSGIServer):
        request_queue_size = 1024
        allow_reuse_address = True

        def handle_error(self, *_):
            pass  # connections that were cut

    serving = [True]
    changed = threading.Event()

    def told(number, _):
        serving[0] = number == signal.SIGUSR2
        changed.set()

    signal.signal(signal.SIGUSR1, told)
    signal.signal(signal.SIGUSR2, told)
    while True:
        server = Server(HOST, port, answer, handler=Handler)
        loop = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        loop.start()
        while serving[0]:
            changed.wait(0.5)
            changed.clear()
        server.shutdown()
        server.server_close()
        for connection in list(connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        while not serving[0]:
            changed.wait(0.5)
            changed.clear()


if __name__ == "__main__":
    # It goes with whoever started it, killed or not.
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    _run(int(sys.argv[1]))
