"""Compute items' vectors in the process of the version's writer, by the version's own graph.

A version whose graph is divided (processor.package.subgraphs) computes the candidates' part alone, with a user's part
of zeros: what an item's vector is does not depend on the user. Another one computes all of it for a blank user.

Ownership: one thread, the holder of the version's lock. It has executables and buffers of its own, also where sessions
of this process have some: they may run at the same time. Rows are read like a reader's, as of an epoch that the caller
keeps readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Executable, Matrix
from freshet_serving.processor.errors import first_of
from freshet_serving.processor.extensions.top_items.item_tower import ItemTower
from freshet_serving.processor.features.bound_request import BatchView, NonFiniteInput
from freshet_serving.processor.features.input_reader import blank_inputs
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.running import Package, open_programs
from freshet_serving.processor.running.graph_run import GraphRun

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Dense = Mapping[str, Float32s]


def same_bits(array: Float32s, others: Float32s) -> bool:
    return np.array_equal(array.view(np.uint32), others.view(np.uint32))


def _by_number(manifest: Manifest, key: str) -> Manifest:
    """Return a manifest whose items are numbers: of strings, their hashes (ItemTower.of: each has one)."""
    if manifest.input(key).dtype == "int64":
        return manifest
    inputs = [replace(i, dtype="int64", declared="") if i.name == key else i for i in manifest.inputs]
    features = [replace(f, kind="id") if f.input == key else f for f in manifest.features]
    return replace(manifest, inputs=inputs, features=features)


@dataclass(slots=True, eq=False)
class TowerWeights:
    """The graph with dense weights: those that vectors depend on, and executables by bucket with what runs them."""

    read: Dense
    executables: dict[int, tuple[Executable, Callable[[], None]]] = field(default_factory=dict)

    def holds(self, dense: Dense) -> bool:
        return all(dense[name] is array or same_bits(dense[name], array) for name, array in self.read.items())


class TowerRuns:
    def __init__(self, package: Package, tower: ItemTower) -> None:
        """Open the version's programs; raise FreshetError if they cannot be run here."""
        manifest = _by_number(package.manifest, tower.key)
        self._tower, self._plan = tower, SparsePlan(manifest)
        graphs = GraphRun(manifest, self._plan)
        self._run = graphs.score or graphs.undivided
        opened = open_programs(package, self._run.spec, subgraph=self._run.name)
        self._programs, self._most = opened.programs, max(opened.chosen)
        read = {name for entry in opened.chosen.values() for name in entry.weights}
        self._read = tower.weights or tuple(sorted(read)) or tuple(manifest.dense)
        self._inputs = self._run.spec.allocate_inputs(self._most)
        self._outputs = self._run.spec.allocate_outputs(self._most)
        self._counts = np.zeros((max(1, len(manifest.tables)), 2), np.int64)
        self._blank = {n: column for n, column in blank_inputs(manifest).items() if n not in tower.inputs}

    def weights(self, dense: Dense) -> TowerWeights:
        executables: dict[int, Executable] = {}
        for program in self._programs:
            executables |= program.with_weights(dense)
        weights = TowerWeights({name: dense[name] for name in self._read})
        for bucket, executable in sorted(executables.items()):
            inputs, outputs = self._buffers(bucket)
            weights.executables[bucket] = executable, executable.bind_buffers(inputs, outputs)
        return weights

    def vectors(self, weights: TowerWeights, tables: Int64s, epoch: int, items: Int64s, out: Float32s) -> None:
        """Compute the vectors of items, int64 [n], into float32 [n, columns]; NaN where a number is not finite."""
        if not len(items):
            return
        columns = {**self._blank, self._tower.key: np.ascontiguousarray(items)}
        bound = self._plan.bind_inputs(self._plan.aligned(columns))
        buckets, at = sorted(weights.executables), 0
        while at < len(items):
            rows = min(self._most, len(items) - at)
            bucket = first_of(b for b in buckets if b >= rows)
            inputs, outputs = self._buffers(bucket)
            view = BatchView(tables, epoch, [bound], np.array([[at, rows]], np.int64), self._counts)
            broken = None
            try:
                self._run.fill(view, {name: self._part(inputs[name], name, rows) for name in inputs})
            except NonFiniteInput:
                broken = self._broken(inputs, rows)
            weights.executables[bucket][1]()
            out[at : at + rows] = outputs[self._tower.vectors][:rows]
            if broken is not None:
                out[at : at + rows][broken] = np.nan
            at += rows

    def _buffers(self, bucket: int) -> tuple[dict[str, Matrix], dict[str, Matrix]]:
        spec = self._run.spec
        inputs = {n: a[:bucket] if None in spec.inputs[n] else a for n, a in self._inputs.items()}
        return inputs, {n: a[:bucket] if None in spec.outputs[n] else a for n, a in self._outputs.items()}

    def _part(self, array: Matrix, name: str, rows: int) -> Matrix:
        return array[:rows] if None in self._run.spec.inputs[name] else array

    def _broken(self, inputs: Mapping[str, Matrix], rows: int) -> NDArray[np.bool_]:
        broken = np.zeros(rows, np.bool_)
        for name, array in inputs.items():
            if None in self._run.spec.inputs[name]:
                broken |= ~np.isfinite(array[:rows].reshape(rows, -1)).all(1)
        return broken
