"""Requests on disk, a sample of them: Parquet that warms versions, loads servers and trains models.

One row a candidate, whatever form the request had: a column a feature, under its own name, as models.data reads it
(id int64, float float32, string binary, ids and strings lists of these); a column freshet.input.NAME or
freshet.input.NAME.COLUMN for each number that a request sends and no such feature is, as where a stage reads it; and
beside them

    freshet.request      string    x-request-id, or a number of this process's own
    freshet.row          int32     0 begins a request
    freshet.time         timestamp when it was answered
    freshet.generation   string    by what
    freshet.output.NAME  float32   what was answered; a list where an output has several columns

The schema's metadata, under "freshet", says which of them is which column of which input, so that requests can be put
together again.

Invariants
- The request path appends to a bounded queue, or drops and counts; everything else is the thread's.
- A file appears under its name when it is whole. What a crash takes with it is the file being written: at most
  ROTATE_S or a sixteenth of max_nbytes.
- The files of one recorder take at most max_nbytes: the oldest go first. A disk that cannot be written costs what is
  recorded, never a request.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from processor.columns import Column, Ragged, Strings, nbytes_of
from processor.errors import BadInput, FreshetError
from processor.features.plan import BoundRequest
from processor.package.manifest import FLOATS, Input, Manifest
from processor.package.recording_columns import GENERATION, INPUT, METADATA, OUTPUT, REQUEST, ROW, TIME
from processor.sessions.request import Done, PredictReply, PredictRequest
from processor.versions.replica import Replica

log = logging.getLogger("freshet.recording")

MAX_QUEUED, MAX_QUEUED_NBYTES = 4096, 64 << 20
GROUP_ROWS = 16384
ROTATE_S = 60.0
IDLE_S = 1.0
FILES = 16
TIMESTAMP = pa.timestamp("us", "UTC")
TYPES = {
    "id": pa.int64(),
    "float": pa.float32(),
    "string": pa.binary(),
    "ids": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float32()),
    "strings": pa.list_(pa.binary()),
}
KINDS = {"int64": ("id", "ids"), "float32": ("float", "floats"), "string": ("string", "strings")}
"""By an input's dtype: of a column that is no feature, flat and ragged."""


class Recorded(NamedTuple):
    """A column of the file: kind as TYPES has it, column of the input, or -1 where that is all of it."""

    name: str
    kind: str
    input: str
    column: int


