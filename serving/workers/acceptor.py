"""The data port of a fleet: accepts connections on the supervisor's event loop and hands each to a worker.

A connection that no worker can take, because none is up, all are busy reading or have as many as they may, waits here,
and those behind it in the listener's queue: they are late, not refused. So do all while this process has no descriptor
for another: its workers go on without it.

Clients that leave and come back all at once meet counts that are not true yet: a worker that computes notices only
after its batch that its old connections have ended, and the new ones would all go to the worker that noticed first,
for as long as they live. So while the counts are uneven, a newcomer waits a moment for them to settle.

At the end what waits is handed out first (serving.front.backlog), and only then are the workers told to end: on their
channels the connections are ahead of that word, so each is served by whoever got it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket

from freshet_serving.serving.front.backlog import HANDSHAKE_S, refuse_new_connections
from freshet_serving.serving.workers.worker_pool import WorkerPool
from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost

log = logging.getLogger("freshet.fleet")

ACCEPTS_A_TURN = 64
RETRY_S = 0.02
SETTLE_S = 0.02
# How long, at the end, a connection waits for a worker that can take it.
LAST_HAND_S = 1.0


class Acceptor:
    """The supervisor's data port, with the verbs of serving.http.port.HttpPort."""

    def __init__(self, listener: socket.socket, worker_pool: WorkerPool) -> None:
        self._listener, self._worker_pool = listener, worker_pool
        self.host: WorkerPoolHost | None = None
        self._held: socket.socket | None = None
        self._settled = self._starved = False
        self._ending = asyncio.Event()
        self._hurried = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None

    async def listen(self) -> None:
        """Hands out connections until end() is called; returns when every worker has finished and ended."""
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener.fileno(), self._accept)
        await self._ending.wait()
        await self._hand_out_rest()
        loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if self._retry is not None:
            self._retry.cancel()
        if self._held is not None:
            self._held.close()
        self._worker_pool.end()
        await asyncio.to_thread(self._worker_pool.join)

    def opened(self) -> None:
        """See serving.server.Frontend: the workers answer predictions from now on."""
        assert self.host is not None, "models are loaded by it"
        self.host.opened()

    async def drain(self) -> None:
        """Makes the workers say that the server is unready."""
        if self.host is not None:
            await asyncio.to_thread(self.host.drain)

    def drain_share(self, share: float) -> None:
        """See serving.server.Frontend."""
        self._worker_pool.drain_share(share)

    def end(self) -> None:
        """Stops accepting and has the workers finish what is in flight."""
        self._ending.set()

    def abort(self) -> None:
        """Makes the workers end without waiting for what is in flight."""
        self._ending.set()
        self._hurried.set()
        self._worker_pool.abort()

    async def _hand_out_rest(self) -> None:
        """Returns when nobody waits any more, nor can come; or when nobody takes who waits."""
        refuse_new_connections(self._listener)
        loop = asyncio.get_running_loop()
        first_s, last_s = loop.time() + HANDSHAKE_S, loop.time() + LAST_HAND_S
        while (now_s := loop.time()) < first_s or (self._waiting() and now_s < last_s):
            try:
                await asyncio.wait_for(self._hurried.wait(), RETRY_S)
            except TimeoutError:
                continue
            return

    def _waiting(self) -> bool:
        """Whether anybody has come who is not handed out."""
        queue = select.poll()
        queue.register(self._listener, select.POLLIN)
        return self._held is not None or bool(queue.poll(0))

    def _accept(self) -> None:
        if self._worker_pool.unbalanced and not self._settled:
            self._settled = True
            self._pause(SETTLE_S)
            return
        for _ in range(ACCEPTS_A_TURN):
            if self._held is None:
                try:
                    self._held, _ = self._listener.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    self._settled = False
                    return
                except OSError as error:
                    if not self._starved:
                        log.error("connections cannot be accepted for now: %s", error.strerror)
                    self._starved = True
                    self._pause(RETRY_S)
                    return
                self._starved = False
            if not self._worker_pool.hand_off(self._held):
                self._pause(RETRY_S)
                return
            self._held.close()
            self._held = None

    def _pause(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        self._retry = loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        loop = asyncio.get_running_loop()
        self._retry = None
        loop.add_reader(self._listener.fileno(), self._accept)
        # The one that waits here does not make the listener readable.
        self._accept()
