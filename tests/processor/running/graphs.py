"""A divided version whose executables are plain arithmetic: score = 10 * a + b, of a user's a and a candidate's b."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.rows import TABLE_FIELDS
from freshet_serving.processor.package import Feature, Input, Manifest, Output, divided
from freshet_serving.processor.running.buffers import Buffers, BufferSize
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.running.runner import RunningBatch

FEATURES = [Feature("a", "float", "a", side="user", offset=0), Feature("b", "float", "b", side="item", offset=1)]
BUCKETS = {"whole": (1, 4, 16), "user": (1, 2), "score": (4, 8)}
COSTS = {"whole": {1: 1.0, 4: 2.0, 16: 5.0}, "user": {1: 0.1, 2: 0.15}, "score": {4: 0.5, 8: 0.8}}


def manifest(user=True):
    made = Manifest(
        "m", 1, "", 0.0, [Input("a", "float32"), Input("b", "float32")], FEATURES, [], [Output("score")], 2, {}, {}
    )
    return replace(made, graphs=divided(made, [("u0", 1)])) if user else made


class Arithmetic:
    """An executable; log: (subgraph, bucket) of every run."""

    def __init__(self, name, bucket, log):
        self.name, self.bucket, self.log = name, bucket, log

    def bind_buffers(self, inputs, outputs):
        x = inputs["x"]

        def run():
            self.log.append((self.name, self.bucket))
            if self.name == "user":
                outputs["u0"][:] = 10 * x
            elif "u0" in inputs:
                outputs["score"][:] = inputs["u0"] + x
            else:
                outputs["score"][:] = 10 * x[:, :1] + x[:, 1:]

        return run


@dataclass(eq=False)
class Rows:
    """Rows of one request, as a runner reads them."""

    bound: object
    first: int
    rows: int
    ids: int = 0


class Version:
    """The subgraphs of such a version, its executables, and a buffer."""

    def __init__(self, user=True, costs=COSTS):
        self.plan = SparsePlan(manifest(user))
        self.graphs = GraphRun(manifest(user), self.plan)
        self.log = []
        self.executables = {
            name: {b: Arithmetic(name, b, self.log) for b in BUCKETS["whole" if name == "score" and not user else name]}
            for name in self.graphs.by_name
        }
        self.graphs.price(costs if user else {"score": costs["whole"]})
        sizes = {name: BufferSize(run.spec, max(self.executables[name])) for name, run in self.graphs.by_name.items()}
        self.buffers = Buffers(sizes, 1, 1)

    def request(self, a, b, first=0, rows=None):
        bound = self.plan.bind_inputs({"a": np.array([a] if np.isscalar(a) else a, np.float32), "b": np.float32(b)})
        return Rows(bound, first, bound.rows - first if rows is None else rows)

    def batch(self, rows, shared=None):
        results = {"score": np.full((rows, 1), np.nan, np.float32)}
        tables = np.zeros((0, TABLE_FIELDS), np.int64)
        return RunningBatch(self.graphs, self.executables, tables, 0, self.buffers, results, shared)


def crowding(crowded=False):
    """Tells that others compute, or that they do not; beats: how often the runner reported that it runs."""
    made = SimpleNamespace(crowded=crowded, beats=0)
    made.beat = lambda: setattr(made, "beats", made.beats + 1)
    return made
