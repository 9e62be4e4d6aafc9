"""Accept connections on the supervisor's event loop and hand each to a worker.

If no worker can take a connection (none is up, all are busy reading, or all are at their connection limit), it waits
here and later ones wait in the listener's queue: they are delayed, not refused. So it is while this process has no free
file descriptor; its workers continue to serve.

When many clients reconnect at once, a worker that is computing notices only after its batch that its old connections
have ended. All new connections would go to the first worker that noticed, and stay there. So while the counts are
uneven, a new connection waits a moment for them to settle.

At shutdown, waiting connections are handed out first (serving.front.backlog), and only then are the workers told to
end. The channels keep this order, so the worker that received a connection serves it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket

from freshet_serving.serving.front.backlog import HANDSHAKE_S, refuse_new_connections
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.workers.worker_pool import WorkerPool
from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost

log = logging.getLogger("freshet.fleet")

ACCEPTS_A_TURN = 64
RETRY_S = 0.02
SETTLE_S = 0.02
# At shutdown: how long a connection waits for a worker that can take it.
LAST_HAND_S = 1.0


class Acceptor:
    """The supervisor's data port, with the methods of serving.http.port.HttpPort."""

    def __init__(self, listener: socket.socket, worker_pool: WorkerPool) -> None:
        self._listener, self._worker_pool = listener, worker_pool
        self.host: WorkerPoolHost | None = None
        self._held: socket.socket | None = None
        self._settled = self._starved = False
        self._ending = asyncio.Event()
        self._hurried = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None

    async def listen(self) -> None:
        """Hand out connections until end() is called; return when every worker has finished and ended."""
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
        await in_thread(None, self._worker_pool.join)

    def opened(self) -> None:
        assert self.host is not None, "the host is set before models are loaded"
        self.host.opened()

    async def drain(self) -> None:
        if self.host is not None:
            await in_thread(None, self.host.drain)

    def drain_share(self, share: float) -> None:
        self._worker_pool.drain_share(share)

    def end(self) -> None:
        self._ending.set()

    def abort(self) -> None:
        self._ending.set()
        self._hurried.set()
        self._worker_pool.abort()

    async def _hand_out_rest(self) -> None:
        """Return when no connection waits and none can arrive, or no worker takes those that wait."""
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
                        log.error("cannot accept connections now: %s", error.strerror)
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
        # A connection held here does not make the listener readable.
        self._accept()
