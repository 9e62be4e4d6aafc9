"""Track which local ranks are alive and which one ended first; mpiexec does not report that reliably.

Every process keeps a connection to the launcher. It sends its rank and pid and, before it ends with an error of its
own, its exit status. The connection closes when the process ends, before mpiexec can end the others: so the first one
to close without a status belongs to the process that died.
"""

from __future__ import annotations

import os
import selectors
import socket
import tempfile
import threading
from pathlib import Path

SOCKET = "FRESHET_LIVENESS_SOCKET"
"""Environment variable with the path of the launcher's socket."""


class LivenessRegistry:
    """The launcher's side, a context manager: pids by rank, ranks in the order of their end, rank 0's exit status."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.gone: list[int] = []
        self.failed: int | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="freshet-")
        self.path = Path(self._folder.name) / "roll"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._ended, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._follow, name="roll", daemon=True)

    def __enter__(self) -> LivenessRegistry:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.close()
        self._thread.join()
        self._listener.close()
        self._ended.close()
        self._folder.cleanup()

    def _follow(self) -> None:
        """Read until __exit__(), then what was sent before it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            texts: dict[socket.socket, str] = {}
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                for source in ready:
                    if source is self._listener:
                        connection, _ = self._listener.accept()
                        texts[connection] = ""
                        selector.register(connection, selectors.EVENT_READ)
                    elif isinstance(source, socket.socket) and source in texts:
                        if text := _received(source):
                            texts[source] += text
                            self._note(texts[source])
                        else:
                            selector.unregister(source)
                            source.close()
                            self._leave(texts.pop(source))
                if ready == [self._ended]:
                    for connection in texts:
                        connection.close()
                    return

    def _note(self, text: str) -> None:
        for line in text.split("\n")[:-1]:
            kind, *numbers = line.split()
            if kind == "rank":
                self.pids[int(numbers[0])] = int(numbers[1])
            elif kind == "failed":
                self.failed = int(numbers[0])

    def _leave(self, text: str) -> None:
        if text.startswith("rank "):
            self.gone.append(int(text.split()[1]))


def _received(connection: socket.socket) -> str:
    try:
        return connection.recv(1 << 12).decode()
    except ConnectionError:
        return ""


class LivenessClient:
    """A process's side: holds a connection to the launcher, if there is one, while it lives."""

    def __init__(self, rank: int) -> None:
        path = os.environ.get(SOCKET)
        self._connection: socket.socket | None = None
        if path is not None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connection.connect(path)
            self._say(f"rank {rank} {os.getpid()}")

    def failing(self, status: int) -> None:
        """Announce the status with which this process ends because of its own error."""
        self._say(f"failed {status}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _say(self, line: str) -> None:
        if self._connection is not None:
            self._connection.sendall(f"{line}\n".encode())
