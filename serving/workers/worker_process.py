"""One worker process as the supervisor sees it: spawned, told and asked, heard, reaped.

Invariants
- A thread of its own, `freshet-ear-n`, receives the process's messages. When it ends, every request that waits for an
  answer has failed.
- A process is reaped once, by the first thread that finds it gone; the others wait (serving.workers.worker_pool).
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from freshet_serving.serving.workers.channel import Channel, ChannelClosed, Message, refusal
from freshet_serving.serving.workers.fork_server import ForkServer

MessageHandler = Callable[["WorkerProcess", Message], None]


class WorkerProcess:
    """One worker process and the channel to it. Thread-safe."""

    def __init__(
        self,
        fork_server: ForkServer,
        slot: int,
        message: Message,
        fds: Sequence[int],
        on_message: MessageHandler,
        beats: Callable[[], int],
    ) -> None:
        """Spawn the process. Raises ChannelClosed if the fork server or the process has gone.

        Args:
            fds: Descriptors of the settings.
            on_message: Called with messages that the process sends unprompted.
            beats: Returns the process's count of heartbeats.
        """
        self.slot = slot
        self.handed = 0
        self.hello: Future[None] = Future()
        self.gone = threading.Event()
        self.heard_s = self._moved_s = time.monotonic()
        self._beats, self._seen = beats, 0
        self._on_message = on_message
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Message]] = {}
        self._numbers = itertools.count(1)
        self._reap_lock = threading.Lock()
        self._reaped = False
        self._channel, other_end = Channel.pair()
        try:
            with other_end:
                self._process = fork_server.fork(other_end)
        except ChannelClosed:
            self._channel.close()
            raise
        self._ear = threading.Thread(target=self._listen, name=f"freshet-ear-{slot}", daemon=True)
        self._ear.start()
        self.tell("settings", message, fds)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def signal(self) -> str:
        """Name of the signal that ended the process, once it is reaped; "" if it is not known."""
        return self._process.signal

    @property
    def up(self) -> bool:
        """True if the process has started and reads its channel."""
        return self.hello.done() and self.hello.exception() is None

    def heartbeat_age_s(self) -> float:
        """Return the seconds since the last heartbeat (a message or a beat), with the resolution of the polls."""
        beats, now_s = self._beats(), time.monotonic()
        if beats != self._seen:
            self._seen, self._moved_s = beats, now_s
        return now_s - max(self.heard_s, self._moved_s)

    def tell(self, op: str, message: Message | None = None, fds: Sequence[int] = ()) -> None:
        """Send a message that needs no answer. Raises ChannelClosed."""
        self._channel.send({**(message or {}), "op": op}, fds)

    def ask(self, op: str, message: Message | None = None, fds: Sequence[int] = ()) -> Future[Message]:
        """Send a request; return a future of the answer, of the worker's FreshetError, or of ChannelClosed.

        Raises ChannelClosed if the process has gone.
        """
        answer: Future[Message] = Future()
        number = next(self._numbers)
        with self._lock:
            if self.gone.is_set():
                raise ChannelClosed("the worker has exited")
            self._asked[number] = answer
        self._channel.send({**(message or {}), "op": op, "id": number}, fds)
        return answer

    def hand_off(self, connection: socket.socket) -> bool:
        """Hand over an accepted connection, which the caller still closes; return False if that would block."""
        try:
            handed = self._channel.send_nowait({"op": "adopt"}, [connection.fileno()])
        except ChannelClosed:
            return False
        self.handed += handed
        return handed

    def reap(self, on_death: Callable[[WorkerProcess], None]) -> None:
        """Make sure that the process is dead. The first caller also calls on_death, once."""
        with self._reap_lock:
            if self._reaped:
                return
            self._process.kill()
            self._process.wait()
            self._leave()
            self._ear.join()
            self._channel.close()
            on_death(self)
            self._reaped = True

    def wait(self, timeout_s: float) -> bool:
        return self._process.wait(timeout_s)

    def _listen(self) -> None:
        try:
            while True:
                received = self._channel.receive()
                assert received is not None, "a blocking receive returns a message"
                message, fds = received
                for fd in fds:
                    os.close(fd)
                self.heard_s = time.monotonic()
                if message["op"] == "reply":
                    self._answered(message)
                elif message["op"] == "hello":
                    self.hello.set_result(None)
                else:
                    self._on_message(self, message)
        except ChannelClosed:
            self._leave()
        except BaseException:
            # No thread reads its messages any more (there may be no memory to do so), so the process is replaced.
            self._process.kill()
            self._leave()
            raise

    def _answered(self, message: Message) -> None:
        with self._lock:
            answer = self._asked.pop(message["id"], None)
        if answer is None:
            return
        if "error" in message:
            answer.set_exception(refusal(*message["error"]))
        else:
            answer.set_result(message)

    def _leave(self) -> None:
        """Fail all requests that wait for an answer."""
        with self._lock:
            self.gone.set()
            unanswered, self._asked = self._asked, {}
        for answer in unanswered.values():
            answer.set_exception(ChannelClosed("the worker has exited"))
        if not self.hello.done():
            self.hello.set_exception(ChannelClosed("the worker exited before it was ready"))