def recorded(manifest: Manifest) -> list[Recorded]:
    """The columns that hold a request: every number of every input, those that are a feature under its name."""
    inputs = {i.name for i in manifest.inputs}
    columns = [
        Recorded(f.name, f.kind, f.input, f.column) for f in manifest.features if f.input in inputs and f.kind != FLOATS
    ]
    there = {(c.input, max(c.column, 0)) for c in columns}
    for spec in manifest.inputs:
        kind = KINDS[spec.dtype][spec.ragged]
        for at in range(spec.columns or 1):
            if (spec.name, at) not in there:
                name = f"{INPUT}{spec.name}.{at}" if spec.columns else f"{INPUT}{spec.name}"
                columns.append(Recorded(name, kind, spec.name, at if spec.columns else -1))
    return columns


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A request that is to be recorded. nbytes: of its inputs."""

    manifest: Manifest
    inputs: Mapping[str, Column]
    request_id: str
    rows: int
    reply: PredictReply
    at_s: float
    nbytes: int


class Recorder:
    """The recorder of a sample of the requests, a tap of Predictor; close() ends it."""

    def __init__(self, folder: str, share: float, max_nbytes: int, name: str) -> None:
        """name: tells the files of several processes apart. Raises BadInput when the folder cannot be had."""
        self._folder, self._share, self._max_nbytes, self._name = Path(folder), share, max_nbytes, name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for stale in self._folder.glob(f".*-{name}-*.tmp"):
                stale.unlink()
        except OSError as error:
            raise BadInput(f"record: a folder that can be written wanted: {error.strerror}") from None
        self._due = self._number = self.dropped = self.requests = self.rows = 0
        self._credit = 0.0
        self._queue: deque[Kept] = deque()
        self._queued_nbytes = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._files: dict[str, _File] = {}
        self._thread = threading.Thread(target=self._run, name="freshet-recorder", daemon=True)
        self._thread.start()

    def __call__(self, request: PredictRequest, replica: Replica, bound: BoundRequest, done: Done) -> Done:
        """See Predictor.tap."""
        self._credit += self._share
        if self._credit < 1.0:
            return done
        self._credit -= 1.0

        def recorded(result: PredictReply | FreshetError) -> None:
            done(result)
            if not isinstance(result, FreshetError):
                self._offer(request, replica.manifest, bound.rows, result)

        return recorded

    def counters(self) -> dict[str, int]:
        """The recorder's counters, for /metrics."""
        return {"recorded_requests": self.requests, "recorded_rows": self.rows, "recording_dropped": self.dropped}

    def close(self) -> None:
        """Writes what is queued, and finishes its files."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _offer(self, request: PredictRequest, manifest: Manifest, rows: int, reply: PredictReply) -> None:
        inputs, nbytes = request.inputs, nbytes_of(request.inputs)
        with self._lock:
            if len(self._queue) >= MAX_QUEUED or self._queued_nbytes + nbytes > MAX_QUEUED_NBYTES:
                self.dropped += 1
                return
            self._number += 1
            request_id = request.request_id or f"{self._name}-{self._number}"
            self._queue.append(Kept(manifest, inputs, request_id, rows, reply, time.time(), nbytes))
            self._queued_nbytes += nbytes
        # Looked at first: setting a set event takes its lock.
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(IDLE_S)
            closing = self._closing
            self._wake.clear()
            try:
                self._write()
                if closing:
                    self._finish(list(self._files))
                    return
            except Exception as error:
                log.error("requests could not be recorded: %s", error)
                for file in self._files.values():
                    file.abandon()
                self._files.clear()
                if closing:
                    return

    def _write(self) -> None:
        while self._queue:
            with self._lock:
                kept = self._queue.popleft()
                self._queued_nbytes -= kept.nbytes
            file = self._files.get(kept.manifest.model)
            if file is None or not file.fits(kept.manifest):
                self._finish([kept.manifest.model] if file else [])
                self._due += 1
                stem = f"{kept.manifest.model}-{self._name}-{int(kept.at_s * 1e3)}-{self._due}"
                file = self._files[kept.manifest.model] = _File(self._folder, stem, kept.manifest)
            file.add(kept)
            self.requests += 1
            self.rows += kept.rows
        now_s = time.monotonic()
        full = self._max_nbytes // FILES
        self._finish([m for m, f in self._files.items() if f.nbytes >= full or now_s - f.began_s >= ROTATE_S])

    def _finish(self, models: Sequence[str]) -> None:
        for model in models:
            self._files.pop(model).finish()
        if models:
            self._make_room()

    def _make_room(self) -> None:
        """Removes this recorder's oldest files until the others fit."""
        own = [p for p in self._folder.glob("*.parquet") if f"-{self._name}-" in p.name]
        stats = sorted(((p.stat().st_mtime_ns, p.stat().st_size, p) for p in own), reverse=True)
        taken = 0
        for _, nbytes, path in stats:
            taken += nbytes
            if taken > self._max_nbytes:
                path.unlink()


class _File:
    """One Parquet file being written. nbytes: of its inputs, in memory: more than it takes on disk."""

    def __init__(self, folder: Path, stem: str, manifest: Manifest) -> None:
        self.began_s, self.nbytes = time.monotonic(), 0
        self._path, self._temporary = folder / f"{stem}.parquet", folder / f".{stem}.tmp"
        self._manifest = manifest
        self._kept: list[Kept] = []
        self._waiting_rows = 0
        self._schema = _schema(manifest)
        self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd")

    def fits(self, manifest: Manifest) -> bool:
        """Whether requests of that manifest have this file's columns."""
        mine = self._manifest
        return manifest is mine or (
            (manifest.inputs, manifest.features, manifest.outputs) == (mine.inputs, mine.features, mine.outputs)
        )

    def add(self, kept: Kept) -> None:
        self._kept.append(kept)
        self.nbytes += kept.nbytes
        self._waiting_rows += kept.rows
        if self._waiting_rows >= GROUP_ROWS:
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
        kept, self._kept, self._waiting_rows = self._kept, [], 0
        if kept:
            batches = [_batch(k, self._manifest, self._schema) for k in kept]
            self._writer.write_table(pa.Table.from_batches(batches).combine_chunks())


def _schema(manifest: Manifest) -> pa.Schema:
    about = {
        "model": manifest.model,
        "inputs": [asdict(i) for i in manifest.inputs],
        "features": [column._asdict() for column in recorded(manifest)],
        "outputs": [asdict(o) for o in manifest.outputs],
    }
    fields = [(REQUEST, pa.string()), (ROW, pa.int32()), (TIME, TIMESTAMP), (GENERATION, pa.string())]
    fields += [(c.name, TYPES[c.kind]) for c in recorded(manifest)]
    fields += [(OUTPUT + o.name, pa.float32() if o.columns == 1 else pa.list_(pa.float32())) for o in manifest.outputs]
    return pa.schema(fields, {METADATA: json.dumps(about).encode()})


