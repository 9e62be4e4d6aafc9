"""The fastest that a Python server can be asked to be: a raw ASGI application that reads the body and answers.

`python -m loadtest.bench.echo --port P --nbytes N --workers W`: uvicorn on uvloop and httptools, W processes that
listen on one port (SO_REUSEPORT), every reply N bytes. It prints `ready` once it listens.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    children = []
    for _ in range(arguments.workers - 1):
        child = os.fork()
        if not child:
            _serve(arguments.port, arguments.nbytes)
            os._exit(0)
        children.append(child)
    # uvicorn raises the signal again once it has shut down; by default that would end this process before the finally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    try:
        _serve(arguments.port, arguments.nbytes)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
        for child in children:
            os.waitpid(child, 0)


def _serve(port: int, nbytes: int) -> None:
    listener = socket.create_server((HOST, port), reuse_port=True, backlog=1024)
    config = uvicorn.Config(
        Echo(nbytes),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
