"""The engine against the bare loop: same kernels, same executable, perfect batches, no queue and no hand-over."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from models.bench import FLOATS, TABLES, write_model
from processor.engine import PredictRequest, Processor, ProcessorConfig
from processor.replica import READERS
from tests.bench.pairs import Pair

ROWS = 100_000
REQUESTS = 32


def pairs() -> list[Pair]:
    repository = Path(tempfile.mkdtemp(prefix="freshet-bench-"))
    write_model(repository, ROWS)
    processor = Processor.initialize(ProcessorConfig(str(repository), sessions=1))
    return [_pair(processor, candidates) for candidates in (1, 64)] + [_shared_user(processor)]


def _inputs(candidates: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "ids": random.integers(0, ROWS, (candidates, TABLES)),
        "floats": random.random((candidates, FLOATS), np.float32),
    }


def _pair(processor: Processor, candidates: int) -> Pair:
    requests = [PredictRequest("bench", _inputs(candidates, seed)) for seed in range(REQUESTS)]
    bare = BareLoop(processor, requests)

    def engine() -> None:
        processor.batch_process(requests)

    name = f"engine / bare loop, {candidates} candidate{'s' if candidates > 1 else ''} a request, {REQUESTS} at once"
    return Pair(name, engine, bare.run, REQUESTS, "request")


def _shared_user(processor: Processor) -> Pair:
    """Floats sent once and broadcast to 64 candidates, against floats repeated in the request."""
    inputs = _inputs(64)
    once = PredictRequest("bench", inputs | {"floats": inputs["floats"][:1]})
    repeated = PredictRequest("bench", inputs | {"floats": np.repeat(inputs["floats"][:1], 64, 0)})
    return Pair(
        "one row broadcast / repeated, 64 candidates",
        lambda: [processor.process(once) for _ in range(8)],
        lambda: [processor.process(repeated) for _ in range(8)],
        8,
        "request",
    )


class BareLoop:
    """What the engine would be with nothing around it: bound requests in full batches through kernel and executable."""

    def __init__(self, processor: Processor, requests: list[PredictRequest]) -> None:
        self._version = processor.replica("bench")
        self._state = self._version.pin(READERS - 1)
        bound = [self._version.plan.bind(r.inputs) for r in requests]
        rows = bound[0].rows
        buckets = sorted(self._state.executables)
        a_batch = max(1, buckets[-1] // rows)
        self._counts = np.zeros((TABLES, 2), np.int64)
        self._plans = []
        for batch in (bound[i : i + a_batch] for i in range(0, len(bound), a_batch)):
            bucket = next(b for b in buckets if b >= len(batch) * rows)
            x = np.zeros((bucket, self._version.plan.width), np.float32)
            run = self._state.executables[bucket].bind(x, {"score": np.empty((bucket, 1), np.float32)})
            self._plans.append((batch, np.array([[0, rows]] * len(batch), np.int64), x, run))

    def run(self) -> None:
        for batch, spans, x, run in self._plans:
            self._version.plan.fill(self._state.tables, self._state.epoch, batch, spans, x, self._counts)
            run()
