"""The engine with nothing around it, measured: bound requests in full batches through kernel and executable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from freshet_serving.processor.backends.base import Matrix
from freshet_serving.processor.engine import PredictRequest, Processor
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.versions.control import READERS


class BareLoop:
    """The buffers of one thread, and the batches that it computes again and again."""

    def __init__(self, processor: Processor, requests: list[PredictRequest]) -> None:
        self._version = processor.predictor.replica(requests[0].model)
        self._state = self._version.pin(READERS - 1)
        self._executables = self._state.executables[self._version.graphs.undivided.name]
        self.requests = len(requests)
        bound = [self._version.plan.bind_inputs(r.inputs) for r in requests]
        rows = bound[0].rows
        buckets = sorted(self._executables)
        a_batch = max(1, buckets[-1] // rows)
        self._counts = np.zeros((len(self._version.manifest.tables), 2), np.int64)
        self._plans = []
        for batch in (bound[i : i + a_batch] for i in range(0, len(bound), a_batch)):
            total = len(batch) * rows
            bucket = next((b for b in buckets if b >= total), 0)
            if bucket:
                spans = np.array([[0, rows]] * len(batch), np.int64)
                self._plans.append((batch, spans, *self._bind(bucket)))
                continue
            # A request of more rows than the largest bucket: one piece after another.
            for first in range(0, rows, buckets[-1]):
                piece = min(buckets[-1], rows - first)
                spans = np.array([[first, piece]], np.int64)
                self._plans.append((batch, spans, *self._bind(next(b for b in buckets if b >= piece))))

    def run(self) -> None:
        """Computes all requests once."""
        for batch, spans, x, run in self._plans:
            self._version.plan.fill(BatchView(self._state.tables, self._state.epoch, batch, spans, self._counts), x)
            run()

    def _bind(self, bucket: int) -> tuple[Matrix, Callable[[], None]]:
        x = np.zeros((bucket, self._version.plan.width), np.float32)
        return x, self._executables[bucket].bind_buffers({"x": x}, {"score": np.empty((bucket, 1), np.float32)})
