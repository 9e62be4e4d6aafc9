"""The fastest that a Python server can be asked to be: a raw ASGI application that reads the body and answers.

`python -m loadtest.bench.echo PORT NBYTES WORKERS`: uvicorn on uvloop and httptools, processes that listen on one port
(SO_REUSEPORT), every reply of as many bytes. It prints `ready` once it listens. Without arguments it is a collector of
spans, and prints its port.
"""

from __future__ import annotations

import http.server
import os
import signal
import socket
import sys
import threading
from typing import Any

import uvicorn

HOST = "127.0.0.1"


class Echo:
    """Reads the whole body, answers with a fixed number of bytes."""

    def __init__(self, nbytes: int) -> None:
        headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % nbytes)]
        self._start = {"type": "http.response.start", "status": 200, "headers": headers}
        self._body = {"type": "http.response.body", "body": bytes(nbytes)}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send(self._start)
        await send(self._body)


class SpanHandler(http.server.BaseHTTPRequestHandler):
    """Takes spans as an OpenTelemetry collector does, and throws them away."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def collect() -> None:
    """Run a collector until standard input ends; print its port."""
    server = http.server.ThreadingHTTPServer((HOST, 0), SpanHandler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def echo(port: int, nbytes: int, workers: int) -> None:
    children = []
    for _ in range(workers - 1):
        child = os.fork()
        if not child:
            _serve(port, nbytes)
            os._exit(0)
        children.append(child)
    # uvicorn raises the signal again once it has shut down; by default that would end this process before the finally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    try:
        _serve(port, nbytes)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
        for child in children:
            os.waitpid(child, 0)


def _serve(port: int, nbytes: int) -> None:
    listener = socket.create_server((HOST, port), reuse_port=True, backlog=1024)
    plain: dict[str, Any] = {
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
    }
    config = uvicorn.Config(Echo(nbytes), loop="uvloop", http="httptools", **plain)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    if sys.argv[1:]:
        echo(*map(int, sys.argv[1:]))
    else:
        collect()
