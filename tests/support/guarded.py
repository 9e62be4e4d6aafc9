"""A stream of good deltas for the small model, and the faults that a guard is there to hold."""

from __future__ import annotations

import time

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.package.delta import Delta, TableDelta
from tests.processor.backends.artefacts import HIDDEN, SHAPES, WIDTH
from tests.support.packages import DIM, rows_of, tag_id, write_package

USERS = range(200)
TAGS = [f"t{n}" for n in range(80)]
FAULTS = ("times_1.1", "zeroed", "swapped", "hundredfold")
NONE = np.empty(0, np.int64)


def weights(seed=0):
    """A network whose scores follow from the rows more than from the floats: about 0.1, hidden unit 0 is constant."""
    random = np.random.default_rng(7)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    kernel = tensors["mlp_0/kernel"]
    kernel[: 2 * DIM] *= 3
    kernel[2 * DIM :] *= 0.2
    kernel[:, 0], tensors["mlp_0/bias"][0] = 0, 1
    tensors["mlp_out/kernel"] *= 0.3
    tensors["mlp_out/kernel"][0] = -3
    assert kernel.shape == (WIDTH, HIDDEN)
    return tensors


def write_guarded(repository, version=1):
    """Commits a version of the model; returns its folder."""
    return write_package(repository, version, USERS, TAGS, weights=weights)


class Stream:
    """Deltas as a trainer publishes them, one after another; good() moves on, fault() tells of one that is not good."""

    def __init__(self, seed=0, version=1):
        self._random, self._version, self._step = np.random.default_rng(seed), version, 0
        self._skipped = 0
        keys = {"user": np.array(USERS), "tag": np.array([tag_id(t) for t in TAGS])}
        self._keys = keys
        self._rows = {name: rows_of(k, 0) for name, k in keys.items()}
        self._dense = weights()

    def good(self, rate=1.0):
        """The next delta; rate: of learning."""
        rows, dense = dict(self._rows), dict(self._dense)
        tables = {}
        for name, keys in self._keys.items():
            at = self._random.choice(len(keys), len(keys) // 2, replace=False)
            rows[name] = rows[name].copy()
            rows[name][at] += (rate * 0.002 * self._random.standard_normal((len(at), DIM))).astype(np.float32)
            tables[name] = TableDelta(keys[at], rows[name][at], NONE)
        for name, tensor in dense.items():
            dense[name] = tensor + (rate * 0.0003 * self._random.standard_normal(tensor.shape)).astype(np.float32)
        self._rows, self._dense = rows, dense
        return self._delta(tables, dense)

    def fault(self, name):
        """A delta in the place of the next one that does what its name says, one of FAULTS or scores times any number.
        The stream does not follow it."""
        keys, rows, state = self._keys, self._rows, (self._rows, self._dense, self._step)
        tables, dense, skipped = {}, {}, self._skipped
        if name.startswith("times_"):
            dense = {"mlp_out/kernel": self._dense["mlp_out/kernel"].copy()}
            dense["mlp_out/kernel"][0] += np.log(float(name.removeprefix("times_"))) * 1.15
        elif name == "zeroed":
            tables = {"user": TableDelta(keys["user"], np.zeros_like(rows["user"]), NONE)}
        elif name == "swapped":
            count = len(keys["tag"])
            tables = {
                "user": TableDelta(keys["user"][:count], rows["tag"], NONE),
                "tag": TableDelta(keys["tag"], rows["user"][:count], NONE),
            }
        else:
            bad = self.good(rate=100.0)
            tables, dense = bad.tables, bad.dense
        self._rows, self._dense, self._step = state
        self._skipped = skipped
        bad = self._delta(tables, dense)
        self._step, self._skipped = state[2], skipped
        return bad

    def few(self):
        """A delta of three users, as they are."""
        at = slice(0, 3)
        return self._delta({"user": TableDelta(self._keys["user"][at], self._rows["user"][at], NONE)}, {})

    def mended(self):
        """A delta that brings every row and weight as the stream has them, whatever was put in its way."""
        tables = {name: TableDelta(keys, self._rows[name], NONE) for name, keys in self._keys.items()}
        return self._delta(tables, dict(self._dense))

    def follow(self):
        """What comes next stands on the newest fault."""
        self._step += 1

    def skip(self):
        """The step of the newest fault is used; what comes next stands on what it stood on."""
        self._skipped += 1

    def _delta(self, tables, dense):
        parent, step = self._step, self._step + 1 + self._skipped
        self._step, self._skipped = step, 0
        return Delta("small", self._version, step, parent, tables, dense, published_at=time.time())


def as_inputs(count, seed=0):
    random = np.random.default_rng(seed)
    tags = [[TAGS[t] for t in random.choice(len(TAGS), 2)] for _ in range(count)]
    return {
        "user": random.integers(0, len(USERS), count),
        "tags": Ragged(Strings.of([t for row in tags for t in row]), np.arange(0, 2 * count + 1, 2)),
        "floats": random.standard_normal((count, 4)).astype(np.float32),
    }
