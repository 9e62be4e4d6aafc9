"""Record a sample of the requests as Parquet files, for warming up versions, load tests and training.

Each candidate is one row. The columns are those of its inputs (recorded_columns). Inputs that the request left out have
the values that its score was computed from, looked up as online features or read from entities. Further columns are

    freshet.request      string    x-request-id, or a number that this process assigns
    freshet.row          int32     row of the request; 0 begins a request
    freshet.time         timestamp time of the reply
    freshet.generation   string    generation that answered
    freshet.output.NAME  float32   the output; a list if it has several columns

The schema's metadata, under "freshet", maps columns to the inputs' columns, so that requests can be rebuilt.

Invariants
- The request path appends to a bounded queue, or drops the request and counts it; a thread does everything else. Memory
  is bounded: MAX_QUEUED_NBYTES in the queue (requests with their size as a batch of rows, and records of entities from
  the moment the batch keeps them), and for each model GROUP_NBYTES plus one request (at most MAX_REQUEST_NBYTES)
  waiting for their row group, three times that while it is written.
- What is recorded is what was used: a request is dropped if a key's strings were too long to be kept in its record.
- A request lies within one row group: no reader has to look further back than its row 0.
- A file appears under its name only when it is complete. A crash loses only the file being written: at most ROTATE_S or
  a sixteenth of max_nbytes.
- An erasure (recording_erasure) reaches what was recorded before it: the thread finishes the model's file first.
  Requests that began before it and end after it are dropped.
- The files of one recorder take at most max_nbytes: the oldest are removed first. A disk that cannot be written loses
  recordings, but never fails a request.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.processor.columns import Column
from freshet_serving.processor.counter_block import CounterBlock, Slot, Snapshot
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.processor.features.bound_request import BoundRequest, UsedRecords
from freshet_serving.processor.package import Input, Manifest
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.repository import METADATA, ROW
from freshet_serving.processor.sessions.observers import Observer
from freshet_serving.processor.sessions.request import Done, PredictReply, PredictRequest
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.serving.extensions.recorder.recorded_columns import RecordedColumns, request_of

log = logging.getLogger("freshet.recording")

MAX_QUEUED, MAX_QUEUED_NBYTES = 4096, 64 << 20
MAX_REQUEST_NBYTES = 16 << 20
"""A longer request is dropped: to write it takes three times its size."""
USED_COPIES = 3
"""Memory of a request's entity records and of the columns made from them, as a multiple of the records' size."""
ID_NBYTES = 16
"""Bytes of the number in an id that a recorder assigns, and of its hyphen."""
GROUP_ROWS, GROUP_NBYTES = 16384, 8 << 20
"""A row group is written once it has this many rows or bytes."""
ROTATE_S = 60.0
COUNTERS = (
    Slot("recorder", "requests", "recorded_requests", "Recorded requests."),
    Slot("recorder", "rows", "recorded_rows", "Candidate rows of recorded requests."),
    Slot(
        "recorder", "dropped", "recording_dropped",
        "Requests sampled for recording but dropped: the queue was full or the request too long.",
    ),
)  # fmt: skip
REQUESTS, ROWS, DROPPED = range(len(COUNTERS))
IDLE_S, FINISH_S = 1.0, 30.0
FILES = 16


@dataclass(frozen=True, slots=True, eq=False)
class SampledRequest:
    """A request to be recorded.

    Attributes:
        inputs: The inputs as the request sent them, and those of online features.
        at_s: Time of the reply, Unix seconds.
        nbytes: Size of its rows as a batch.
        used: The records of what it left out; None if it left nothing out.
    """

    columns: RecordedColumns
    inputs: Mapping[str, Column]
    request_id: str
    rows: int
    reply: PredictReply
    at_s: float
    nbytes: int
    used: UsedRecords | None = None

    def whole(self) -> SampledRequest | None:
        """Return the request with all inputs as they were used; None if a key's strings are not kept.

        Raises BadInput if the version's file was changed under the server.
        """
        whole = self if self.used is None else replace(self, inputs={**self.inputs, **self.used.columns()}, used=None)
        return whole if self.columns.names <= whole.inputs.keys() else None


class RequestRecorder(Observer):
    """Recorder of a share of the requests; close() ends it.

    Args:
        max_nbytes: Maximum size of this recorder's files.
        name: Name that distinguishes the files of several processes.

    Raises:
        BadInput: The folder cannot be written.
    """

    def __init__(self, folder: str, share: float, max_nbytes: int, name: str) -> None:
        self._folder, self._share, self._max_nbytes, self._name = Path(folder), share, max_nbytes, name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for stale in self._folder.glob(f".*-{name}-*.tmp"):
                stale.unlink()
        except OSError as error:
            raise BadInput(f"record: cannot write to the folder: {error.strerror}") from None
        self._due = self._number = 0
        self._counters = CounterBlock(COUNTERS)
        self._credit = 0.0
        self._queue: deque[SampledRequest] = deque()
        self._queued_nbytes = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._erasures = 0
        # Whoever erases waits for the thread to finish the model's file.
        self._finishing: deque[tuple[str, threading.Event]] = deque()
        self._columns: dict[str, RecordedColumns] = {}
        self._files: dict[str, _File] = {}
        # Arrow's own allocator keeps what a long row group took: 80 MB a process after requests of 35 MB.
        pa.set_memory_pool(pa.system_memory_pool())
        self._thread = threading.Thread(target=self._run, name="freshet-recorder", daemon=True)
        self._thread.start()
        KEEPERS.add(self)

    def erase_user(self, user: ErasedUser) -> Mapping[str, int]:
        """Take the requests of a user out of all recordings of the folder (Keeper.erase_user).

        Raises NotReady if what is queued cannot be written, OSError if a file cannot be replaced.
        """
        from freshet_serving.serving.extensions.recorder.recording_erasure import erase_recorded

        finished = threading.Event()
        with self._lock:
            self._erasures += 1
        self._finishing.append((user.model, finished))
        self._wake.set()
        if self._thread.is_alive() and not finished.wait(FINISH_S):
            raise NotReady("recordings: what is queued cannot be written")
        return {"recorded_requests": erase_recorded(self._folder, user)}

    def __call__(self, request: PredictRequest, replica: Replica, bound: BoundRequest, done: Done) -> Done:
        self._credit += self._share
        if self._credit < 1.0:
            return done
        self._credit -= 1.0
        # Reserved before the batch keeps the records.
        used, kept_nbytes, erasures = bound.used, 0, self._erasures
        if used is not None and used.nbytes:
            kept_nbytes = USED_COPIES * used.nbytes
            if not self._reserve(kept_nbytes):
                return done
            used.keep()

        def recorded(result: PredictReply | FreshetError) -> None:
            done(result)
            if kept_nbytes:
                with self._lock:
                    self._queued_nbytes -= kept_nbytes
            if not isinstance(result, FreshetError):
                self._offer(request, replica.manifest, bound, kept_nbytes, result, erasures)

        return recorded

    def _reserve(self, nbytes: int) -> bool:
        """Account for records that a batch keeps; count the request as dropped and return False beyond the limits."""
        with self._lock:
            if nbytes > MAX_REQUEST_NBYTES or self._queued_nbytes + nbytes > MAX_QUEUED_NBYTES:
                self._counters.cells[DROPPED] += 1
                return False
            self._queued_nbytes += nbytes
            return True

    def counted(self) -> Snapshot:
        return self._counters.snapshot()

    def close(self) -> None:
        """Write what is queued, and finish the files."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _offer(
        self,
        request: PredictRequest,
        manifest: Manifest,
        bound: BoundRequest,
        kept_nbytes: int,
        reply: PredictReply,
        erasures: int,
    ) -> None:
        rows, used = bound.rows, bound.used
        columns = self._columns.get(manifest.model)
        if columns is None or columns.manifest is not manifest:
            columns = self._columns[manifest.model] = RecordedColumns(manifest)
        texts_nbytes = len(request.request_id.encode()) + len(str(reply.generation)) + len(self._name) + ID_NBYTES
        nbytes = columns.held_nbytes(request.inputs, rows, texts_nbytes) + kept_nbytes
        with self._lock:
            full = len(self._queue) >= MAX_QUEUED or self._queued_nbytes + nbytes > MAX_QUEUED_NBYTES
            if full or nbytes > MAX_REQUEST_NBYTES or self._erasures != erasures:
                self._counters.cells[DROPPED] += 1
                return
            self._number += 1
            request_id = request.request_id or f"{self._name}-{self._number}"
            inputs, at_s = request.inputs, time.time()
            self._queue.append(SampledRequest(columns, inputs, request_id, rows, reply, at_s, nbytes, used))
            self._queued_nbytes += nbytes
        # Check first: setting an event that is set already takes its lock.
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(IDLE_S)
            closing = self._closing
            self._wake.clear()
            try:
                self._write()
                self._finish_for_erasures()
                if closing:
                    self._finish(list(self._files))
                    return
            except Exception as error:
                log.error("could not record requests: %s", error)
                for file in self._files.values():
                    file.abandon()
                self._files.clear()
                if closing:
                    return

    def _write(self) -> None:
        while self._queue:
            with self._lock:
                sampled = self._queue.popleft()
                self._queued_nbytes -= sampled.nbytes
            try:
                whole = sampled.whole()
            except BadInput as error:
                log.error("could not record a request of %s: %s", sampled.columns.manifest.model, error)
                whole = None
            if whole is None:
                with self._lock:
                    self._counters.cells[DROPPED] += 1
                continue
            sampled = whole
            del whole
            model = sampled.columns.manifest.model
            file = self._files.get(model)
            if file is None or not file.columns.fit(sampled.columns.manifest):
                self._finish([model] if file else [])
                self._due += 1
                stem = f"{model}-{self._name}-{int(sampled.at_s * 1e3)}-{self._due}"
                file = self._files[model] = _File(self._folder, stem, sampled.columns)
            file.add(sampled)
            self._counters.cells[REQUESTS] += 1
            self._counters.cells[ROWS] += sampled.rows
            # A long request is freed as soon as it is a batch.
            del sampled
            file.flush_if_full()
        now_s = time.monotonic()
        full = self._max_nbytes // FILES
        self._finish([m for m, f in self._files.items() if f.nbytes >= full or now_s - f.began_s >= ROTATE_S])

    def _finish_for_erasures(self) -> None:
        while self._finishing:
            model, finished = self._finishing[0]
            self._finish([model] if model in self._files else [])
            self._finishing.popleft()
            finished.set()

    def _finish(self, models: Sequence[str]) -> None:
        for model in models:
            self._files.pop(model).finish()
        if models:
            self._make_room()

    def _make_room(self) -> None:
        """Remove this recorder's oldest files until the others fit."""
        files = [p for p in self._folder.glob("*.parquet") if f"-{self._name}-" in p.name]
        stats = sorted(((p.stat().st_mtime_ns, p.stat().st_size, p) for p in files), reverse=True)
        taken = 0
        for _, nbytes, path in stats:
            taken += nbytes
            if taken > self._max_nbytes:
                path.unlink()


