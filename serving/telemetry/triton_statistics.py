"""Statistics of each model, as Triton's statistics extension has them: how many inferences, and how long they took.

Counted by each process for the requests that it answers, by model and version; snapshots of several processes add up
number by number. Queueing and computing are counted by the sessions, and so for all models of a session group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processor.watching.stats import GroupStats

SUCCESSES, SUCCESS_NS, ROWS, FAILURES, FAIL_NS = range(5)

Snapshot = Mapping[str, list[int]]
"""By "model/version"."""


class AnswerCounts:
    """Requests answered, by model and version. Written by one event loop."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], list[int]] = {}

    def succeeded(self, model: str, version: int, rows: int, seconds: float) -> None:
        counts = self._of.get((model, version)) or self._new(model, version)
        counts[SUCCESSES] += 1
        counts[SUCCESS_NS] += int(seconds * 1e9)
        counts[ROWS] += rows

    def failed(self, model: str, version: int, seconds: float) -> None:
        """model, version: ones that exist, so that their number stays bounded."""
        counts = self._of.get((model, version)) or self._new(model, version)
        counts[FAILURES] += 1
        counts[FAIL_NS] += int(seconds * 1e9)

    def snapshot(self) -> dict[str, list[int]]:
        """The counts as JSON holds them."""
        return {f"{model}/{version}": list(counts) for (model, version), counts in self._of.copy().items()}

    def _new(self, model: str, version: int) -> list[int]:
        counts = self._of[model, version] = [0] * 5
        return counts


def document(model: str, version: int, snapshot: Snapshot, group: GroupStats) -> dict[str, Any]:
    """One entry of model_stats. group: of the model's session group."""
    counts = snapshot.get(f"{model}/{version}") or [0] * 5
    work = group.work
    return {
        "name": model,
        "version": str(version),
        "last_inference": 0,
        "inference_count": counts[ROWS],
        "execution_count": work.batches,
        "inference_stats": {
            "success": _duration(counts[SUCCESSES], counts[SUCCESS_NS]),
            "fail": _duration(counts[FAILURES], counts[FAIL_NS]),
            "queue": _duration(work.requests, int(work.wait_s * 1e9)),
            # Part of compute_infer; clients want the three counts equal.
            "compute_input": _duration(work.requests, 0),
            "compute_infer": _duration(work.requests, int(work.busy_s * 1e9)),
            "compute_output": _duration(work.requests, 0),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "batch_stats": [],
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
