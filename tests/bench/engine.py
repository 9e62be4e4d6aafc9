"""The engine against the bare loop: same kernels, same executable, perfect batches, no queue and no hand-over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

<<<<<<< HEAD
from loadtest.payload import bench_inputs
=======
from models.bench import FLOATS, TABLES, write_model
from processor.cores import available
>>>>>>> batch
from processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.bench.bare import BareLoop
from tests.bench.pairs import Pair

REQUESTS = 32


<<<<<<< HEAD
@contextlib.contextmanager
def pairs(repository: Path, table_rows: int) -> Iterator[list[Pair]]:
    """repository: one that holds the benchmark's model, of table_rows rows a table."""
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        yield [_pair(processor, n, table_rows) for n in (1, 64)] + [_shared_user(processor, table_rows)]


def _pair(processor: Processor, candidates: int, table_rows: int) -> Pair:
    requests = [PredictRequest("bench", i) for i in bench_inputs(candidates, REQUESTS, table_rows)]
=======
def pairs() -> list[Pair]:
    repository = Path(tempfile.mkdtemp(prefix="freshet-bench-"))
    write_model(repository, ROWS)
    inline, thread = (
        Processor.initialize(ProcessorConfig(str(repository), sessions=1, compute=compute))
        for compute in ("inline", "threads")
    )
    bare = [_pair(p, name, n) for p, name in ((inline, "inline"), (thread, "one thread")) for n in (1, 64)]
    cores = len(available())
    two = {
        policy: Processor.initialize(ProcessorConfig(str(repository), sessions=cores, policy=policy))
        for policy in ("shared", "least-loaded", "round-robin")
    }
    groups = [_side_by_side(thread, "one session", two["shared"], f"{cores} sessions", n) for n in (1, 64, 512)]
    policies = [
        _side_by_side(two["shared"], "shared", two[policy], policy, n)
        for policy in ("least-loaded", "round-robin")
        for n in (1, 64)
    ]
    return [*bare, _shared_user(thread), *groups, *policies]


def _inputs(candidates: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "ids": random.integers(0, ROWS, (candidates, TABLES)),
        "floats": random.random((candidates, FLOATS), np.float32),
    }


def _side_by_side(a: Processor, a_name: str, b: Processor, b_name: str, candidates: int) -> Pair:
    """The same requests through two processors: 32 at once, or four large ones."""
    count = REQUESTS if candidates < 256 else 4
    requests = [PredictRequest("bench", _inputs(candidates, seed)) for seed in range(count)]
    return Pair(
        f"{a_name} / {b_name}, {candidates} candidate{'s' if candidates > 1 else ''}, {len(requests)} at once",
        lambda: a.batch_process(requests),
        lambda: b.batch_process(requests),
        len(requests),
        "request",
    )


def _pair(processor: Processor, compute: str, candidates: int) -> Pair:
    requests = [PredictRequest("bench", _inputs(candidates, seed)) for seed in range(REQUESTS)]
>>>>>>> batch
    bare = BareLoop(processor, requests)

    def engine() -> None:
        processor.batch_process(requests)

    plural = "s" if candidates > 1 else ""
    name = f"engine ({compute}) / bare loop, {candidates} candidate{plural} a request, {REQUESTS} at once"
    return Pair(name, engine, bare.run, REQUESTS, "request")


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
