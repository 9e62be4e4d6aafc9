"""Statistics of each model, as Triton's statistics extension has them: how many inferences, and how long they took.

Counted by each process for the requests that it answers, by model and version; snapshots of several processes add up
number by number, and the time of the last inference is kept by process, so that the newest is found in the sum.
Queueing and executions are counted by the sessions, and so for all models of a session group.

Of Triton's phases compute_input is the sparse side (lookups, pooling), compute_infer the dense graph, and
compute_output what is left of a batch. As in Triton a request counts the time of its whole batch, and a batch its own
time once. Sizes of batches are rounded up to powers of two, so that there are few of them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from processor.sessions.request import Timing
from processor.watching.stats import GroupStats

SUCCESSES, SUCCESS_NS, ROWS, FAILURES, FAIL_NS, INPUT_NS, INFER_NS, OUTPUT_NS, BATCHES, LAST_MS = range(10)

Counts = list[Any]
"""By the names above. BATCHES: by size, [executions, input, infer and output ns]. LAST_MS: by process, Unix."""
Snapshot = Mapping[str, Counts]
"""By "model/version"."""


class AnswerCounts:
    """Requests answered, by model and version. Written by one event loop."""

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        self._of: dict[tuple[str, int], Counts] = {}
        self._unix_s, self._process = unix_s, secrets.token_hex(8)

    def succeeded(self, model: str, version: int, rows: int, seconds: float, timing: Timing | None = None) -> None:
        """timing: of the request's batch, None where it had several."""
        counts = self._of.get((model, version)) or self._new(model, version)
        counts[SUCCESSES] += 1
        counts[SUCCESS_NS] += int(seconds * 1e9)
        counts[ROWS] += rows
        counts[LAST_MS][self._process] = int(self._unix_s() * 1e3)
        if timing is not None and timing.requests:
            left_s = max(0.0, timing.ended_s - timing.began_s - timing.sparse_s - timing.dense_s)
            spent_ns = [int(s * 1e9) for s in (timing.sparse_s, timing.dense_s, left_s)]
            size = str(1 << (timing.rows - 1).bit_length())
            batch = counts[BATCHES].get(size) or counts[BATCHES].setdefault(size, [0.0] * 4)
            share = 1.0 / timing.requests
            batch[0] += share
            for at, ns in enumerate(spent_ns):
                counts[INPUT_NS + at] += ns
                batch[1 + at] += share * ns

    def failed(self, model: str, version: int, seconds: float) -> None:
        """model, version: ones that exist, so that their number stays bounded."""
        counts = self._of.get((model, version)) or self._new(model, version)
        counts[FAILURES] += 1
        counts[FAIL_NS] += int(seconds * 1e9)

    def snapshot(self) -> dict[str, Counts]:
        """The counts as JSON holds them."""
        return {
            f"{model}/{version}": [
                *counts[:BATCHES],
                {size: list(batch) for size, batch in counts[BATCHES].copy().items()},
                counts[LAST_MS].copy(),
            ]
            for (model, version), counts in self._of.copy().items()
        }

    def _new(self, model: str, version: int) -> Counts:
        counts = self._of[model, version] = _nothing()
        return counts


def document(model: str, version: int, snapshot: Snapshot, group: GroupStats) -> dict[str, Any]:
    """One entry of model_stats. group: of the model's session group."""
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
