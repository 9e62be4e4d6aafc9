"""Decode untrusted Parquet files in a separate process with a memory limit.

A file's size does not bound the memory it decodes to: a dictionary, a run length or a shared prefix expands kilobytes
to gigabytes, sizes in headers and footers are the writer's claims, and the library has no limit of its own. So files
of a followed folder, and small ones of any table, are decoded in a process that the system limits to MEMORY_NBYTES
(RLIMIT_DATA). Rows come back over a pipe in frames of at most FRAME_NBYTES. If a process ends during its answer,
another one tries, since something else may have killed it; if that one ends too, the file is refused with BadInput.

Invariants
- A process serves one reader at a time. It is kept only if its answer was read to the end, so no reader receives a
  frame of another's answer.
- A fork of this process has none of them: two readers of one pipe would get parts of each other's answers.
- Processes end with this one, because their standard input closes, and ignore signals sent to the whole group: no rows
  are refused because a run shuts down in order.

Cost: 0.1 us of processor time a row of seven columns for the pipe, where decoding takes 0.2 and a training step 4:
training takes 1.01 times the processor time (0.98 to 1.02). A process starts in half a second and has 70 MB.
Rejected: parsing page headers (they may lie, and prefixes are in no header); a bound derived from the first rows (the
next one may be the large one); one process a file (half a second each).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from freshet_serving.models.data.decoding_child import BATCH, DONE, FRAME_NBYTES, HEAD, REFUSED
from freshet_serving.models.data.files import FileChunk, ParquetFile
from freshet_serving.processor.errors import BadInput, NotReady

MEMORY_NBYTES = 1 << 30
EXPANDED_NBYTES = 64 << 20
"""Bytes that rows may take outside such a process."""
MOST_IDLE, ATTEMPTS = 2, 2
OVERHEAD_NBYTES = 1 << 20
"""Bytes of a frame beside its rows: names and types of its columns."""
NEEDED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR", "TZ")
"""Environment variables passed to the process; none of them is secret."""


class DecoderPool:
    """Processes that decode files. Thread-safe."""

    def __init__(self, memory_nbytes: int = MEMORY_NBYTES) -> None:
        self._memory_nbytes = memory_nbytes
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []

    def piece(self, path: Path, names: Sequence[str], number: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of piece `number` of ParquetFile.pieces; raise BadInput if they cannot be decoded."""
        return self._ask({"path": str(path.absolute()), "names": list(names), "rows": None, "piece": number})

    def rows(self, path: Path, rows: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield rows by ascending numbers, with all columns; raise BadInput if they cannot be decoded."""
        return self._ask({"path": str(path.absolute()), "names": None, "rows": list(rows), "piece": 0})

    def forget(self) -> None:
        """Leave the processes to the process that this one was forked from."""
        self._lock, self._idle = threading.Lock(), []

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def _ask(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        yielded = 0
        for attempt in range(ATTEMPTS):
            try:
                with contextlib.closing(self._answer(request)) as batches:
                    for number, batch in enumerate(batches):
                        if number == yielded:
                            yielded += 1
                            yield batch
                return
            except (EOFError, OSError, pa.ArrowException):
                if attempt == ATTEMPTS - 1:
                    raise BadInput(
                        f"{Path(request['path']).name}: cannot be decoded within {self._memory_nbytes >> 20:,}"
                        f" MiB: the decoding process ended {ATTEMPTS} times"
                    ) from None

    def _answer(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        """Yield one process's answer; raise EOFError or the like if it ends before the answer is complete."""
        process, done = self._taken(), False
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            batch: pa.RecordBatch | None = None
            while not done:
                # One frame ahead: a reader that leaves with the last batch has had the whole answer.
                try:
                    kind, payload = _frame(process)
                except (EOFError, OSError):
                    if batch is not None:
                        yield batch
                    raise
                done = kind != BATCH
                if batch is not None:
                    yield batch
                if kind == REFUSED:
                    raise BadInput(payload.decode(errors="replace"))
                if kind == BATCH:
                    with pa.ipc.open_stream(payload) as stream:
                        batch = stream.read_next_batch()
        finally:
            self._give_back(process, done)

    def _taken(self) -> subprocess.Popen[bytes]:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        return self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {name: os.environ[name] for name in NEEDED if name in os.environ}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "freshet_serving.models.data.decoding_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            # The file is not at fault, so its rows must not be dropped.
            raise NotReady(f"data: cannot start the decoding process: {error.strerror}") from None
        if sys.platform == "linux":
            # The process may have ended already.
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (self._memory_nbytes, self._memory_nbytes))
        return process

    def _give_back(self, process: subprocess.Popen[bytes], done: bool) -> None:
        with self._lock:
            if done and process.poll() is None and len(self._idle) < MOST_IDLE:
                self._idle.append(process)
                return
        _end(process)


def _frame(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    kind, nbytes = HEAD.unpack(_read(process, HEAD.size))
    if kind not in (BATCH, DONE, REFUSED) or nbytes > FRAME_NBYTES + OVERHEAD_NBYTES:
        raise EOFError
    return kind, _read(process, nbytes)


def _read(process: subprocess.Popen[bytes], nbytes: int) -> bytes:
    assert process.stdout is not None
    data = process.stdout.read(nbytes)
    if len(data) < nbytes:
        raise EOFError
    return data


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert pipe is not None
            pipe.close()
    process.kill()
    process.wait()


DECODERS = DecoderPool()
atexit.register(DECODERS.close)
os.register_at_fork(after_in_child=DECODERS.forget)


class IsolatedParquetFile(ParquetFile):
    """A Parquet file on disk that a process of the pool decodes where its rows may expand."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = path

    def pieces(self, types: dict[str, pa.DataType], start: int) -> Iterator[FileChunk]:
        if not self.may_expand(types, EXPANDED_NBYTES):
            yield from super().pieces(types, start)
            return
        firsts = [piece.first for piece in super().pieces(types, 0)]
        for number, (first, end) in enumerate(pairwise([*firsts, self.count_rows()])):
            if end > start:
                skipped = max(0, start - first)
                yield FileChunk(first + skipped, partial(self._decoded, list(types), number, skipped))

    def _decoded(self, names: list[str], number: int, skipped: int) -> Generator[pa.RecordBatch]:
        with contextlib.closing(DECODERS.piece(self._file, names, number)) as batches:
            for batch in batches:
                if skipped < batch.num_rows:
                    yield batch.slice(skipped)
                skipped = max(0, skipped - batch.num_rows)
