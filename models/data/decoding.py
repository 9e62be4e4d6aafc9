"""Parquet files that strangers write, decoded in a process of its own with a limit of memory.

A file's size says nothing of what it takes: a dictionary, a run length or a shared prefix makes gigabytes of kilobytes,
sizes in page headers and footers are the writer's word, and the library has no bound of its own. So what comes into a
followed folder is decoded where MEMORY_NBYTES is the system's to count (RLIMIT_DATA), and comes over a pipe in frames
of at most FRAME_NBYTES each. Where a process ends within its answer another one is asked, as somebody else may have
ended it; where that ends too the file is refused: BadInput, in one line.

Invariants
- A process answers one reader at a time. One whose answer was read to its end is kept for the next; any other is ended,
  so no reader ever has a frame of another's.
- Processes end with this one, as their standard input does, and by no signal that a terminal or a service manager sends
  to all: rows of a run that ends in order are not refused for it.

Cost: frames are copied over a pipe: 0.1 us of processor time a row of seven columns, where decoding itself takes 0.2
and a training step 4, so that training takes 1.01 times the processor time (0.98 to 1.02). A process is started in half
a second, for the first file, and has 70 MB.
Refused: reading page headers ourselves (they lie, and prefixes are in no header); a bound by the first rows (the next
one may be the large one); a process a file (half a second each).
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
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from freshet_serving.models.data.decoding_child import BATCH, DONE, FRAME_NBYTES, HEAD, REFUSED
from freshet_serving.processor.errors import BadInput, NotReady

MEMORY_NBYTES = 1 << 30
MOST_IDLE, ATTEMPTS = 2, 2
OVERHEAD_NBYTES = 1 << 20
"""Of a frame, beside its rows: names and types of its columns."""
NEEDED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR", "TZ")
"""Of the environment; nothing that is secret."""


class DecoderPool:
    """Processes that decode. Any thread may ask."""

    def __init__(self, memory_nbytes: int = MEMORY_NBYTES) -> None:
        self._memory_nbytes = memory_nbytes
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []

    def piece(self, path: Path, names: Sequence[str], number: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of a piece of a file (ParquetFile.pieces) as FileChunk.read does; raises BadInput."""
        return self._ask({"path": str(path.absolute()), "names": list(names), "rows": None, "piece": number})

    def rows(self, path: Path, rows: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield rows of a file, by ascending numbers, with all columns; raises BadInput."""
        return self._ask({"path": str(path.absolute()), "names": None, "rows": list(rows), "piece": 0})

    def close(self) -> None:
        """Ends the processes that have nothing to do."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def _ask(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        given = 0
        for attempt in range(ATTEMPTS):
            try:
                with contextlib.closing(self._answer(request)) as batches:
                    for number, batch in enumerate(batches):
                        if number == given:
                            given += 1
                            yield batch
                return
            except (EOFError, OSError, pa.ArrowException):
                if attempt == ATTEMPTS - 1:
                    raise BadInput(
                        f"{Path(request['path']).name}: expected a Parquet file that {self._memory_nbytes >> 20:,} MiB"
                        f" suffice to decode, but the process that decoded it has ended, {ATTEMPTS} times"
                    ) from None

    def _answer(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        """Yield what one process answers; raises EOFError and the like where it ends before its answer does."""
        process, done = self._taken(), False
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            while not done:
                kind, nbytes = HEAD.unpack(_read(process, HEAD.size))
                if kind not in (BATCH, DONE, REFUSED) or nbytes > FRAME_NBYTES + OVERHEAD_NBYTES:
                    raise EOFError
                payload = _read(process, nbytes)
                done = kind != BATCH
                if kind == REFUSED:
                    raise BadInput(payload.decode(errors="replace"))
                if kind == BATCH:
                    with pa.ipc.open_stream(payload) as stream:
                        yield stream.read_next_batch()
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
            # No fault of the file, whose rows are not to be left out for it.
            raise NotReady(f"data: cannot start the process that decodes files: {error.strerror}") from None
        if sys.platform == "linux":
            # It may have ended already.
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (self._memory_nbytes, self._memory_nbytes))
        return process

    def _give_back(self, process: subprocess.Popen[bytes], done: bool) -> None:
        with self._lock:
            if done and process.poll() is None and len(self._idle) < MOST_IDLE:
                self._idle.append(process)
                return
        _end(process)


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
"""Of this process."""
atexit.register(DECODERS.close)
