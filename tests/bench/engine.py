"""The engine against the bare loop: same kernels, same executable, perfect batches, no queue and no hand-over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from loadtest.payload import bench_inputs
from processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.bench.bare import BareLoop
from tests.bench.pairs import Pair

REQUESTS = 32


@contextlib.contextmanager
def pairs(repository: Path, table_rows: int) -> Iterator[list[Pair]]:
    """repository: one that holds the benchmark's model, of table_rows rows a table."""
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        yield [_pair(processor, n, table_rows) for n in (1, 64)] + [_shared_user(processor, table_rows)]


def _pair(processor: Processor, candidates: int, table_rows: int) -> Pair:
    requests = [PredictRequest("bench", i) for i in bench_inputs(candidates, REQUESTS, table_rows)]
    bare = BareLoop(processor, requests)

    def engine() -> None:
        processor.batch_process(requests)

    name = f"engine / bare loop, {candidates} candidate{'s' if candidates > 1 else ''} a request, {REQUESTS} at once"
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
