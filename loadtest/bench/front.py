"""The server's front end and engine in this process: sockets, protocol, codec, batcher, inline session, reply.

Everything but processes and a network: what is compared runs alternately on one thread, so that differences of a
percent can be seen where two servers would differ by more from one minute to the next.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from pathlib import Path
from typing import Any

from freshet_serving.processor.engine import InProcessHost, Processor, ProcessorConfig
from freshet_serving.serving.front.exchange import ServingContext
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.http.app import DataApp
from freshet_serving.serving.http.port import HttpPort, new_loop
from freshet_serving.serving.http.protocol import PredictProtocol
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from loadtest.load.payload import Payload


class _CountingProtocol(PredictProtocol):
    """A connection that counts its answers."""

    answered = 0

    def _answer(self, pending: Any, answer: Any) -> None:
        super()._answer(pending, answer)
        _CountingProtocol.answered += 1


class FrontEnd:
    """So many connections, each with one request in flight at a time."""

    def __init__(self, repository: Path, payload: Path | None, connections: int, **options: Any) -> None:
        """payload: what run() sends; None for ask(). options: of the processor."""
        config = ProcessorConfig(repository=str(repository), compute="inline", **options)
        self.processor = Processor.initialize(config)
        lifecycle: Lifecycle[InProcessHost] = Lifecycle()
        lifecycle.open(self.processor.host)
        ports = lifecycle.part(lambda host: host.predictor)
        self.app = DataApp(ServingContext(ports, Metrics(lifecycle), FrontendOptions()))
        self._loop = new_loop()
        port = HttpPort(self.app, None, 1.0, functools.partial(_CountingProtocol, data_app=self.app))
        port.config.load()
        port.lifespan = port.config.lifespan_class(port.config)
        self._messages = Payload.load(payload).messages("x", {}) if payload is not None else []
        self._clients = []
        for _ in range(connections):
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            ours.setblocking(payload is not None)
            self._clients.append(ours)
            self._loop.run_until_complete(port.adopt(theirs))

    def run(self, rounds: int) -> None:
        """So many requests on every connection."""
        self._loop.run_until_complete(self._run(rounds))

    def ask(self, message: bytes) -> bytes:
        """Send a request on the first connection; return the whole reply."""
        return self._loop.run_until_complete(self._ask(message))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()
        self.processor.close()

    async def _run(self, rounds: int) -> None:
        messages, count = self._messages, len(self._clients)
        for n in range(rounds):
            wanted = _CountingProtocol.answered + count
            for at, client in enumerate(self._clients):
                client.sendall(messages[(n * count + at) % len(messages)])
            while _CountingProtocol.answered < wanted:
                await asyncio.sleep(0)
            for client in self._clients:
                client.recv(1 << 16)

    async def _ask(self, message: bytes) -> bytes:
        client, reply = self._clients[0], b""
        await self._loop.sock_sendall(client, message)
        while True:
            # Not as in _run: what waits for a store is to take no processor time.
            reply += await self._loop.sock_recv(client, 1 << 20)
            head, found, body = reply.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if found and len(body) >= int(lengths[0].split(b":")[1]):
                if not head.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(body.decode())
                return reply