def _batch(kept: Kept, manifest: Manifest, schema: pa.Schema) -> pa.RecordBatch:
    n, inputs = kept.rows, {i.name: i for i in manifest.inputs}
    columns: list[Any] = [
        pa.array([kept.request_id] * n),
        pa.array(np.arange(n, dtype=np.int32)),
        pa.array(np.full(n, int(kept.at_s * 1e6)), pa.int64()).cast(TIMESTAMP),
        pa.array([str(kept.reply.generation)] * n),
    ]
    columns += [_values(kept.inputs[c.input], c, inputs[c.input], n) for c in recorded(manifest)]
    for output in manifest.outputs:
        scores = kept.reply.outputs[output.name]
        columns.append(pa.array(scores[:, 0]) if output.columns == 1 else pa.array(list(scores)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(column: Column, feature: Recorded, spec: Input, rows: int) -> pa.Array:
    """A column's values of all rows, those that were sent once repeated."""
    if isinstance(column, Ragged):
        flat = column.values.tolist()
        at = column.row_splits.tolist()
        lists = [flat[a:b] for a, b in zip(at, at[1:])]
        return pa.array(lists * rows if len(lists) == 1 else lists, TYPES[feature.kind])
    if isinstance(column, Strings):
        strings = column.tolist()[max(feature.column, 0) :: spec.columns or 1]
        return pa.array(strings * rows if len(strings) == 1 else strings, TYPES[feature.kind])
    values = column.reshape(len(column), -1)[:, max(feature.column, 0)]
    return pa.array(np.repeat(values, rows) if len(values) == 1 else np.ascontiguousarray(values), TYPES[feature.kind])


def read_requests(folder: str, model: str, inputs: Sequence[Input], most: int) -> list[dict[str, Column]]:
    """At most so many recorded requests, spread over all files of a folder, or one file, and of the given inputs.
    Raises BadInput when there is none."""
    root = Path(folder)
    files = sorted(root.glob("*.parquet")) if root.is_dir() else [root]
    found = []
    for path in files:
        try:
            file = pq.ParquetFile(path)
            about = json.loads((file.schema_arrow.metadata or {})[METADATA])
        except (OSError, KeyError, ValueError, pa.ArrowException):
            continue
        if about["model"] == model and about["inputs"] == [asdict(i) for i in inputs]:
            found.append((file, about["features"]))
    requests: list[dict[str, Column]] = []
    for n, (file, features) in enumerate(found):
        share = -(-(most - len(requests)) // (len(found) - n))
        for request in _requests(file, features, inputs):
            if share == 0:
                break
            requests.append(request)
            share -= 1
    if not requests:
        raise BadInput(f"recordings: requests of model {model[:64]!r} with its inputs wanted, found none")
    return requests


def _requests(
    file: pq.ParquetFile, features: list[dict[str, Any]], inputs: Sequence[Input]
) -> Iterator[dict[str, Column]]:
    """Whole requests of a file, in order; one that is cut by a batch of the reader is put together."""
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


def request_of(table: pa.Table, features: list[dict[str, Any]], inputs: Sequence[Input]) -> dict[str, Column]:
    """One request, of the rows of a file that are its own. features, inputs: as the file's metadata has them."""
    n = len(table)
    made: dict[str, Column] = {}
    for spec in inputs:
        mine = [(max(f["column"], 0), table[f["name"]]) for f in features if f["input"] == spec.name]
        width = spec.columns or 1
        if spec.ragged:
            rows = mine[0][1].to_pylist() if mine else [[] for _ in range(n)]
            made[spec.name] = Ragged(
                Strings.of([v for row in rows for v in row])
                if spec.dtype == "string"
                else np.array([v for row in rows for v in row], np.dtype(spec.dtype)),
                np.cumsum([0, *map(len, rows)], dtype=np.int64),
            )
        elif spec.dtype == "string":
            flat = [b""] * (n * width)
            for at, column in mine:
                flat[at::width] = column.to_pylist()
            made[spec.name] = Strings.of(flat)
        else:
            values = np.zeros((n, width), np.dtype(spec.dtype))
            for at, column in mine:
                values[:, at] = column.to_numpy()
            made[spec.name] = values if spec.columns else values[:, 0]
    return made