class _File:
    """One Parquet file being written; `nbytes` is the size of its rows in memory, more than they take on disk."""

    def __init__(self, folder: Path, stem: str, columns: RecordedColumns) -> None:
        self.began_s, self.nbytes, self.columns = time.monotonic(), 0, columns
        self._path, self._temporary = folder / f"{stem}.parquet", folder / f".{stem}.tmp"
        self._waiting: deque[SampledRequest] = deque()
        self._waiting_rows = self._waiting_nbytes = 0
        self._writer = pq.ParquetWriter(self._temporary, columns.schema, compression="zstd")

    def add(self, sampled: SampledRequest) -> None:
        self._waiting.append(sampled)
        self.nbytes += sampled.nbytes
        self._waiting_rows += sampled.rows
        self._waiting_nbytes += sampled.nbytes

    def flush_if_full(self) -> None:
        if self._waiting_rows >= GROUP_ROWS or self._waiting_nbytes >= GROUP_NBYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()
        os.replace(self._temporary, self._path)

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()

    def _flush(self) -> None:
        self._waiting_rows = self._waiting_nbytes = 0
        if self._waiting:
            batches = [self._batch(self._waiting.popleft()) for _ in range(len(self._waiting))]
            table = pa.Table.from_batches(batches).combine_chunks()
            self._writer.write_table(table, row_group_size=len(table))

    def _batch(self, sampled: SampledRequest) -> pa.RecordBatch:
        return self.columns.batch(sampled.inputs, sampled.rows, sampled.request_id, sampled.reply, sampled.at_s)


