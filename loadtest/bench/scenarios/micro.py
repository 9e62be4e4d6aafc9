"""Kernels and engine against the plainest code that does the same, in one process.

Lookups: the served table against numpy.take, and after a delta against before. Hashing a column of strings: the kernel
against the xxhash library called string by string. The engine against the bare loop (loadtest.bench.compute: the same
kernels, the same executable, perfect batches, no queue and no hand-over), and its ways to compute against each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.cores import available
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.kernels.hashing import hash_strings, init_rows
from freshet_serving.processor.kernels.pool import KIND_ONE, PLAN_FIELDS
from freshet_serving.processor.kernels.pool import run as run_plan
from freshet_serving.processor.package.delta import TableDelta
from freshet_serving.processor.package.manifest_entries import TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed
from loadtest.bench.compute import BareLoop
from loadtest.bench.harness import Bench, Result
from loadtest.bench.pairs import Pair
from loadtest.load.payload import bench_inputs

DIM, ROWS, CHANGED, BATCH = 16, 1_000_000, 100_000, 4096
STRINGS = 10_000
REQUESTS, LARGE_REQUESTS = 32, 4


def run(bench: Bench) -> Result:
    """Every pair, each a ratio of times; smaller is better."""
    result = Result("micro", "Kernels and engine, ratios of time")
    with engines(bench.repository(), bench.table_rows) as pairs:
        for pair in (*lookups(), hashing(), *pairs):
            bench.pair(result, pair)
    return result


def lookups() -> list[Pair]:
    random = np.random.default_rng(0)
    keys = random.permutation(4 * ROWS)[:ROWS].astype(np.int64)
    rows = np.empty((ROWS, DIM), np.float32)
    init_rows(keys, np.uint64(1), np.float32(0.1), rows)
    changed = random.choice(ROWS, CHANGED, replace=False)
    fresh, stamped = (ServedTable(TableEntry("t", DIM, ROWS), packed(keys, rows)) for _ in range(2))
    stamped.apply(TableDelta(keys[changed], rows[changed] + 1, np.empty(0, np.int64)), 1)
    wanted = random.integers(0, ROWS, BATCH)
    ids, out = np.ascontiguousarray(keys[wanted]), np.empty((BATCH, DIM), np.float32)
    take = Pair(
        "lookup: table / numpy.take",
        kernel_call(fresh, 0, ids, out),
        lambda: np.take(rows, wanted, axis=0, out=out),
        BATCH,
        "row",
    )
    after = kernel_call(stamped, 1, ids, out)
    return [take, Pair("lookup: after a delta / before", after, kernel_call(fresh, 0, ids, out), BATCH, "row")]


def kernel_call(table: ServedTable, epoch: int, ids: Any, out: Any) -> Callable[[], object]:
    """The sparse graph of one id feature over one table."""
    tables = np.array([table.descriptor()], np.int64)
    plan = np.zeros((1, PLAN_FIELDS), np.int64)
    plan[0] = (KIND_ONE, 0, 0, 0, 0, 0, 0, DIM, 1)
    scaling, counts = np.zeros((1, 4), np.float32), np.zeros((1, 2), np.int64)
    inputs = np.array([[[ids.ctypes.data, len(ids), 1, 0]]], np.int64)
    spans = np.array([[0, len(ids)]], np.int64)
    keep = (ids, table)
    return lambda: run_plan(tables, plan, scaling, inputs, spans, epoch, out, counts) or keep


def hashing() -> Pair:
    column = Strings.of([f"category-{i % 1000:05d}" for i in range(STRINGS)])
    digest = xxhash.xxh3_64_intdigest

    def library() -> None:
        np.array([digest(s, 7) for s in column.tolist()], np.uint64)

    name = "hash a column of strings: kernel / library"
    return Pair(name, lambda: hash_strings(column, 7), library, STRINGS, "string")


@contextlib.contextmanager
def engines(repository: Path, table_rows: int) -> Iterator[list[Pair]]:
    """repository: one that holds the benchmark's model, of table_rows rows a table."""
    cores = len(available())
    with contextlib.ExitStack() as stack:

        def opened(**options: Any) -> Processor:
            return stack.enter_context(Processor.initialize(ProcessorConfig(repository=str(repository), **options)))

        def asked(candidates: int) -> list[PredictRequest]:
            count = REQUESTS if candidates < 256 else LARGE_REQUESTS
            return [PredictRequest("bench", inputs) for inputs in bench_inputs(candidates, count, table_rows)]

        inline, thread = opened(sessions=1, compute="inline"), opened(sessions=1)
        several = opened(sessions=cores)
        found = [_shared_user(thread, table_rows)]
        for name, processor in (("engine (inline)", inline), ("engine (one thread)", thread)):
            for requests in map(asked, (1, 64)):
                bare = BareLoop(processor, requests)
                found.append(_pair(f"{name} / bare loop", requests, processor, bare.run))
        for requests in map(asked, (1, 64, 512)):
            name = f"one session / {cores} sessions"
            found.append(_pair(name, requests, thread, partial(several.batch_process, requests)))
        yield found


def _pair(name: str, requests: list[PredictRequest], a: Processor, b: Callable[[], object]) -> Pair:
    candidates, count = len(requests[0].inputs["ids"]), len(requests)
    told = f"{name}, {candidates} candidate{'s' if candidates > 1 else ''} a request, {count} at once"
    return Pair(told, lambda: a.batch_process(requests), b, count, "request")


def _shared_user(processor: Processor, table_rows: int) -> Pair:
    """Floats sent once and broadcast to 64 candidates, against floats repeated in the request."""
    (inputs,) = bench_inputs(64, 1, table_rows)
    once = PredictRequest("bench", inputs | {"floats": inputs["floats"][:1]})
    repeated = PredictRequest("bench", inputs | {"floats": np.repeat(inputs["floats"][:1], 64, 0)})
    return Pair(
        "one row broadcast / repeated, 64 candidates",
        lambda: [processor.process(once) for _ in range(8)],
        lambda: [processor.process(repeated) for _ in range(8)],
        8,
        "request",
    )
