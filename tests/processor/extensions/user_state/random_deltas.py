"""Deltas of random rows of a model with histories."""

import time

import numpy as np

from freshet_serving.processor.package.delta import Delta, TableDelta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository

ITEMS = 30


class Log:
    """Publishes deltas of a model, one after another."""

    def __init__(self, repository, processor, seed=0):
        self.repository, self.processor, self.random, self.step = repository, processor, np.random.default_rng(seed), 0

    def publish(self, rows=None, removed=None, dense=False):
        version = self.processor.host.catalogue["m"].pick(None)
        tables = {}
        for spec in version.manifest.tables:
            keys = np.array((rows or {}).get(spec.name, []), np.int64)
            gone = np.array((removed or {}).get(spec.name, []), np.int64)
            values = self.random.normal(0, 0.1, (len(keys), spec.dim)).astype(np.float32)
            if len(keys) or len(gone):
                tables[spec.name] = TableDelta(keys, values, gone)
        weights = {}
        if dense:
            weights = {name: value * np.float32(1.01) for name, value in version.dense.items()}
        self.step += 1
        served = version.generation.step
        log = ChangeLog.of(Repository(self.repository).version("m"))
        log.publish(Delta("m", 1, self.step, served, tables, weights, published_at=time.time()))

    def roll_back(self):
        """Undo deltas, if any can be undone; return the step that is served then, None without a rollback."""
        steps = list(self.processor.host.catalogue["m"].pick(None).position.undoable)
        if not steps:
            return None
        step = steps[int(self.random.integers(0, len(steps)))]
        self.processor.rollback("m", f"1.{step}")
        return step

    def some(self, most):
        return self.random.choice(ITEMS + 8, self.random.integers(0, most), replace=False).tolist()