def read_requests(folder: str, model: str, inputs: Sequence[Input], most: int) -> list[dict[str, Column]]:
    """Return at most `most` requests with these inputs, spread over all files; raise BadInput if there are none."""
    root = Path(folder)
    files = sorted(root.glob("*.parquet")) if root.is_dir() else [root]
    readable = []
    for path in files:
        try:
            file = pq.ParquetFile(path)
            about = json.loads((file.schema_arrow.metadata or {})[METADATA])
        except (OSError, KeyError, ValueError, pa.ArrowException):
            continue
        if about["model"] == model and about["inputs"] == [asdict(i) for i in inputs]:
            readable.append((file, about["features"]))
    requests: list[dict[str, Column]] = []
    for n, (file, features) in enumerate(readable):
        share = -(-(most - len(requests)) // (len(readable) - n))
        requests += itertools.islice(_requests(file, features, inputs), share)
    if not requests:
        raise BadInput(f"recordings: expected requests of model {model[:64]!r} with its inputs, got none")
    return requests


def _requests(
    file: pq.ParquetFile, features: list[dict[str, Any]], inputs: Sequence[Input]
) -> Iterator[dict[str, Column]]:
    """Yield the whole requests of a file, in order; one that spans two batches of the reader is joined."""
    rest: pa.Table | None = None
    for batch in file.iter_batches(GROUP_ROWS):
        table = pa.Table.from_batches([batch])
        table = table if rest is None else pa.concat_tables([rest, table]).combine_chunks()
        starts = np.flatnonzero(table[ROW].to_numpy() == 0).tolist()
        for first, last in zip(starts, starts[1:]):
            yield request_of(table.slice(first, last - first), features, inputs)
        rest = table.slice(starts[-1]) if starts else table
    if rest is not None and len(rest):
        yield request_of(rest, features, inputs)
