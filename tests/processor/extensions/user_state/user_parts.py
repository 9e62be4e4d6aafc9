"""Scores of a user's part of one generation and candidates of another, computed without a store."""

from types import SimpleNamespace

import numpy as np

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.running.runner import Runner, RunningBatch
from freshet_serving.processor.watching import SessionStats


class Parts:
    """Users' parts of the generations that a processor without a store has served, for any later candidates."""

    def __init__(self, processor):
        self.replica, self.parts, self.key = processor.predictor.replica("m"), {}, None
        self.buffers = self.replica.borrow_buffers()

    def look(self, tables, epoch, subgraph, bound):
        def keep(computed, request):
            self.parts[self.key] = {name: tensor[request : request + 1].copy() for name, tensor in computed.items()}

        return SimpleNamespace(tensors=self.parts.get(self.key), keep=keep)

    def scores(self, user, request, step=None):
        """Scores of a user's candidates under the served generation, with the user's part of a step; None for its."""
        replica = self.replica
        bound, rows = replica.plan.bind_inputs(request), len(request["item"])
        with replica.pinned(1) as state:
            self.key = user, len(request["history.item"].values), state.generation.step if step is None else step
            results = {"score": np.zeros((rows, 1), np.float32)}
            batch = RunningBatch(
                replica.graphs, state.executables, state.tables, state.epoch, self.buffers, results, users=self
            )
            runner = Runner(FakeClock(), SimpleNamespace(crowded=False, beat=lambda: None), SessionStats())
            runner.score(batch, [SimpleNamespace(bound=bound, first=0, rows=rows, ids=0)], rows)
        return results["score"]
