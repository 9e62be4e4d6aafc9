"""Per-model statistics in the form of Triton's statistics extension: numbers of inferences, and their durations.

Each process counts the requests that it answers, by model and version. Snapshots of several processes can be added
number by number; the time of the last inference is kept per process, so that the sum still has the newest. Queueing and
executions are counted by the sessions, and so for all models of a session group.

Of Triton's phases, compute_input is the sparse graph (lookups, pooling), compute_infer the dense graph, and
compute_output the rest of a batch. As in Triton, a request counts the time of its whole batch, and a batch counts its
own time once. Batch sizes are rounded up to powers of two, to keep their number small.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from freshet_serving.processor.sessions.request import Timing
from freshet_serving.processor.watching import GroupStats

SUCCESSES, SUCCESS_NS, ROWS, FAILURES, FAIL_NS, INPUT_NS, INFER_NS, OUTPUT_NS, BATCHES, LAST_MS = range(10)

Counts = list[Any]
"""Values in the order of the names above.

BATCHES: by size, [executions, input, infer and output ns]. LAST_MS: by process, Unix milliseconds.
"""
Snapshot = Mapping[str, Counts]
"""Counts by "model/version"."""


class _InferenceStats:
    """Statistics of one version, in seconds: they are counted with every request, and converted when read.

    `batches`: by the bit length of the number of rows minus one, [executions, input, infer and output seconds].
    """

    __slots__ = ("batches", "fail_s", "failures", "infer_s", "input_s", "last_s", "output_s", "rows", "success_s",
                 "successes")  # fmt: skip

    def __init__(self) -> None:
        self.successes = self.rows = self.failures = 0
        self.success_s = self.fail_s = self.input_s = self.infer_s = self.output_s = self.last_s = 0.0
        self.batches: dict[int, list[float]] = {}

    def counts(self, process: str) -> Counts:
        spent = (self.input_s, self.infer_s, self.output_s)
        batches = {
            str(1 << bits): [batch[0], *(second * 1e9 for second in batch[1:])]
            for bits, batch in self.batches.copy().items()
        }
        return [
            self.successes, int(self.success_s * 1e9), self.rows, self.failures, int(self.fail_s * 1e9),
            *(int(second * 1e9) for second in spent), batches, {process: int(self.last_s * 1e3)} if self.last_s else {},
        ]  # fmt: skip


class AnswerCounts:
    """Statistics of answered requests, by model and version. Written by one event loop."""

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        self._of: dict[tuple[str, int], _InferenceStats] = {}
        self._unix_s, self._process = unix_s, secrets.token_hex(8)

    def succeeded(self, model: str, version: int, rows: int, seconds: float, timing: Timing | None = None) -> None:
        """Count a successful request; its batch's timing is None if it had several."""
        answered = self._of.get((model, version)) or self._new(model, version)
        answered.successes += 1
        answered.success_s += seconds
        answered.rows += rows
        answered.last_s = self._unix_s()
        if timing is not None and timing.requests:
            began_s, ended_s, sparse_s, dense_s, requests, batch_rows = timing
            left_s = ended_s - began_s - sparse_s - dense_s
            if left_s < 0.0:
                left_s = 0.0
            answered.input_s += sparse_s
            answered.infer_s += dense_s
            answered.output_s += left_s
            bits = (batch_rows - 1).bit_length()
            batch = answered.batches.get(bits) or answered.batches.setdefault(bits, [0.0] * 4)
            share = 1.0 / requests
            batch[0] += share
            batch[1] += share * sparse_s
            batch[2] += share * dense_s
            batch[3] += share * left_s

    def failed(self, model: str, version: int, seconds: float) -> None:
        """Count a failed request, of a model and version that exist, so that the number of entries stays bounded."""
        answered = self._of.get((model, version)) or self._new(model, version)
        answered.failures += 1
        answered.fail_s += seconds

    def snapshot(self) -> dict[str, Counts]:
        return {
            f"{model}/{version}": answered.counts(self._process)
            for (model, version), answered in self._of.copy().items()
        }

    def _new(self, model: str, version: int) -> _InferenceStats:
        answered = self._of[model, version] = _InferenceStats()
        return answered


def document(model: str, version: int, snapshot: Snapshot, group: GroupStats) -> dict[str, Any]:
    """Return one entry of model_stats, from counts, perhaps summed over processes, and the model's session group."""
    counts, work = snapshot.get(f"{model}/{version}") or _nothing(), group.work
    answered = counts[SUCCESSES]
    return {
        "name": model,
        "version": str(version),
        "last_inference": max(counts[LAST_MS].values(), default=0),
        "inference_count": counts[ROWS],
        "execution_count": work.batches,
        "inference_stats": {
            "success": _duration(answered, counts[SUCCESS_NS]),
            "fail": _duration(counts[FAILURES], counts[FAIL_NS]),
            "queue": _duration(work.requests, int(work.wait_s * 1e9)),
            "compute_input": _duration(answered, counts[INPUT_NS]),
            "compute_infer": _duration(answered, counts[INFER_NS]),
            "compute_output": _duration(answered, counts[OUTPUT_NS]),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "batch_stats": [
            {
                "batch_size": int(size),
                "compute_input": _duration(round(batch[0]), int(batch[1])),
                "compute_infer": _duration(round(batch[0]), int(batch[2])),
                "compute_output": _duration(round(batch[0]), int(batch[3])),
            }
            for size, batch in sorted(counts[BATCHES].items(), key=lambda item: int(item[0]))
        ],
    }


def _nothing() -> Counts:
    return [0] * BATCHES + [{}, {}]


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
