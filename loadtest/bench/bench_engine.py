"""The engine against the bare loop, and its ways to compute against each other, in one process.

The bare loop: same kernels, same executable, perfect batches, no queue and no hand-over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.cores import available
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from loadtest.bench.bare import BareLoop
from loadtest.bench.pairs import Pair
from loadtest.load.payload import bench_inputs

REQUESTS = 32
LARGE_REQUESTS = 4


@contextlib.contextmanager
def pairs(repository: Path, table_rows: int) -> Iterator[list[Pair]]:
    """repository: one that holds the benchmark's model, of table_rows rows a table."""
    cores = len(available())
    with contextlib.ExitStack() as stack:

        def opened(**options: Any) -> Processor:
            return stack.enter_context(Processor.initialize(ProcessorConfig(repository=str(repository), **options)))

        inline, thread = opened(sessions=1, compute="inline"), opened(sessions=1)
        several = opened(sessions=cores)
        found = [
            _bare(processor, name, candidates, table_rows)
            for processor, name in ((inline, "inline"), (thread, "one thread"))
            for candidates in (1, 64)
        ]
        found.append(_shared_user(thread, table_rows))
        for candidates in (1, 64, 512):
            found.append(_sides(thread, "one session", several, f"{cores} sessions", candidates, table_rows))
        yield found


def _requests(candidates: int, table_rows: int) -> list[PredictRequest]:
    count = REQUESTS if candidates < 256 else LARGE_REQUESTS
    return [PredictRequest("bench", inputs) for inputs in bench_inputs(candidates, count, table_rows)]


def _named(what: str, candidates: int, count: int) -> str:
    return f"{what}, {candidates} candidate{'s' if candidates > 1 else ''} a request, {count} at once"


def _bare(processor: Processor, compute: str, candidates: int, table_rows: int) -> Pair:
    requests = _requests(candidates, table_rows)
    bare = BareLoop(processor, requests)
    name = _named(f"engine ({compute}) / bare loop", candidates, len(requests))
    return Pair(name, lambda: processor.batch_process(requests), bare.run, len(requests), "request")


def _sides(a: Processor, a_name: str, b: Processor, b_name: str, candidates: int, table_rows: int) -> Pair:
    """The same requests through two processors."""
    requests = _requests(candidates, table_rows)
    return Pair(
        _named(f"{a_name} / {b_name}", candidates, len(requests)),
        lambda: a.batch_process(requests),
        lambda: b.batch_process(requests),
        len(requests),
        "request",
    )


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
