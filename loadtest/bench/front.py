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

    def __init__(self, repository: Path, payload: Path, connections: int) -> None:
        self.processor = Processor.initialize(ProcessorConfig(repository=str(repository), compute="inline"))
        lifecycle: Lifecycle[InProcessHost] = Lifecycle()
        lifecycle.open(self.processor.host)
        ports = lifecycle.part(lambda host: host.predictor)
        self.app = DataApp(ServingContext(ports, Metrics(lifecycle), FrontendOptions()))
        self._loop = new_loop()
        port = HttpPort(self.app, None, 1.0, functools.partial(_CountingProtocol, data_app=self.app))
        port.config.load()
        port.lifespan = port.config.lifespan_class(port.config)
        self._messages = Payload.load(payload).messages("x", {})
        self._clients = []
        for _ in range(connections):
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            self._clients.append(ours)
            self._loop.run_until_complete(port.adopt(theirs))

    def run(self, rounds: int) -> None:
        """So many requests on every connection."""
        self._loop.run_until_complete(self._run(rounds))

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
