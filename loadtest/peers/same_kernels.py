"""The benchmark's model as every peer serves it: by our kernels and our executables, without any server of ours.

A Scorer is one thread's worth of model, with its own buffers.

This is the one module outside the house that imports `processor`: a comparison in which the peers computed with
anything else would compare computing, not serving.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from loadtest.peers.plain import Floats, Ids, split


class Scorer:
    """Scores by one version of the benchmark's model; score() belongs to one thread at a time."""

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        """folder: <repository>/bench/<version>. threads: of one run of the executable."""
        clock = SystemClock()
        reader = VersionReader(Path(folder))
        version = ServedVersion(reader, undo_depth=0, clock=clock)
        self._replica = Replica(reader, version.control, 0, threads, clock)
        version.attach_replicas(self._replica)
        self._state = self._replica.pin(0)
        self._buffers = self._replica.borrow_buffers()

    def score(self, ids: Ids, floats: Floats) -> Floats:
        """float32 [n] for ids int64 [n, 26] and floats float32 [n, 13]."""
        version, state = self._replica, self._state
        bound = version.plan.bind_inputs({"ids": ids, "floats": floats})
        scores = np.empty(bound.rows, np.float32)
        at = 0
        for bucket in version.costs.bucket_plan(bound.rows):
            stop = min(at + bucket, bound.rows)
            graph = version.graphs.undivided
            inputs, outputs, run = self._buffers.get(state.executables[graph.name][bucket], graph.name)
            spans = np.array([(at, stop - at)], np.int64)
            version.plan.fill(BatchView(state.tables, state.epoch, [bound], spans, self._buffers.counts), inputs["x"])
            run()
            scores[at:stop] = outputs["score"][: stop - at, 0]
            at = stop
        return scores

    def score_bodies(self, bodies: list[bytes]) -> list[bytes]:
        if len(bodies) == 1:
            return [self.score(*split(bodies[0])).tobytes()]
        parts = [split(body) for body in bodies]
        ends = np.cumsum([len(ids) for ids, _ in parts])
        scores = self.score(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
        return [part.tobytes() for part in np.split(scores, ends[:-1])]
