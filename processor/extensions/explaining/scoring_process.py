"""Run spare executables in a process of their own: a crash of a backend's native code cannot reach a serving process.

Ownership: one thread at a time sends requests. The process is started by the first request, runs at low priority, and
ends by itself: after IDLE_S without a request, and when the process that sends them is gone. It opens the files of a
version itself, as the manifest that it receives names them; dense weights and rows are sent.

Invariants
- A process that dies, or does not answer within ANSWER_S and is killed, costs one answer (NotReady): the next request
  starts another. One that has just ended by itself costs none.
- A message is a safetensors file after its length. None of it is code.

Costs: half a second to start and its memory while it runs; sending the weights, a millisecond per few MB.

Rejected: running executables in the supervisor, or in a worker (a library that ends its process would end the whole
server, or its requests); a process forked from the fork server (it would have all that workers import).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor import errors
from freshet_serving.processor.backends import Weights, weights_hash
from freshet_serving.processor.errors import FreshetError, NotReady, first_of
from freshet_serving.processor.extensions.explaining.spare_executable import ScoringPath, SpareExecutables, SpareRun
from freshet_serving.processor.package import Manifest, Tensors, crc32, parse_tensors, write_tensors
from freshet_serving.processor.repository import VersionReader
from freshet_serving.processor.running.given_rows import Tensors as Inputs

log = logging.getLogger("freshet.explain")

ANSWER_S, IDLE_S = 60.0, 120.0
NICE = 5
LENGTH_NBYTES, MAX_MESSAGE_NBYTES = 8, 4 << 30
READERS_KEPT, WEIGHTS_KEPT = 3, 4
WEIGHT, INPUT, OUTPUT, MANIFEST = "weight.", "input.", "output.", "manifest"

Arrays = Mapping[str, NDArray[Any]]


class ScoringProcess:
    """The requesting side of the process; close() ends it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._end: Callable[[], object] = lambda: None

    def score(self, files: VersionReader, way: ScoringPath, dense: Weights, inputs: Inputs) -> SpareRun:
        """Score n rows of the undivided subgraph in the process, starting it if necessary; NotReady if that fails."""
        manifest = np.frombuffer(files.manifest.to_json(), np.uint8)
        # Bytes come last, since tensors after them would not be aligned.
        arrays: dict[str, NDArray[Any]] = {WEIGHT + name: weights for name, weights in dense.items()}
        arrays |= {INPUT + name: rows for name, rows in inputs.items()} | {MANIFEST: manifest}
        about = {"folder": os.path.abspath(files.storage.folder), "way": json.dumps(way)}
        answer = self._ask(arrays, about)
        reply = json.loads(answer.metadata["answer"])
        if "error" in reply:
            kind, message = reply["error"]
            raise getattr(errors, kind, FreshetError)(message)
        outputs = {name.removeprefix(OUTPUT): scores.copy() for name, scores in answer.arrays.items()}
        entry = files.manifest.executables[reply["entry"]]
        return SpareRun(outputs, entry, reply["computes"], reply["open_s"], reply["execute_s"])

    def close(self) -> None:
        self._socket = None
        self._end()

    def _ask(self, arrays: Arrays, about: Mapping[str, str]) -> Tensors:
        fresh = self._socket is None
        connection = self._socket or self._start()
        try:
            _send(connection, arrays, about)
            return _receive(connection)
        except (OSError, EOFError, FreshetError) as error:
            self.close()
            if not fresh and not isinstance(error, TimeoutError):
                # It may have ended by itself after IDLE_S.
                return self._ask(arrays, about)
            log.error("the scoring process for explanations has ended or does not answer: %s", error)
            raise NotReady("explain: the scoring process has ended or does not answer; see the log") from None

    def _start(self) -> socket.socket:
        near, far = socket.socketpair()
        near.settimeout(ANSWER_S)
        command = [sys.executable, "-P", "-m", "freshet_serving.processor.extensions.explaining", str(far.fileno())]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with far:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(far.fileno(),),
                env={**os.environ, "PYTHONPATH": path},
            )
        # Reap the process whenever it ends.
        threading.Thread(target=process.wait, name="freshet-scoring", daemon=True).start()
        self._socket, self._end = near, weakref.finalize(self, _end, process, near)
        return near


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


def main(fd: int) -> int:
    """Run the process whose end of the socket is this descriptor."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    spares, readers = SpareExecutables(), dict[tuple[str, str], VersionReader]()
    weights = dict[str, Weights]()
    with socket.socket(fileno=fd) as connection, contextlib.suppress(OSError, EOFError):
        connection.settimeout(IDLE_S)
        while True:
            _send(connection, *_answered(_receive(connection), spares, readers, weights))
    return 0


def _answered(
    asked: Tensors, spares: SpareExecutables, readers: dict[tuple[str, str], VersionReader], weights: dict[str, Weights]
) -> tuple[Arrays, dict[str, str]]:
    """Return the answer to a message; readers and weights are those opened and received lately."""
    try:
        manifest, folder = asked.arrays[MANIFEST].tobytes(), asked.metadata["folder"]
        key = folder, crc32(manifest)
        if key not in readers:
            # Use the manifest that the server has read: the folder may have been recompiled since.
            readers[key] = VersionReader(Path(folder))
            readers[key].manifest = Manifest.from_json(manifest)
            _forget(readers, READERS_KEPT)
        sent = {name.removeprefix(WEIGHT): a for name, a in asked.arrays.items() if name.startswith(WEIGHT)}
        # Reuse the object of equal weights, so that they are not packed again.
        dense = weights.setdefault(weights_hash(sent, list(sent)), sent)
        _forget(weights, WEIGHTS_KEPT)
        files = readers[key]
        inputs = {name.removeprefix(INPUT): a for name, a in asked.arrays.items() if name.startswith(INPUT)}
        ran = spares.score(files, ScoringPath(*json.loads(asked.metadata["way"])), dense, inputs)
        reply = {
            "entry": files.manifest.executables.index(ran.entry),
            "computes": ran.computes,
            "open_s": ran.open_s,
            "execute_s": ran.execute_s,
        }
        return {OUTPUT + name: scores for name, scores in ran.outputs.items()}, {"answer": json.dumps(reply)}
    except FreshetError as error:
        reply = {"error": [type(error).__name__, str(error)]}
    except Exception:
        log.exception("cannot run an executable")
        reply = {"error": ["FreshetError", "explain: cannot run the executable; see the log"]}
    return {}, {"answer": json.dumps(reply)}


def _forget(cache: dict[Any, Any], most: int) -> None:
    while len(cache) > most:
        del cache[first_of(cache)]


def _send(connection: socket.socket, arrays: Arrays, about: Mapping[str, str]) -> None:
    body = BytesIO()
    write_tensors(body, arrays, about)
    view = body.getbuffer()
    connection.sendall(len(view).to_bytes(LENGTH_NBYTES, "little"))
    connection.sendall(view)


def _receive(connection: socket.socket) -> Tensors:
    """Return the next message; raises EOFError if the other end is closed."""
    nbytes = int.from_bytes(_read(connection, LENGTH_NBYTES).tobytes(), "little")
    if nbytes > MAX_MESSAGE_NBYTES:
        raise EOFError
    return parse_tensors(_read(connection, nbytes), "message")


def _read(connection: socket.socket, nbytes: int) -> NDArray[np.uint8]:
    data = np.empty(nbytes, np.uint8)
    view, at = data.data, 0
    while at < nbytes:
        count = connection.recv_into(view[at:])
        if not count:
            raise EOFError("the other end is closed")
        at += count
    return data
